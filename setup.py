"""Builds the optional compiled kernels; all else is declared in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "processors.fast._kernels",
            ["processors/fast/_kernels.c"],
            extra_compile_args=["-O3"],
            # Without a compiler the package installs all the same and runs the plain processors.
            optional=True,
        )
    ]
)
