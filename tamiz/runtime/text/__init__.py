"""Text in and out: tokenizer, chat templates, streams of text."""
