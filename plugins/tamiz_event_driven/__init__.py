"""Technique event-driven: decode steps compute the inputs that moved from what is expected."""
