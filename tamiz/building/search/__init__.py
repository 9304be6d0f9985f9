"""Searches what a build within a budget applies: trials, options of weights, solver."""
