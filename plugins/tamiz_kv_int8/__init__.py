"""Technique kv-int8: keys and values are stored in 8 bits."""
