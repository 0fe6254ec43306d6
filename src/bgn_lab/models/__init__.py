"""Networks, each with any normaliser."""
