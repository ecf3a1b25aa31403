"""x is used by each rank for its own columns, and the products of the rows are addends of one sum."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import collectives as cc
from collectives import I, R


def columns(x: Any, up: Any, b: Any) -> Any:
    """Return this rank's columns of tanh(x @ up + b)."""
    return anp.tanh(cc.cast(x, "tp", to=R) @ up + b)


def rows(h: Any, down: Any) -> Any:
    """Return h @ down, whole on all ranks, from this rank's columns of h and rows of down."""
    return cc.all_reduce(h @ down, "tp", to=I)
