"""Technique window-attention: attention over a window of the last tokens."""
