"""Technique ternary: weights of the levels -1, 0 and +1."""
