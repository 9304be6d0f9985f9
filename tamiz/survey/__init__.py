"""Reads a dense model: its graph, its sites, their activations and gradients."""
