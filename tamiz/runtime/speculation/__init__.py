"""Exact speculation: drafts of tokens, and what it costs to verify them."""
