"""The module `autograd.tracer` of HIPS autograd; its names are defined in `autograd.extend`."""

from __future__ import annotations

from .extend import Box, getval, isbox, notrace_primitive, primitive, register_notrace

__all__ = ["Box", "getval", "isbox", "notrace_primitive", "primitive", "register_notrace"]
