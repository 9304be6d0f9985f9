"""Measurements of speed and quality; `python -m benchmarks` lists them."""
