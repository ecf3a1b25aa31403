"""Signature: the labels of one use of an operation, inferred once and found again by its operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .errors import LayoutError
from .explain import unfit
from .inference import infer
from .layout import Layout
from .ranklabels import layout_of, varying
from .ranknumbers import rank_axes
from .state import state
from .tensor import TENSORS

__all__ = ["Signature", "Signed"]


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


class Signed:
    """The base of operations: what a call asks for where labels are in play and its short way ends."""

    def sign(self: Any, key: Any, xs: Sequence[Any], arrays: Sequence[Any], options: tuple[Any, ...]) -> Signature:
        """The signature of a call, inferred; it is found by its key from then on."""
        layouts = [x.layout for x in xs if x.__class__ in TENSORS]
        grid = next((layout.grid for layout in layouts if layout is not None), state.grid)
        assert grid is not None
        signature = self.inferred([x.labelled(grid) if x.__class__ in TENSORS else layout_of(x, grid) for x in xs],
                                  arrays, options)  # fmt: skip
        if None not in layouts:  # a leaf has its labels from now on, and comes under another key
            if len(self.signatures) > 4096:  # programs with ever new shapes must not grow for ever
                self.signatures.clear()
            self.signatures[key] = signature
        return signature

    def inferred(
        self: Any, layouts: Sequence[Layout], arrays: Sequence[Any], options: tuple[Any, ...]) -> Signature:
        """The signature of operands with these layouts."""
        operands = layouts
        try:
            if self.ranked and rank_axes(options):
                operands = [varying(x, rank_axes(options), self.name) for x in layouts]
            shapes = [tuple(int(n) for n in np.shape(a)) for a in arrays]
            real = [hasattr(a, "dtype") and a.dtype.kind in "fc" for a in arrays]
            out = infer(self, operands, shapes, real, options, arrays)
        except Exception as error:
            try:
                self.function(*arrays, *options)  # operands that do not fit raise that first
            except ValueError as misfit:
                raise unfit(self, misfit, arrays) from misfit
            if self.instead is None or not isinstance(error, LayoutError):
                raise
            out = None
        return Signature(tuple(layouts), out)
