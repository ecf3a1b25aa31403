"""Programs of which something else is told than should be, with the reason and the numbers of ranks."""

from __future__ import annotations

__all__ = ["MISSED"]

MISSED: dict[str, tuple[str, tuple[int, ...]]] = {}
