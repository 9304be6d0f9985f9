"""Measures: perplexity and KL over windows, speed and memory, the machine."""
