"""Parallel layers over the differentiable collectives, and the proof that they compute what one process would."""

from __future__ import annotations

from .data.data_parallel import DataParallel
from .data.entry import enter
from .verify import Report, VerifyError, verify

__all__ = ["DataParallel", "Report", "VerifyError", "enter", "verify"]
