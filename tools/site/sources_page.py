"""The page of what becomes of each field of a source, from the tables of the exporters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tamiz.api import END_NAMES
from tamiz.runtime.generation_fields import NO_EFFECT, OBEYED, REFUSED
from tamiz_exporters.activations import GGUF_NAMES, HF_NAMES
from tamiz_exporters.architectures import ARCHITECTURES, HF_ARCHITECTURES
from tamiz_exporters.config_fields import CONFIG_FIELDS
from tamiz_exporters.encoder_architectures import ENCODERS
from tamiz_exporters.encoder_fields import ENCODER_FIELDS
from tamiz_exporters.gguf_encoder import GGUF_ENCODERS
from tamiz_exporters.gguf_encoder_fields import ENCODER_KEYS, ENCODER_TOKENIZER_KEYS
from tamiz_exporters.gguf_fields import ARCHITECTURE_KEYS, GENERAL_KEYS, TOKENIZER_KEYS
from tamiz_exporters.pre_tokenizers import PRE_TOKENIZERS
from tamiz_exporters.rope_fields import ROPE_FIELDS
from tamiz_exporters.source_fields import Field, Treatment
from tamiz_exporters.tokenizer_fields import TOKENIZER_FIELDS

Table = Callable[[list[str], list[list[str]]], str]
_INTRO = """\
Every field of a source that changes results is obeyed, or refused by name, or known to have no
effect. A refused field with a harmless value, such as 0, is accepted. An unknown field of the
architecture, of the tokenizer, of `config.json` or of `rope_scaling` is a warning that names it."""
_ENDS = """\
An answer ends at what any file calls an end: `eos_token_id` of `generation_config.json` and
`config.json`, `eos_token` of `tokenizer_config.json`; in GGUF the tokens of the keys below. The
export writes all of them into `generation_config.json`. These names are ends wherever a vocabulary
has them, as in llama.cpp; `</s>` only where it is a control token:"""
_GENERATION = """\
`eos_token_id` and `stop_strings` always hold. The other fields are read with `--sampling model`,
which refuses what changes answers in a way that tamiz does not know. An unknown field is a warning.
The export of a GGUF file writes its `general.sampling` keys here."""
_TOKENIZER = """\
The `tokenizers` library reads the whole file: model, normalizer, pre-tokenizer, decoder and added
tokens are obeyed. `truncation` and `padding` have no effect: texts are cut and padded by the
model's limits. Of `post_processor` a decoder takes whether texts begin with BOS, an encoder all
tokens around a text.

Without `tokenizer.json` it is made from `vocab.json` and `merges.txt` (GPT-2 and Qwen) or from
`vocab.txt` (BERT). `tokenizer.model` alone is not read, which a warning says:
`AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)` writes a `tokenizer.json`."""
_OF_ENCODERS = """\
What of a decoder is refused is refused, and other keys of decoders are unknown. These differ:"""
_PRE_TOKENIZERS = """\
`tokenizer.ggml.pre` may be any of these, and gives the ids of llama.cpp. Exceptions: names in
*italics* compose characters first (NFC), as the models' own tokenizers do, and llama.cpp does not.
`</s>` is no control token where the file calls it text."""


def _changed(fields: Mapping[str, Field], others: Mapping[str, Field]) -> dict[str, Field]:
    """Those that are not the same in another table."""
    return {name: field for name, field in fields.items() if others.get(name) != field}


def page(table: Table) -> str:
    """The page.

    Args:
        table: Makes a table of a head and rows.
    """
    names = [
        f"*{name}*" if pre.composes else f"`{name}`" for name, pre in sorted(PRE_TOKENIZERS.items())
    ]
    ends = ", ".join(f"`{name}`" for name in sorted(END_NAMES))
    parts = [
        "# Sources",
        _INTRO,
        "## GGUF",
        f"Architectures of decoders: {_listed(ARCHITECTURES)}. Of encoders: "
        f"{_listed(GGUF_ENCODERS)}.",
        "### Keys of the architecture",
        _fields(table, ARCHITECTURE_KEYS, "{architecture}."),
        "### Keys of the tokenizer",
        _fields(table, TOKENIZER_KEYS, "tokenizer."),
        "### Keys of an encoder",
        _OF_ENCODERS,
        _fields(table, _changed(ENCODER_KEYS, ARCHITECTURE_KEYS), "{architecture}."),
        _fields(table, _changed(ENCODER_TOKENIZER_KEYS, TOKENIZER_KEYS), "tokenizer."),
        "### Other keys",
        _fields(table, GENERAL_KEYS, ""),
        "### Pre-tokenizers",
        _PRE_TOKENIZERS,
        ", ".join(names) + ".",
        "## Hugging Face",
        f"Model types of decoders: {_listed(HF_ARCHITECTURES)}. Of encoders: {_listed(ENCODERS)}. "
        "Others are exported by optimum.",
        "### config.json of a decoder",
        _fields(table, CONFIG_FIELDS, ""),
        "### config.json of an encoder",
        _fields(table, ENCODER_FIELDS, ""),
        "### rope_scaling and rope_parameters",
        _fields(table, ROPE_FIELDS, ""),
        "### generation_config.json",
        _GENERATION,
        _generation(table),
        "### tokenizer_config.json",
        _fields(table, TOKENIZER_FIELDS, ""),
        "### tokenizer.json",
        _TOKENIZER,
        "## Activations",
        f"`hidden_act` and `hidden_activation`: {_listed(HF_NAMES)}. In GGUF also "
        f"{_listed(GGUF_NAMES.keys() - HF_NAMES.keys())}.",
        "## Ends",
        _ENDS,
        f"{ends}.",
    ]
    return "\n\n".join(parts)


def _generation(table: Table) -> str:
    """What becomes of the fields of ``generation_config.json``."""
    rows = [[f"`{name}`", "obeyed", note] for name, note in sorted(OBEYED.items())]
    for name, idle in sorted(REFUSED.items()):
        rows.append([f"`{name}`", "refused", f"but for {idle[0]}" if idle else ""])
    rows += [[f"`{name}`", "no effect", note] for name, note in sorted(NO_EFFECT.items())]
    return table(["field", "what becomes of it", "note"], rows)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _fields(table: Table, fields: Mapping[str, Field], prefix: str) -> str:
    rows = [
        [f"`{prefix}{name}`", _treatment(field), field.note]
        for treatment in Treatment
        for name, field in sorted(fields.items())
        if field.treatment is treatment
    ]
    return table(["field", "what becomes of it", "note"], rows)


def _treatment(field: Field) -> str:
    if not field.only:
        return field.treatment.value
    return f"obeyed by {', '.join(field.only)}; else {field.elsewhere.value}"
