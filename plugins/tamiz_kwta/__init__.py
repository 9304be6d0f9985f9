"""Technique kwta: each token reads the weights of its strongest inputs only."""
