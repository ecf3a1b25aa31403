"""Texts of the errors about labels: which label a collective does not take, why, and the fix.

`label_text` describes the operand and the axis, and takes the fix of the first row of `_FIXES` that has one. A
declaration states its own reasons and fixes as `call.Refusal`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from autograd.errors import LayoutError, NotDifferentiable
from autograd.layouts.layout import C, I, Label, Layout, P, R, Shard
from autograd.layouts.messages import describe
from autograd.layouts.texts import fixes

from .call import Refusal

__all__ = ["label_text", "partial_operand", "unfit_adjoint", "without_adjoint"]


class _Refused(NamedTuple):
    """A label that a collective does not take, on one axis of an operand."""

    collective: Any
    name: str
    axis: str
    have: Label
    ndim: int
    own: Refusal

    @property
    def is_copy(self) -> bool:
        """Whether the operand is the same on all ranks."""
        return self.have is R or self.have is I or self.have is C

    def fill(self, fix: str) -> str:
        """A fix with the names of the operand and the axis, and the dimension of its parts."""
        return fix.format(x=self.name, a=self.axis, d=getattr(self.have, "dim", 0))


def label_text(collective: Any, x: Any, layout: Layout, axis: str, name: str) -> str:
    """The text for an operand whose label on `axis` the collective does not take."""
    have, name = layout[axis], name or "x"
    words = " or ".join(dict.fromkeys(t.word if isinstance(t, Label) else t.__name__ for t in collective.takes))
    own = collective.refuses.get(have) or collective.refuses.get(type(have)) or Refusal("")
    case = _Refused(collective, name, axis, have, len(x.shape), own)
    lines = [
        f"{collective.name}({name}: {describe(x, x.shape, layout)}, axis {axis!r})",
        f"  axis {axis!r}: {name} is {have.word}; {collective.name} takes {words}{': ' if own.why else ''}{own.why}",
        "  fix: " + next(fix for fix in (row(case) for row in _FIXES) if fix),
    ]
    return "\n".join(lines)


def _left_out(case: _Refused) -> str:
    if case.collective.nonlinear and case.is_copy:
        return f"leave {case.collective.name} out, since {case.name} is the same on all ranks of the axis"
    return ""


def _of_gradient(case: _Refused) -> str:
    return case.own.of_gradient.format(x=case.name) if case.name.endswith(".grad") else ""


def _declared(case: _Refused) -> str:
    return case.fill(case.own.instead)


def _relabelled(case: _Refused) -> str:
    """A conversion to a label that the collective takes, with its cost."""
    for label, how, cost in fixes(case.have, case.ndim):
        if any(label is taken for taken in case.collective.takes):
            whole = how.startswith("shard") and case.have is R
            other = f"\n  or:  cast({case.name}, {case.axis!r}, to=V)   (each rank's copy as a value of its own; free)"
            return f"{case.fill(how)}   ({cost}){other if whole else ''}"
    return ""


def _copy_counted(case: _Refused) -> str:
    if not case.is_copy:
        return ""
    return (
        f"leave the collective out, since {case.name} is the same on all ranks; or state which copy counts: "
        f"cast({case.name}, {case.axis!r}, to=P)   (one copy, kept on the first rank)"
    )


def _summed(case: _Refused) -> str:
    if case.have is not P:
        return ""
    return f"reduce_scatter({case.name}, {case.axis!r}) or all_reduce({case.name}, {case.axis!r}, to=R) first"


def _separated(case: _Refused) -> str:
    if type(case.have) is not Shard:
        return ""
    return f"cast({case.name}, {case.axis!r}, to=V)   (free; states that the parts are separate values)"


def _converted(case: _Refused) -> str:
    return f"convert {case.name} to a layout that it takes"


_FIXES: tuple[Callable[[_Refused], str], ...] = (
    _left_out, _of_gradient, _declared, _relabelled, _copy_counted, _summed, _separated, _converted,
)  # fmt: skip


def partial_operand(collective: Any, x: Any, layout: Layout, axis: str, name: str) -> LayoutError:
    """The error for a Partial operand of a nonlinear collective."""
    return LayoutError(
        f"{collective.name}({name}: {describe(x, x.shape, layout)})\n  axis {axis!r}: {name} is "
        f"Partial, and {collective.name} is not linear: its results on addends do not "
        f"add up to that of their sum\n  fix: "
        f"all_reduce({name}, {axis!r}, to=R)   (an all-reduce in both directions)"
    )


def without_adjoint(collective: Any) -> NotDifferentiable:
    """The error for a collective that is to be recorded and has a forward direction only."""
    name = collective.name
    return NotDifferentiable(
        f"{name}: the collective has a forward direction and no adjoint\n  fix: @{name}.adjoint before a "
        f"function of (ct, call) that is made of collectives; outside of a tape it runs without"
    )


def unfit_adjoint(
    collective: Any, layout: Layout | None, out: Layout | None, why: str, cause: Exception | str = ""
) -> LayoutError:
    """The error for an adjoint whose labels or shape do not fit those of the declaration."""
    details = "".join(f"\n    {line}" for line in str(cause).splitlines())
    return LayoutError(
        f"{collective.name}, declared by {collective.declared}: {layout} -> {out}\n  {why}{details}\n"
        f"  fix: the labels of the declaration (takes, gives), or an adjoint that maps the dual of the result's "
        f"label to the dual of the operand's: {out and out.dual} -> {layout and layout.dual}; "
        f"cc.testing.check({collective.name}) tests it"
    )
