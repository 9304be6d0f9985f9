"""Fits weights to techniques, and judges each fit."""
