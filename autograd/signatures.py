"""Signature: the labels of one use of an operation, inferred once and found again by its operands."""

from __future__ import annotations

from .layout import Layout

__all__ = ["Signature"]


class Signature:
    """The labels of one use of an operation: its operands' layouts and its result's, None for "instead".

    Its rules are `checked` once (see `careful`). `apart` are operands that this rank has though the result, rooted
    elsewhere by another one, is absent here: from it they get nothing. Then every sweep takes the careful path.
    """

    __slots__ = ("apart", "checked", "layouts", "out")

    def __init__(self, layouts: tuple[Layout, ...], out: Layout | None):
        self.layouts = layouts
        self.out = out
        self.checked = False
        absent = out is not None and out.absent_beyond(())
        self.apart = frozenset(i for i, x in enumerate(layouts) if absent and not x.absent_beyond(()))
