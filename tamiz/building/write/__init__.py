"""Writes what was decided: the rewritten model, its self-check, the report."""
