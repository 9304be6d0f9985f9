"""Builds bundles: fit, gate, search, write, report."""
