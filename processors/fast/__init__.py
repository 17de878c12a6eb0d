"""Exact fast kernels, each proven equal to the plain processor."""
