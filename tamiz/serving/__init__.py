"""Serves bundles over HTTP with OpenAI's API: an engine of batches, its routes, its metrics."""
