"""Technique seed-delta: a base that a seed makes, and a stored residual."""
