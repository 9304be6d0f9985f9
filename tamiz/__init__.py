"""Transformer models, faster and smaller on CPUs, inside plain ONNX Runtime."""

__version__ = "0.1.0"
