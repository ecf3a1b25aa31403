"""What a call of a user's primitive leaves on the tape: see `autograd.extend`.

The arguments may be containers with values of a tape anywhere inside them, and so may the result. A result that is one
array is one node. A result with several is a node and, behind it, one `OUTPUT` for each array, whose step in a sweep
hands its own cotangent to the node.

A function may use values of the tape that are not its arguments (it closes over them). Its result then has a place on
the tape before the call is recorded; the derivative along that way is whatever was recorded there, with the arguments
held fixed, so the node hands its cotangent on to that place too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from . import events
from .arrays import as_array, is_array, is_inexact
from .errors import NotDifferentiable, ShapeError
from .layout import Layout, infer, layout_of
from .sites import call_site
from .state import state
from .tape import Node, Recording, Sweep, Tape, relabel
from .tensor import FREE, TENSORS, Tensor

__all__ = ["Call", "Extension", "each", "rebuilt"]

Function = Callable[..., Any]


# -- containers ------------------------------------------------------------------------------------------------------
def each(x: Any) -> Iterator[Any]:
    """What tuples, lists and dictionaries hold, at any depth, in order."""
    if isinstance(x, tuple | list):
        for item in x:
            yield from each(item)
    elif isinstance(x, dict):
        for item in x.values():
            yield from each(item)
    else:
        yield x


def rebuilt(x: Any, make: Function) -> Any:
    """The same containers around ``make(item)``."""
    if isinstance(x, tuple | list):
        items = [rebuilt(item, make) for item in x]
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    if isinstance(x, dict):
        return {key: rebuilt(item, make) for key, item in x.items()}
    return make(x)


def paired(x: Any, g: Any) -> Iterator[tuple[Any, Any]]:
    """Each item of a container with what stands at its place in another one; None stands for zeros."""
    if g is None:
        return
    if isinstance(x, tuple | list):
        for item, part in zip(x, g, strict=True):
            yield from paired(item, part)
    elif isinstance(x, dict):
        for key, item in x.items():
            yield from paired(item, g[key])
    else:
        yield x, g


class Operand:
    """A value of a tape among the arguments: its array, its layout, its place."""

    __slots__ = ("array", "layout", "place")

    def __init__(self, x: Tensor):
        self.array = x.array if x.array.shape else x.array[()]  # functions meet numbers as numbers
        self.layout: Layout | None = x.layout
        self.place = -1

    def tensor(self, recording: Recording | None) -> Tensor:
        """It as a Tensor, at its place on a recorded tape."""
        if recording is None or self.place < 0:
            return Tensor(self.array, self.layout)
        return Tensor(self.array, self.layout, recording, self.place)


class Call:
    """The arguments of one call, with Operands in the places of Tensors; later its result."""

    __slots__ = ("ans", "args", "argnums", "found", "kwargs", "layout", "operands", "through")

    def __init__(self, args: tuple[Any, ...], found: list[Tensor], operands: list[Operand]):
        self.args, self.found, self.operands = args, found, operands
        self.argnums: tuple[int, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.ans: Any = None  # the result's arrays
        self.layout: Layout | None = None  # the result's
        self.through: Any = -1  # where the result stands on the tape by what the function closes over

    @classmethod
    def of(cls, args: tuple[Any, ...]) -> Call | None:
        """The call, or None where no argument holds a Tensor."""
        if not any(x.__class__ in TENSORS for x in each(args)):
            return None
        found: list[Tensor] = []
        operands: list[Operand] = []

        def make(x: Any) -> Any:
            if x.__class__ not in TENSORS:
                return x
            found.append(x)
            operands.append(Operand(x))
            return operands[-1]

        return cls(tuple(rebuilt(a, make) for a in args), found, operands)

    def raw(self) -> tuple[Any, ...]:
        """The arguments with plain arrays."""
        return tuple(rebuilt(a, lambda x: x.array if x.__class__ is Operand else x) for a in self.args)

    def lifted(self, recording: Recording | None) -> tuple[Any, ...]:
        """The arguments with Tensors."""
        return tuple(
            rebuilt(a, lambda x: x.tensor(recording) if x.__class__ is Operand else x) for a in self.args
        )

    def enter(self, recording: Recording) -> tuple[int, ...]:
        """Give the operands their places on a tape and drop the Tensors; the places, -1 for what it does not follow."""
        for x, operand in zip(self.found, self.operands, strict=True):
            tracked = (x.tape is not None or x.requires_grad) and is_inexact(x.array.dtype)
            operand.place = (x.node if x.tape is recording else recording.enter(x)) if tracked else -1
            if operand.place < 0:
                recording.lock(x.array)
        self.argnums = tuple(
            i for i, a in enumerate(self.args) if any(x.__class__ is Operand and x.place >= 0 for x in each(a))
        )
        self.found = []
        return tuple(x.place for x in self.operands)


class Parts:
    """The cotangents of a result with several arrays, as far as they have arrived."""

    __slots__ = ("known",)

    def __init__(self, known: dict[int, Any]):
        self.known = known

    def __add__(self, other: Parts) -> Parts:
        known = dict(self.known)
        for i, ct in other.known.items():
            known[i] = known[i] + ct if i in known else ct
        return Parts(known)


class _Output:
    """The node of one array of a result with several."""

    name = "output"
    communicates = False

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        (whole, through), (i, _) = node[3], node[4]
        sweep.add(whole, Parts({i: ct}))
        sweep.add(through, ct)

    def push(self, node: Node, carried: list[Any], start: int, record: bool, recording: Recording, place: int) -> Any:
        (whole, through), (i, _) = node[3], node[4]
        whole_tangent = carried[whole - start] if whole >= start else None
        return _sum(None if whole_tangent is None else whole_tangent[i], _at(carried, through, start))


OUTPUT = _Output()


def _at(carried: list[Any], place: int, start: int) -> Any:
    return carried[place - start] if place >= start and place >= 0 else None


def _sum(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a + b


class Extension:
    """A user's function as an operation of the tape."""

    communicates = False

    def __init__(self, name: str, function: Function, vjp: Function, jvp: Function):
        self.name = name
        self.function = function
        self.vjp, self.jvp = vjp, jvp  # how the rules are looked up: they may be given later

    def __repr__(self) -> str:
        return f"<primitive {self.name}>"

    # what layout inference asks of an operation of which nothing is known
    dims = None

    def letters(self, n: int) -> str:
        """Nonlinear in each operand, as far as anybody knows."""
        return "N" * n

    def operand_name(self, i: int) -> str:
        """What errors call operand i."""
        return f"operand {i}"

    # -- the call ------------------------------------------------------------------------------------------------
    def apply(self, call: Call, kwargs: dict[str, Any]) -> Any:
        """Run the function on plain values and record it."""
        call.kwargs = {key: self._plain(key, value) for key, value in kwargs.items()}
        args = call.raw()
        recording, state.recording = state.recording, None  # what it differentiates is its own affair
        try:
            result = self.function(*args, **call.kwargs)
        finally:
            state.recording = recording
        if recording is not None and any(y.__class__ in TENSORS for y in each(result)):
            result = self.function(*args, **call.kwargs)  # it closes over values of a tape; now they are followed
        call.layout = self._layout(call, args)
        places = call.enter(recording) if recording is not None else ()
        tracked = max(places, default=-1) >= 0
        if recording is None or not tracked:
            free = -1 if recording is None else FREE
            return rebuilt(result, lambda y: Tensor(as_array(y), call.layout, None, free) if _is_value(y) else y)
        if not events.calls:  # who listens to calls may want to repeat them, and no derivative
            self._require_rule(call)
        values = [y for y in each(result) if _is_value(y)]
        through = [y.node if y.__class__ in TENSORS and y.tape is recording else -1 for y in values]
        plain = [_number(y.array if y.__class__ in TENSORS else as_array(y)) for y in values]
        if len(values) == 1 and values[0] is result:
            if not is_inexact(plain[0].dtype):
                return Tensor(plain[0], call.layout, None, FREE)
            call.ans, call.through = plain[0], through[0]
            place = recording.append((self, None, (), places, (call,), None, None))
            return Tensor(plain[0], call.layout, recording, place)
        call.through = None
        call.ans = rebuilt(result, _taking(iter(plain)))
        if not any(is_inexact(y.dtype) for y in plain):
            return call.ans
        whole = recording.append((self, None, (), places, (call,), None, None))
        outputs: list[Any] = []
        for i, y in enumerate(plain):
            place = recording.append((OUTPUT, None, (), (whole, through[i]), (i, call), None, None))
            inexact = is_inexact(y.dtype)
            outputs.append(Tensor(y, call.layout, recording, place) if inexact else Tensor(y, call.layout, None, FREE))
        return rebuilt(result, _taking(iter(outputs)))

    def _require_rule(self, call: Call) -> None:
        if self.vjp() is None and self.jvp() is None:
            raise NotDifferentiable(
                f"{self.name} is to be differentiated with respect to argument"
                f"{'s' if len(call.argnums) > 1 else ''} {', '.join(map(str, call.argnums))}, and has no rule. "
                f"Needed: its vjp or its jvp. Fix: defvjp({self.name}, lambda ans, *args: lambda g: ...), or "
                f"stop_gradient on what is passed" + call_site()
            )

    def _plain(self, key: str, value: Any) -> Any:
        """What is passed by keyword: a value, never differentiated."""
        if any(x.__class__ in TENSORS and x.requires_grad and is_inexact(x.array.dtype) for x in each(value)):
            if state.recording is not None:
                raise NotDifferentiable(
                    f"{self.name}({key}=...) was given a value that the tape follows, by keyword; keyword arguments "
                    "have no rules, so its gradient would be lost. Fix: pass it by position, or stop_gradient(x)"
                    + call_site()
                )
        return rebuilt(value, lambda x: x.array if x.__class__ in TENSORS else x)

    def _layout(self, call: Call, args: tuple[Any, ...]) -> Layout | None:
        grid = state.grid
        if grid is None and all(x.layout is None for x in call.operands):
            return None
        for operand in call.operands:
            grid = operand.layout.grid if operand.layout is not None else grid
        assert grid is not None
        for x, operand in zip(call.found, call.operands, strict=True):
            operand.layout = x.labelled(grid)
        arrays: list[Any] = [a for a in each(args) if is_array(a) or isinstance(a, int | float | complex)]
        known = {id(operand.array) for operand in call.operands}
        others = [a for a in arrays if id(a) not in known]
        layouts: list[Any] = [operand.layout for operand in call.operands]
        layouts += [layout_of(a, grid) for a in others]
        every = [operand.array for operand in call.operands] + others
        shapes = [tuple(int(n) for n in np.shape(x)) for x in every]
        real = [is_inexact(x.dtype) if hasattr(x, "dtype") else False for x in every]
        return infer(self, layouts, shapes, real, (), every)

    # -- the sweeps ----------------------------------------------------------------------------------------------
    def _values(self, call: Call, recording: Recording | None, place: int) -> tuple[Any, tuple[Any, ...]]:
        """The result and the arguments as the rules get them: plain, or on their tape for a recorded sweep."""
        if recording is None:
            return call.ans, call.raw()
        if call.through is not None:
            return Tensor(call.ans, call.layout, recording, place), call.lifted(recording)
        at = iter(range(place + 1, place + 1 + sum(map(_is_value, each(call.ans)))))

        def lift(y: Any) -> Any:
            return Tensor(y, call.layout, recording, next(at)) if _is_value(y) else y

        return rebuilt(call.ans, lift), call.lifted(recording)

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        """One step of the reverse sweep."""
        (call,) = node[4]
        ans, args = self._values(call, sweep.recording if sweep.record else None, sweep.place)
        if call.through is None:
            ct = _whole(call, ct, sweep.record)
        else:
            sweep.add(call.through, ct)
            ct = ct if call.layout is None or not sweep.record else relabel(ct, call.layout.dual)
        self._require_rule(call)
        rule = self.vjp()
        if rule is not None:
            cts = list(rule(call.argnums, ans, args, call.kwargs)(ct))
        else:
            cts = self._transposed_jvp(call, ans, args, ct, sweep.record)
        for argnum, g in zip(call.argnums, cts, strict=True):
            for operand, part in paired(call.args[argnum], g):
                if operand.__class__ is Operand and operand.place >= 0 and part is not None:
                    sweep.add(operand.place, self._fit(part, operand, sweep.record, argnum))

    def push(self, node: Node, carried: list[Any], start: int, record: bool, recording: Recording, place: int) -> Any:
        """One step of forward mode."""
        (call,) = node[4]
        given = [
            i
            for i in call.argnums
            if any(x.__class__ is Operand and _at(carried, x.place, start) is not None for x in each(call.args[i]))
        ]
        dy = None
        if given:
            ans, args = self._values(call, recording if record else None, place)

            def tangent(x: Any) -> Any:
                if x.__class__ is not Operand:
                    return _zeros(x) if _is_value(x) else x
                t = _at(carried, x.place, start)
                return t if t is not None else Tensor(_zeros(x.array), x.layout) if record else _zeros(x.array)

            gs = [rebuilt(call.args[i], tangent) for i in given]
            self._require_rule(call)
            rule = self.jvp()
            if rule is not None:
                dy = rule(given, gs, ans, args, call.kwargs)
            else:
                dy = self._transposed_vjp(call, given, gs, ans, args, record)
            if dy is not None:
                dy = rebuilt(dy, lambda t: self._tangent(t, record, call) if _is_value(t) else t)
        if call.through is None:
            return None if dy is None else [t for y, t in paired(call.ans, dy) if _is_value(y)]
        return _sum(dy, _at(carried, call.through, start))

    def _tangent(self, t: Any, record: bool, call: Call) -> Any:
        if not record:
            return t.array if t.__class__ in TENSORS else as_array(t)
        t = t if t.__class__ in TENSORS else Tensor(as_array(t), call.layout)
        return t if call.layout is None else relabel(t, call.layout)

    def _fit(self, g: Any, operand: Operand, record: bool, argnum: int) -> Any:
        """A cotangent as the sweep takes it: of the operand's shape and dtype, on the tape if the sweep is recorded."""
        x = operand.array
        if g.__class__ not in TENSORS:
            g = as_array(g)
        elif not record:
            g = g.array
        if g.shape != x.shape:
            from .ops import broadcast_to, reshape  # the operations stand above this file

            if g.size == x.size:
                g = reshape(g, x.shape)
            elif not g.shape:
                g = broadcast_to(g, x.shape)  # a number for every element
            else:
                raise ShapeError(
                    f"{self.name}'s vjp gave a cotangent of shape {g.shape} for argument {argnum} of shape {x.shape}. "
                    "Needed: the argument's shape. Fix: sum it over the dimensions along which the argument is repeated"
                )
        if g.dtype != x.dtype:
            from .ops import astype

            g = astype(g, x.dtype)  # of a complex cotangent for a real operand: the real part
        if not record:
            return g
        g = g if g.__class__ in TENSORS else Tensor(g, None if operand.layout is None else operand.layout.dual)
        return g if operand.layout is None else relabel(g, operand.layout.dual)

    # -- one mode from the other's rule ---------------------------------------------------------------------------
    def _transposed_vjp(
        self, call: Call, given: Sequence[int], gs: list[Any], ans: Any, args: tuple[Any, ...], record: bool
    ) -> Any:
        """The tangent from the reverse rule, which is linear in the cotangent: its transpose."""
        with Tape() as tape:
            seeds: list[Any] = []

            def seed(y: Any) -> Any:
                if not _is_value(y) or not is_inexact(y.dtype):
                    return y
                layout = y.layout.dual if y.__class__ in TENSORS and y.layout is not None else None
                seeds.append(tape.watch(Tensor(_zeros(y.array if y.__class__ in TENSORS else y), layout)))
                return seeds[-1]

            ct = rebuilt(ans, seed)
            rule = self.vjp()
            assert rule is not None
            cts = list(rule(call.argnums, ans, args, call.kwargs)(ct))
            pairs = []
            for argnum, g in zip(call.argnums, cts, strict=True):
                if argnum not in given:
                    continue
                for operand, part, t in _triples(call.args[argnum], g, gs[list(given).index(argnum)]):
                    if operand.__class__ is Operand and operand.place >= 0 and part.__class__ in TENSORS:
                        fitted = self._fit(part, operand, True, argnum)
                        if fitted.tape is not None:
                            pairs.append((fitted, t if t.__class__ in TENSORS else Tensor(t)))
        if not pairs:
            return None
        found = tape.backward([g for g, _ in pairs], [t for _, t in pairs], wanted=seeds, retain=True, record=record)
        assert found is not None
        results = iter([_zeros(s.array) if f is None else f for s, f in zip(seeds, found, strict=True)])
        return rebuilt(ans, lambda y: next(results) if _is_value(y) and is_inexact(y.dtype) else _zeros(y))

    def _transposed_jvp(self, call: Call, ans: Any, args: tuple[Any, ...], ct: Any, record: bool) -> list[Any]:
        """The cotangents from the forward rule, which is linear in the tangents: its transpose."""
        with Tape() as tape:
            seeds: list[Any] = []

            def seed(x: Any) -> Any:
                if x.__class__ is not Operand or x.place < 0:
                    return _zeros(x) if _is_value(x) else None
                seeds.append(tape.watch(Tensor(_zeros(x.array), x.layout)))
                return seeds[-1]

            gs = [rebuilt(call.args[i], seed) for i in call.argnums]
            rule = self.jvp()
            assert rule is not None
            dy = rule(call.argnums, gs, ans, args, call.kwargs)
        pairs = [(t, c) for t, c in paired(dy, ct) if t.__class__ in TENSORS and t.tape is not None] if dy is not None \
            else []
        if not pairs:
            return [None] * len(call.argnums)
        cotangents = [c if c.__class__ in TENSORS else Tensor(c) for _, c in pairs]
        found = tape.backward([t for t, _ in pairs], cotangents, wanted=seeds, retain=True, record=record)
        assert found is not None
        results = iter(found)
        return [
            rebuilt(call.args[i], lambda x: next(results) if x.__class__ is Operand and x.place >= 0 else None)
            for i in call.argnums
        ]


def _triples(x: Any, g: Any, t: Any) -> Iterator[tuple[Any, Any, Any]]:
    tangents = {id(a): b for a, b in paired(x, t)}
    for a, part in paired(x, g):
        yield a, part, tangents[id(a)]


def _is_value(x: Any) -> bool:
    """Whether an item of a result is an array or a floating number, and so may have a derivative."""
    return x.__class__ in TENSORS or is_array(x) or isinstance(x, float | complex)


def _number(a: Any) -> Any:
    return a if a.shape else a[()]


def _zeros(x: Any) -> Any:
    a = x.array if x.__class__ in TENSORS else as_array(x)
    return _number(np.zeros_like(a))


def _taking(values: Iterator[Any]) -> Function:
    return lambda y: next(values) if _is_value(y) else y


def _whole(call: Call, ct: Parts, record: bool) -> Any:
    """The cotangent of a result with several arrays: zeros where none arrived."""
    numbers = iter(range(len(list(each(call.ans)))))

    def part(y: Any) -> Any:
        if not _is_value(y):
            return y
        found = ct.known.get(next(numbers))
        if found is None:
            zeros = _zeros(y)
            return Tensor(zeros, None if call.layout is None else call.layout.dual) if record else zeros
        return found if not record or call.layout is None else relabel(found, call.layout.dual)

    return rebuilt(call.ans, part)


