"""Technique proc-sparse: the large weights are stored, the others come from a hash."""
