"""Parallel layers over the differentiable collectives."""

from __future__ import annotations

from .data import DataParallel, enter

__all__ = ["DataParallel", "enter"]
