"""What happens when an operation is called, and one step of its reverse sweep.

Both are written once, as a text for any number of operands, and made into functions for the number at hand: what a
loop over operands would find out at every call, a function without a loop need not ask. `source` returns the text;
`python -c "from autograd.dispatch import source; print(source(2))"` shows it for two operands.

A call goes top to bottom: the arrays of the operands, which must be of one dtype (`promotion.alike` sees to it and
calls again); their places on the tape; the labels, of which each combination is inferred once; the function; the node.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from . import broadcasting, events, promotion
from .careful import pull_carefully
from .explain import unfit
from .ranknumbers import RankFloat, RankInt, frozen
from .state import state
from .tensor import FREE, OUTSIDE, TENSORS, Tensor

__all__ = ["functions", "identity", "source"]

NUMBERS = frozenset((float, int, RankFloat, RankInt))
SCALARS = frozenset((np.float64, np.float32, np.float16, np.complex64, np.complex128))


def identity(ct: Any, *_: Any) -> Any:
    """The rule of an operand that is handed on as it is; sweeps know it and make no call."""
    return ct


def run(op: Any, arrays: tuple[Any, ...], options: tuple[Any, ...], recording: Any) -> tuple[Any, Any]:
    """The function itself, where there is more to it: options, listeners, or what the rules would have it keep."""
    if events.listeners:
        if op.instead is not None:
            return NotImplemented, None  # they want to see the several steps
        events.emit("begin", "forward", op.name)
    if op.keeping is None or recording is None:
        result = op.function(*arrays, *options), None
    else:
        result = op.keeping(*arrays, *options)
    if events.listeners:
        events.emit("end", "forward", op.name)
    return result


_KNOWN: dict[str, Any] = {
    "NUMBERS": NUMBERS, "SCALARS": SCALARS, "TENSORS": TENSORS, "Tensor": Tensor, "alike": promotion.alike,
    "frozen": frozen, "identity": identity, "listeners": events.listeners, "new": object.__new__, "run": run,
    "pull_carefully": pull_carefully, "state": state, "unbroadcast": broadcasting.unbroadcast, "unfit": unfit,
    "unlike": promotion.unlike,
}  # fmt: skip
"""What the text may name."""


def functions(op: Any, n: int) -> tuple[Callable[..., Any], Callable[..., None]]:
    """The call and the step of the reverse sweep of an operation with n operands."""
    free = tuple(i for i, letter in enumerate(op.letters(n)) if letter == "S")
    return _factory(n, free)(op, [op.rule(i, n) for i in range(n)], [op.keeps(i) for i in range(n)])


@cache
def _factory(n: int, free: tuple[int, ...]) -> Any:
    exec(compile(source(n, free), f"{__file__} ({n} operands)", "exec"), names := dict(_KNOWN))
    return names["make"]


def source(n: int, free: tuple[int, ...] = ()) -> str:
    """The text for n operands, of which those in `free` have no cotangent; an operand's number is written ``@``."""

    def each(text: str, between: str = ", ", of: Any = range(n)) -> str:
        return between.join(text.replace("@", str(i)) for i in of)

    def lines(text: str, of: Any = range(n)) -> str:
        return "".join(f"        {line}\n" for i in of for line in text.replace("@", str(i)).splitlines())

    taking = [i for i in range(n) if i not in free]
    a = taking[0] if taking else 0
    differs = f"(a@.__class__ is not a{a}.__class__ or a@.__class__ not in SCALARS) and a@.dtype is not a{a}.dtype"
    x, arrays = each("x@"), each("a@")
    t = "t@" if n == 2 else "True"  # numbers come this far in the place of one of two operands only
    return f"""
def make(op, rules, keeps):
    {each("rule@")}, = rules
    {each("keep@")}, = keeps
    function, simple, keeps_y = op.function, op.keeping is None, op.keeps_y
    elementwise, promotes, zero, ranked = op.elementwise, op.promotes, op.neutral_zero, op.ranked
    signatures, instead, bare = op.signatures, op.instead, op.instead or op.function

    def call({x}, options=()):
{lines("t@ = x@.__class__ is Tensor or x@.__class__ in TENSORS")}\
        if {each("t@", " and ")}:
{lines("    a@ = x@.array")}\
            if ({each(differs, " or ", taking[1:]) or False}) and promotes and unlike({each("a@", of=taking)}):
                return alike(op, ({x},), options)
        elif not ({each("t@", " or ")}):
            return bare({x}, *options)
        elif {n != 2} or {each("not (t@ or x@.__class__ in NUMBERS)", " or ")}:
            return alike(op, ({x},), options)
        else:
            if zero and x{n - 1}.__class__ is int and x{n - 1} == 0:
                return x0  # an exact literal 0 changes nothing, whatever x's layout
{lines("    a@ = x@.array if t@ else x@")}\
        recording = state.recording
        signature = layout = kept = None
        if recording is not None:
{lines(f"    p@ = -1 if not {t} else x@.node if x@.tape is recording else recording.enter(x@)", taking)}\
{lines("    p@ = -1", free)}\
{lines(f"l@ = x@.layout if {t} else None")}\
        if {each("l@ is not None", " or ")} or (recording is None and state.grid is not None):
            key = ({each("l@ if t@ else getattr(x@, 'axes', 0)")}, {each("a@.shape if t@ else None")},
                   {each("a@.dtype.kind if t@ else 0", of=taking or [0])},
                   frozen(options, ({each("l@")},)) if ranked else options)
            signature = signatures.get(key) or op.sign(key, ({x},), ({arrays},), options)
            layout = signature.out
            if layout is None:
                return instead({x})
        try:
            if simple and not options and not listeners:
                y = function({arrays})
            else:
                y, kept = run(op, ({arrays},), options, recording)
        except ValueError as error:
            raise unfit(op, error, ({x},)) from error
        if y is NotImplemented:
            return instead({x})
        z = new(Tensor)
        z.array = y
        z.layout = layout
        scalar = y.__class__ in SCALARS
        if recording is None or {each("p@ < 0", " and ")} or not (scalar or y.dtype.kind in "fc"):
            z.tape = None
            z.node = {OUTSIDE} if recording is None else {FREE}
            return z
{lines("if keep@:" + chr(10) + "    recording.lock(a@)", free)}\
        shapes = None
        if {n > 1} and elementwise and not scalar:
{lines(f"    s@ = a@.shape if {t} else ()")}\
            if {each("s@ != y.shape", " or ")}:
                shapes = ({each("s@")},)
        z.tape = recording
        nodes = recording.nodes
        z.node = len(nodes)
        nodes.append((op, y if keeps_y else kept, ({each("a@ if keep@ else None")},), ({each("p@")},), options, shapes,
                      signature))
        return z

    def pull(node, ct, sweep):
        _, y, ({arrays},), ({each("p@")},), options, shapes, signature = node
        if sweep.record or (signature is not None and not signature.checked):
            return pull_carefully(op, node, ct, sweep)
        cts, start = sweep.cts, sweep.start
{lines(f'''if p@ >= 0:
    g = ct if rule@ is identity else rule@(ct, y, {arrays}, *options) if options else rule@(ct, y, {arrays})
    if shapes is not None:
        g = unbroadcast(g, shapes[@])
    i = p@ - start
    if i < 0:
        sweep.add(p@, g)
    else:
        known = cts[i]
        cts[i] = g if known is None else known + g''', taking)}

    return call, pull
"""
