"""Technique block-quant: weights as int4 or int8 in groups of 32 with fp16 scales."""
