"""HTTP edge and orchestration of mmprep."""
