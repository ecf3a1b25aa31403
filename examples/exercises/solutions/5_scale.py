"""Divide by the number of all rows, and add over the ranks: no number of ranks appears."""

from __future__ import annotations

from typing import Any

import numpy as np

import collectives as cc
from autograd import nn


def loss(model: Any, x: np.ndarray, y: np.ndarray, rows: int) -> Any:
    """Return the mean of the cross-entropy over all rows of all ranks."""
    return cc.all_reduce(nn.cross_entropy(model(x), y, reduction="sum") / rows, "dp", to=cc.I)
