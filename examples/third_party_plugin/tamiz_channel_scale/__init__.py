"""Technique channel-scale: input channels scaled before int4 rounding."""
