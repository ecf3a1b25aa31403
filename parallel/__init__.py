"""Parallel layers built on the differentiable collectives, and `verify`, which compares gradients with serial ones."""

from __future__ import annotations

from .data.data_parallel import DataParallel
from .data.entry import enter
from .verify import Report, VerifyError, verify

__all__ = ["DataParallel", "Report", "VerifyError", "enter", "verify"]
