"""Technique win-attn: attention over a window of the last tokens."""
