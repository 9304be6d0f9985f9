"""Technique activation-bits: inputs of products are rounded to 8 bits."""
