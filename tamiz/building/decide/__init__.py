"""Decides what a build applies: by policy, within limits, or as an earlier report says."""
