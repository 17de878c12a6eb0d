"""Media bytes to model-ready items; synchronous and free of I/O."""
