"""Where `logsumexp` was once."""

from __future__ import annotations

from .special import logsumexp

__all__ = ["logsumexp"]
