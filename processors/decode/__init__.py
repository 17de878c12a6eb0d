"""Media bytes to pixels and samples, and header probes."""
