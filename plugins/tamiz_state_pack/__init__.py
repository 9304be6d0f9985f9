"""Techniques of state-pack: packed bits of keys and of activations, and masks of zeros."""
