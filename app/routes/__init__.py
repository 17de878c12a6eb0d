"""One thin file per HTTP resource."""
