"""Names of traced values under which programs know them."""

from __future__ import annotations

from .extend import Box, getval, isbox, notrace_primitive, primitive, register_notrace

__all__ = ["Box", "getval", "isbox", "notrace_primitive", "primitive", "register_notrace"]
