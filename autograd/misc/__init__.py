"""Flattening containers, optimizers on them, fixed points, constant graphs; names of HIPS autograd."""

from __future__ import annotations

from .flatten import flatten
from .tracers import const_graph

__all__ = ["const_graph", "flatten"]
