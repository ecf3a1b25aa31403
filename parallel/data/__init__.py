"""Data parallelism: every rank runs the whole module on its part of the batch."""

from __future__ import annotations

from .data_parallel import DataParallel
from .entry import enter

__all__ = ["DataParallel", "enter"]
