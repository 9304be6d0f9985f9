"""Embeddings of texts: an encoder, and the modules of sentence-transformers behind it."""
