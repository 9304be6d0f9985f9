"""Several sequences in one run, over one cache of pages."""
