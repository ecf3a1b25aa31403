"""ComparedCall: a prepared call as the ranks compare it, before it is made and in the history of its channel."""

from __future__ import annotations

from typing import Any

from autograd.engine.tensor import Tensor
from autograd.layouts.layout import Layout, P, Rooted, Shard, V

from ..checks import modes, sanitizer
from ..checks.sanitizer import Addend
from ..job.marks import mark
from ..transports.protocol import Communicator
from .call import Call

__all__ = ["ComparedCall", "compared_layout"]


class ComparedCall:
    """The comparison of a prepared call between the ranks of its group.

    Attributes
    ----------
    sampling : Sampling
        That of the channel. It counts the call.
    history : list of int or None
        The marks of the channel's calls, which the monitors compare.
    mark, marked : int, bool or None
        The mark of a call that is recorded as `marked` says; see `make_mark`.
    addend : Addend or None
        That of a call that is examined; see `scale.addends`.
    """

    __slots__ = (
        "_call", "_collective", "_group", "_layout", "_texts", "addend", "history", "mark", "marked", "sampling",
    )  # fmt: skip

    def __init__(self, collective: Any, call: Call, layout: Layout | None):
        group = call.group
        assert group.checks is not None
        self._collective, self._call, self._layout, self._group = collective, call, layout, group
        self.sampling = group.checks.sampling
        # A silent call has no place in the history: it harms nobody until its adjoint communicates.
        self.history = None if collective.silent or collective.free else group.history
        self.mark = 0
        self.marked: Any = ()
        self.addend: Addend | None = None
        self._texts: dict[bool | None, str] = {}

    def before(self, x: Any, recorded: bool | None, operand: Tensor | None) -> None:
        """Compare this call between the ranks; in ``ranks`` mode also the operand's layout and its copies.

        `recorded` is None in a sweep at first order; `operand` is the Tensor whose array is `x`.
        """
        collective, layout = self._collective, ""
        if modes.watching and operand is not None:
            assert self._layout is not None
            sanitizer.witness(collective.name, operand)
            layout = compared_layout(self._layout, self._call.axes)
        if collective.free:
            return
        text = self._texts.get(recorded) or self._text(x, recorded)
        compare = self._group.announce if collective.meets else self._group.agree
        if self.addend is None:
            compare(text, layout, collective.rooted)
        else:
            compare(text, layout, collective.rooted, self.addend)

    def _text(self, x: Any, recorded: bool | None) -> str:
        if recorded not in self._texts:
            self._texts[recorded] = self._collective.fingerprint(x, self._call, recorded)
        return self._texts[recorded]

    def make_mark(self, x: Any, recorded: bool | None) -> int:
        """Compute the mark of the call, and keep it."""
        self.marked = recorded
        self.mark = mark(_by_algorithm(self._text(x, recorded), self._group))
        return self.mark

    def note_start(self, x: Any, recorded: bool) -> None:
        """Append the start of a nonblocking call to the history of the channel."""
        if self.history is not None:
            self.history.append(mark(_by_algorithm(f"start of {self._text(x, recorded)}", self._group)))


def _by_algorithm(text: str, group: Communicator) -> str:
    return text if group.algorithm == "native" else f"{text} algorithm={group.algorithm}"


def compared_layout(layout: Layout, axes: tuple[str, ...]) -> str:
    """The labels that must be the same on all ranks of a call along `axes`, as text.

    Along these axes V, P, Shard and Rooted count as equal: a collective that takes several of them gives the same
    result label for each, a rank without a contribution has a plain zero (V) where others have addends (P), and ranks
    other than the root may have no operand.
    """
    shown = [
        f"{name}: {x!r}"
        for name, x in layout.items()
        if name not in axes or not (x is V or x is P or isinstance(x, Shard | Rooted))
    ]
    return "{" + ", ".join(shown) + "}" if shown else ""
