"""Technique key-filter: sparse distributed representations choose the keys of a decode step."""
