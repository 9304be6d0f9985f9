"""What tests share: tiny models, graphs, references, runners. Only `tests/` imports it."""
