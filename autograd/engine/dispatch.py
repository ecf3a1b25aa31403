"""A call while somebody listens: the same call, with its events around it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from textwrap import indent
from typing import Any

import numpy as np

from ..layouts.messages import unfit
from ..layouts.rank_values import RankFloat, RankInt, frozen
from . import broadcasting, events, promotion
from .checked_pull import pull_carefully
from .recording import FREE, OUTSIDE
from .state import state
from .tensor import TENSORS, Tensor

__all__ = ["aloud", "functions", "identity", "source"]


def aloud(op: Any, functions: Any, xs: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
    """Call `op` and tell of it; listeners are shown the several steps of what has them."""
    if op.instead is not None or not any(x.__class__ in TENSORS for x in xs):
        return (op.instead or op.function)(*xs, *options)
    events.emit("begin", "forward", op.name)
    y = functions(op, len(xs), ())[0](*xs, options=options)  # made to hear no listeners
    events.emit("end", "forward", op.name, op, xs, y, options)
    return y


def identity(ct: Any, *_: Any) -> Any:
    """The rule of an operand that is handed on as it is; sweeps know it and make no call."""
    return ct


_KNOWN: dict[str, Any] = {
    "NUMBERS": frozenset((float, int, RankFloat, RankInt)), "TENSORS": TENSORS, "Tensor": Tensor,
    "SCALARS": frozenset((np.float64, np.float32, np.float16, np.complex64, np.complex128)),
    "alike": promotion.alike, "aloud": aloud, "frozen": frozen, "new": object.__new__,
    "pull_carefully": pull_carefully, "state": state,
    "unbroadcast": broadcasting.unbroadcast, "unfit": unfit, "unlike": promotion.unlike,
}  # fmt: skip
"""What the text may name."""


def functions(op: Any, n: int, listeners: Any = events.listeners) -> tuple[Callable[..., Any], Callable[..., None]]:
    """The call and the step of the reverse sweep of an operation with n operands."""
    rules = [op.rule(i, n) for i in range(n)]
    said = {"ELEMENTWISE": op.elementwise and n > 1, "KEEPING": op.keeping is not None, "KEEPS_Y": op.keeps_y,
            "INSTEAD": op.instead is not None, "PROMOTES": op.promotes, "RANKED": op.ranked, "ZERO": op.neutral_zero}
    for i, rule in enumerate(rules):
        said[f"KEEP{i}"], said[f"SAME{i}"] = op.keeps(i), rule is identity
    free = tuple(i for i, letter in enumerate(op.letters(n)) if letter == "S")
    factory = _factory(n, free, frozenset(word for word in said if said[word]))
    made: tuple[Callable[..., Any], Callable[..., None]] = factory(op, rules, listeners)
    for function in made:  # code of its own, in which the interpreter notes what types and functions it meets
        function.__code__ = function.__code__.replace(co_name=op.name)
    return made


@cache
def _factory(n: int, free: tuple[int, ...], words: frozenset[str]) -> Any:
    names = dict(_KNOWN, functions=functions)
    exec(compile(source(n, free, words), f"{__file__} ({n} operands)", "exec"), names)
    return names["make"]


_WORDS = re.compile(r"\b(ELEMENTWISE|PROMOTES|RANKED|KEEPS_Y|KEEPING|INSTEAD|ZERO|KEEP\d+|SAME\d+)\b")


def source(n: int, free: tuple[int, ...] = (), words: frozenset[str] | None = None) -> str:
    """The text for n operands, of which those in `free` have no cotangent; an operand's number is written ``@``.

    What a declaration says stands there in capitals. Of an operation these are True where they are among its `words`,
    else False, and Python's compiler leaves out what then never happens.
    """
    taking = [i for i in range(n) if i not in free]

    def each(text: str, between: str = ", ", of: Any = range(n)) -> str:
        return between.join(text.replace("@", str(i)) for i in of)

    def lines(text: str, of: Any = range(n), by: int = 4) -> str:
        return "".join(indent(text.replace("@", str(i)) + "\n", " " * by) for i in of)

    def rest(unless: str = "") -> str:
        """A call from the places on; `unless` comes before what only a Tensor has, for what a number has there."""
        labels = each(f"{unless}x@.layout".replace("?", "getattr(x@, 'axes', 0)"))
        dtypes = each(f"{unless}a@.dtype".replace("?", "0"), of=taking) or "0" if unless else "dtype"
        unlabelled = each("(not t@ or x@.layout is None)" if unless else "x@.layout is None", " and ")
        shapes = each(f"{unless}a@.shape".replace("?", "0"))
        known = "y.__class__ in SCALARS" if unless else "y.dtype is dtype"  # with numbers go numbers, mostly
        return f"""
    recording = state.recording
    if recording is not None:
{lines(f"p@ = {unless}x@.node if x@.tape is recording else recording.enter(x@)".replace("?", "-1"), taking, 8)}\
{lines("p@ = -1", free, 8)}\
    if {unlabelled} and (recording is not None or state.grid is None):
        signature = layout = None
    else:
        key = ({labels}, {shapes}, {dtypes},
               frozen(options, ({x},)) if RANKED else options)
        signature = signatures.get(key) or op.sign(key, ({x},), ({arrays},), options)
        layout = signature.out
        if layout is None:
            return instead({x})
    try:
        if KEEPING and recording is not None:
            y, kept = keeping({arrays}, *options)
        else:
            y = function({arrays}, *options) if options else function({arrays})
            if INSTEAD and y is NotImplemented:
                return instead({x})
    except ValueError as error:
        raise unfit(op, error, ({x},)) from error
    z = new(Tensor)
    z.array = y
    z.layout = layout
    if recording is None or {each("p@ < 0", " and ")} or not ({known} or y.dtype.kind in 'fc'):
        z.tape = None
        z.node = {OUTSIDE} if recording is None else {FREE}
        return z
{lines("if KEEP@:" + chr(10) + "    recording.lock(a@)", free)}\
    shapes = None
    if ELEMENTWISE{" and y.__class__ not in SCALARS" if unless else ""}:
{lines(f"s@ = {unless}a@.shape".replace("?", "()"), by=8)}\
        if {each("s@ != s0", " or ", range(1, n)) or False}:
            shapes = ({each("s@")},)
    z.tape = recording
    nodes = recording.nodes
    z.node = len(nodes)
    nodes.append((op, y if KEEPS_Y else kept if KEEPING else None, ({each("a@ if KEEP@ else None")},), ({each("p@")},),
                  options, shapes, signature))
    return z
"""

    x, arrays = each("x@"), each("a@")
    differ = each("a@.dtype is not dtype", " or ", taking[1:]) or False
    tensors = f"[x.array.dtype for x in ({each('x@', of=taking)},) if x.__class__ in TENSORS]"
    others = "" if n == 2 else f"""\
        if PROMOTES and unlike(*{tensors}):
            return alike(op, call, ({x},), options)
"""
    beside_a_number = f"""
    if {each("(t@ or x@.__class__ in NUMBERS)", " and ")}:
        if ZERO and x{n - 1}.__class__ is int and x{n - 1} == 0:
            return x0  # an exact literal 0 changes nothing, whatever x's layout
{lines("a@ = x@.array if t@ else x@", by=8)}{others}{indent(rest("? if not t@ else "), "    ")}
"""
    text = f"""
def make(op, rules, listeners):
    function, keeping, instead, signatures = op.function, op.keeping, op.instead, op.signatures
    {each("rule@")}, = rules

    def call({x}, options=()):
        if listeners:
            return aloud(op, functions, ({x},), options)
        if {each("x@.__class__ in TENSORS", " and ")}:
{lines("a@ = x@.array", by=12)}\
            dtype = a{(taking or [0])[0]}.dtype
            if {differ}:
                dtype = ({each("a@.dtype", of=taking or [0])},)
                if PROMOTES and unlike(*dtype):
                    return alike(op, call, ({x},), options)
{indent(rest(), "        ")}
{lines("t@ = x@.__class__ in TENSORS", by=8)}\
        if not ({each("t@", " or ")}):
            return (instead or function)({x}, *options)
{indent(beside_a_number if n > 1 else "", "    ")}\
        return alike(op, call, ({x},), options)

    def pull(node, ct, sweep):
        _, y, ({arrays},), ({each("p@")},), options, shapes, signature = node
        if sweep.record or (signature is not None and not signature.checked):
            return pull_carefully(op, node, ct, sweep)
        cts, start = sweep.cts, sweep.start
{lines(f'''if p@ >= 0:
    g = ct if SAME@ else rule@(ct, y, {arrays}, *options) if options else rule@(ct, y, {arrays})
    if ELEMENTWISE and shapes is not None:
        g = unbroadcast(g, shapes[@])
    if start:
        sweep.add(p@, g)
    elif cts[p@] is None:
        cts[p@] = g
    else:
        cts[p@] = cts[p@] + g''', taking, 8)}

    return call, pull
"""
    return text if words is None else _WORDS.sub(lambda word: str(word[0] in words), text)
