"""What the generic engine cannot learn from a processor, one small file per family."""
