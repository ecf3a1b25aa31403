"""The module `autograd.tracer` of HIPS autograd; its names are defined in `autograd.extend` and `autograd.custom`."""

from __future__ import annotations

from .custom.boxes import Box, DictBox, SequenceBox, TraceStack, isbox, new_box, trace_stack
from .custom.nodes import Node, trace
from .extend import getval, notrace_primitive, primitive, register_notrace

__all__ = [
    "Box", "DictBox", "Node", "SequenceBox", "TraceStack", "getval", "isbox", "new_box", "notrace_primitive",
    "primitive", "register_notrace", "trace", "trace_stack",
]  # fmt: skip
