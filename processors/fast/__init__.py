"""Exact fast kernels, each proven equal to the plain processor."""

from processors.fast.encoding import CompactEncoding, Repeat, expand
from processors.fast.find import find_kernel
from processors.fast.kernel import Kernel
from processors.fast.passes import AVAILABLE

__all__ = ["AVAILABLE", "CompactEncoding", "Kernel", "Repeat", "expand", "find_kernel"]
