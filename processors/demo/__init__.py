"""The embedded demo model directories."""
