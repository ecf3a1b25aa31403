"""HIPS autograd's `misc`: flattening of containers, simple optimizers, fixed points, constant graphs."""

from __future__ import annotations

from .flatten import flatten
from .tracers import const_graph

__all__ = ["const_graph", "flatten"]
