"""Reads and shows reports: explain, diff, page."""
