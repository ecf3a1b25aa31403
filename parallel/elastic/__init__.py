"""Runs that go on: copies of one value that have become different are found, and repaired from the majority."""

from __future__ import annotations

from ..checkpoint.replicas import Difference
from .replicas import Replicas

__all__ = ["Difference", "Replicas"]
