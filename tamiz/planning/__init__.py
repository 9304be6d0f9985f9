"""Decides what a build does: policy, resolver, plan, predicted speed. Touches no weights."""
