"""Exact fast kernels, each proven equal to the plain processor.

    kernel = find_kernel(processor.image_processor, server_kwargs)      # None: run the processor
    done = kernel.run(pixels, kwargs, outputs)                          # False: run the processor

or, where the sub-processor is run inside a larger protocol:

    call = kernel.start(outputs, "compact")
    processor = copy.copy(processor); processor.image_processor = call.sub_processor
    features, replacements = processor._process_images([view_of(pixels)], **kwargs)
    call.write(features)                                                # or KernelUnfitError

Feature extractors of sound are stood in for by a copy that fits in the original's place:

    faster = find_mel(processor.feature_extractor)                      # None: keep the original
"""

from processors.fast.encoding import expand
from processors.fast.find import find_kernel
from processors.fast.kernel import Call, Kernel, KernelUnfitError, view_of
from processors.fast.mel import find_mel
from processors.fast.passes import AVAILABLE
from processors.fast.tape import Recording, Tape

__all__ = [
    "AVAILABLE",
    "Call",
    "Kernel",
    "KernelUnfitError",
    "Recording",
    "Tape",
    "expand",
    "find_kernel",
    "find_mel",
    "view_of",
]
