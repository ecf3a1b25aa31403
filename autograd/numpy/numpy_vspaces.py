"""The module `autograd.numpy.numpy_vspaces` of HIPS autograd: the vector spaces of arrays."""

from __future__ import annotations

from ..custom.vspace import ArrayVSpace, ComplexArrayVSpace, VSpace

__all__ = ["ArrayVSpace", "ComplexArrayVSpace", "VSpace"]
