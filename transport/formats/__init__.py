"""Engine-specific shapes of an answer."""
