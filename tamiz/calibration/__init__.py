"""Statistics of the inputs of linear sites on a text."""
