"""Graph passes: what a decoder is made of, its sites, and the fusion of a layer into one node."""
