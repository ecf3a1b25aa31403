"""`logsumexp` under its former module path."""

from __future__ import annotations

from .special import logsumexp

__all__ = ["logsumexp"]
