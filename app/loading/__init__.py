"""Sources of media: what a Media value is, fetching it, and which addresses may be reached."""
