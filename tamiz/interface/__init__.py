"""Names that graphs and manifests share: states, switches, metadata keys. Imports no other room."""
