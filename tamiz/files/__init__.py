"""Files: errors that name them, strict JSON, text and tensors, and the bundle."""
