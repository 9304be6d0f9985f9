"""Technique tt: weights as tensor trains."""
