"""Tensors to locations and back; all that a consumer of features imports."""
