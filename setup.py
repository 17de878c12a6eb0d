"""Builds the optional compiled kernels; all else is declared in pyproject.toml."""

from setuptools import Extension, setup


def kernel(name: str) -> Extension:
    """Return a kernel of `processors.fast`."""
    return Extension(
        f"processors.fast.{name}",
        [f"processors/fast/{name}.c"],
        depends=["processors/fast/_parallel.h"],
        # A weight of a resize must be rounded as often as torch rounds it.
        extra_compile_args=["-O3", "-ffp-contract=off", "-pthread"],
        extra_link_args=["-pthread"],
        # Without a compiler the package installs all the same and runs the plain processors.
        optional=True,
    )


setup(ext_modules=[kernel("_kernels"), kernel("_resize"), kernel("_mel")])
