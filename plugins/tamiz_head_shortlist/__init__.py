"""Technique head-shortlist: exact logits of the tokens that a small sketch of the head favours."""
