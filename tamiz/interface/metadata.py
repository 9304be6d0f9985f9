"""Names that a rewritten graph carries: the domain of its ops, the metadata keys of its nodes."""

DOMAIN = "tamiz"
OPSET_VERSION = 1

METADATA_PREFIX = "pkg.tamiz."
TECHNIQUE = METADATA_PREFIX + "technique"
VERSION = METADATA_PREFIX + "version"
POLICY = METADATA_PREFIX + "policy"
SITE = METADATA_PREFIX + "site"
#: On a past of keys or values whose rows are not floats of the head size: which technique says so.
CACHE = METADATA_PREFIX + "cache"
LAYER = METADATA_PREFIX + "layer"
#: On a node whose weight another tool stored: why no format holds it, a sentence without subject.
STAYS = METADATA_PREFIX + "stays"
UNSAFE = METADATA_PREFIX + "unsafe"
#: In the ``meta`` of a value, which no file keeps: its type and shape were inferred.
INFERRED = METADATA_PREFIX + "inferred"
