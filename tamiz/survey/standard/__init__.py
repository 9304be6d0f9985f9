"""A bundle as a model of standard ONNX operators, which any runtime loads."""
