"""Exporters: from GGUF, Hugging Face and ONNX to a dense bundle."""
