"""An examined sum over ranks, as messages show it. Its texts are made only when a fault is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from autograd.engine.tensor import Tensor
from autograd.errors import caller
from autograd.layouts.expressions import operand_text
from autograd.layouts.messages import describe

__all__ = ["Sum"]


class Sum:
    """An examined sum over ranks: its name, its line, and what the ranks have found out.

    Parameters
    ----------
    name : str
        That of the function: ``all_reduce``, ``mean``.
    x : Tensor
        The operand, which is not kept.
    axes : tuple of str

    Attributes
    ----------
    site : tuple of (str, int)
        The file and the line of the program.
    counts : dict of int to int
        The number of rows that each rank has averaged or summed, where the ranks know it.
    """

    __slots__ = ("_dtype", "_frame", "_layout", "_shape", "_variable", "axes", "counts", "name", "site")

    def __init__(self, name: str, x: Tensor, axes: tuple[str, ...]):
        self.name, self.axes, self.counts = name, axes, dict[int, int]()
        self._shape, self._dtype, self._layout = x.array.shape, x.array.dtype, x.layout
        self._variable, self.site = x.name, ("<unknown>", 0)
        self._frame: Any = None
        frame = caller()
        if frame is None:
            return
        code = frame.f_code
        self.site = code.co_filename, frame.f_lineno
        # what `operand_text` reads of a frame, without the variables, which would live as long as the tape
        self._frame = SimpleNamespace(f_code=code, f_lasti=frame.f_lasti, f_globals=frame.f_globals, f_locals={})
        for variable, value in frame.f_locals.items():
            if value is x:
                self._variable = variable

    @property
    def operand(self) -> str:
        """The variable that holds the operand, else its text in the program, if it is known."""
        return self._variable or (operand_text(self._frame, 0) if self._frame is not None else "") or "operand 0"

    @property
    def shown(self) -> str:
        """The operand with its layout."""
        return f"{self.operand}: {describe(SimpleNamespace(dtype=self._dtype), self._shape, self._layout)}"
