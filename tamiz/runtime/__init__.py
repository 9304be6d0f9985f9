"""Runs bundles: model, sequences, sampling, tokenizer, chat. Needs numpy and onnxruntime only."""
