"""A survey of every processor in the installed transformers: what loads, and what is exact."""
