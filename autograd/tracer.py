"""Names of HIPS autograd for traced values; they live in `extend`."""

from __future__ import annotations

from .extend import Box, getval, isbox, notrace_primitive, primitive, register_notrace

__all__ = ["Box", "getval", "isbox", "notrace_primitive", "primitive", "register_notrace"]
