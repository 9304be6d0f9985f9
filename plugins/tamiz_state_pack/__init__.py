"""Technique state-pack: packed bits of keys choose what a decode step attends to."""
