"""Users' primitives on the tape: see `autograd.extend`.

The arguments and the result may be nested containers of Tensors. A result that is one array is recorded as one node. A
result that is a container is recorded as one node, followed by a node for each array in it, like all operations with
several outputs (`engine.multi_output`).

A function that closes over a Tensor on the tape raises an error if its result depends on it, because rules give
gradients of arguments only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..arrays.device import as_array, is_array, is_inexact
from ..engine import events
from ..engine.forward_mode import transpose
from ..engine.multi_output import append_outputs, find_outputs
from ..engine.primitive import compare_constants
from ..engine.promotion import dtype_to_round_to
from ..engine.pytree import Structure, flatten
from ..engine.recording import Node, Recording, options_of, parents_of
from ..engine.state import state
from ..engine.sweep import Sweep
from ..engine.tensor import TENSORS, Tensor, may_need_gradient, place_off_tape, relabel
from ..errors import NotDifferentiable, ShapeError
from ..layouts.inference import infer, layout_of
from ..layouts.layout import C, Layout
from ..ops.elementwise import astype
from ..ops.shape import broadcast_to, reshape
from .objects import Opaque

__all__ = ["Call", "Extension", "called"]

Function = Callable[..., Any]


def called(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Call a function of plain values; if compiled code in it needs arrays that can be written to, with copies.

    Arrays that a tape saved are read-only, and Cython's ``double[:]`` refuses such an array, even to read it.
    """
    try:
        return function(*args, **kwargs)
    except ValueError as error:
        if "buffer source array is read-only" not in str(error):
            raise
        leaves, structure = flatten(args)
        copies = [x.copy() if isinstance(x, np.ndarray) and not x.flags.writeable else x for x in leaves]
        return function(*structure.rebuild(copies), **kwargs)


class Call:
    """The flattened arguments of one call, and later its result.

    Attributes
    ----------
    leaves : list
        The leaves of the arguments, with plain arrays instead of Tensors.
    operands : list of int
        The indices of the leaves that were Tensors.
    places : list of int
        The place of each leaf on the tape, -1 for one without a gradient.
    argnums : tuple of int
        The arguments with a leaf that requires a gradient.
    ans, ans_structure
        The result's leaves, as plain arrays, and their structure.
    """

    __slots__ = (
        "ans", "ans_structure", "argnums", "found", "kwargs", "layout", "layouts", "leaves", "operands", "places",
        "structure",
    )  # fmt: skip

    ans: list[Any]
    ans_structure: Structure

    def __init__(self, leaves: list[Any], structure: Structure, operands: list[int]):
        self.structure = structure
        self.operands = operands
        self.found: list[Any] = leaves
        self.leaves = [_value(x) if x.__class__ in TENSORS else x for x in leaves]
        self.layouts: list[Layout | None] = [x.layout if x.__class__ in TENSORS else None for x in leaves]
        self.places = [-1] * len(leaves)
        self.argnums: tuple[int, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.layout: Layout | None = None  # the result's

    @classmethod
    def of(cls, args: tuple[Any, ...]) -> Call | None:
        """The call with these arguments; None if no Tensor is among them."""
        leaves, structure = flatten(args)
        operands = [i for i, x in enumerate(leaves) if x.__class__ in TENSORS]
        for x in map(leaves.__getitem__, operands):
            if x.tape is not None and not x.tape.released(x.node):
                x.tape.lock(x.array)  # the user's function gets this array
        return cls(leaves, structure, operands) if operands else None

    def raw(self) -> tuple[Any, ...]:
        """The arguments with plain arrays."""
        args: tuple[Any, ...] = self.structure.rebuild(self.leaves)
        return args

    def lifted(self, recording: Recording) -> tuple[Any, ...]:
        """The arguments with Tensors at their places on a tape."""
        leaves = list(self.leaves)
        for i in self.operands:
            p = self.places[i]
            at = (recording, p) if p >= 0 else ()
            leaves[i] = Tensor(leaves[i], self.layouts[i], *at)
        args: tuple[Any, ...] = self.structure.rebuild(leaves)
        return args

    def enter(self, recording: Recording) -> bool:
        """Enter the operands on a tape, and drop the Tensors. Returns whether an operand requires a gradient."""
        for i in self.operands:
            x = self.found[i]
            if may_need_gradient(x) and is_inexact(x.array.dtype):
                self.places[i] = x.node if x.tape is recording else recording.enter(x)
            if self.places[i] < 0:
                recording.lock(x.array)
        self.found = []
        self.argnums = tuple(i for i, (a, b) in enumerate(self.spans()) if max(self.places[a:b], default=-1) >= 0)
        return bool(self.argnums)

    def has_objects(self) -> bool:
        """Whether an argument is an object, which may hold Tensors that are arguments, too."""
        return any(not (_is_value(x) or isinstance(x, int | str | bytes)) for x in self.leaves)

    def known_places(self, recording: Recording) -> set[int]:
        """The places of the operands on a tape."""
        known = recording.leaves
        tensors = [self.found[i] for i in self.operands]
        return {x.node if x.tape is recording else known.get(id(x), -1) for x in tensors}

    def spans(self) -> list[tuple[int, int]]:
        """The range of leaves of each argument."""
        spans, start = [], 0
        for part in self.structure.parts:
            spans.append((start, start + part.count))
            start += part.count
        return spans

    def trees(self, argnums: Sequence[int], make: Function) -> list[Any]:
        """Containers like the arguments `argnums`, whose leaves are ``make(index of the leaf)``."""
        spans, parts = self.spans(), self.structure.parts
        return [parts[k].rebuild([make(i) for i in range(*spans[k])]) for k in argnums]

    def parts(self, name: str, argnums: Sequence[int], trees: Sequence[Any]) -> list[tuple[int, Any]]:
        """The (index, leaf) pairs of containers like the arguments `argnums`. A None has no leaves."""
        spans = self.spans()
        found = []
        for k, tree in zip(argnums, trees, strict=True):
            if tree is not None:
                structure = self.structure.parts[k]
                items = structure.match(_as_container(tree, structure), f"what {name}'s rule gave for argument {k}")
                found += list(zip(range(*spans[k]), items, strict=True))
        return found


def _cotangents(rule: Function, argnums: tuple[int, ...], ans: Any, args: Any, kwargs: Any, ct: Any) -> list[Any]:
    """The cotangents of arguments by a reverse rule, as one call of a captured step."""
    found: list[Any] = called(lambda ans, args, ct: list(rule(argnums, ans, args, kwargs)(ct)), ans, args, ct)
    return found


class Extension:
    """A user's function as an operation of the tape."""

    communicates = False
    makes_rows = True  # a captured step repeats its calls
    dims = None  # how dimensions map to the result is unknown

    def __init__(self, name: str, function: Function, vjp: Function, jvp: Function):
        self.name = name
        self.function = function
        self.vjp, self.jvp = vjp, jvp  # functions that look up the rules, which may be defined later

    def __repr__(self) -> str:
        return f"<primitive {self.name}>"

    @property
    def has_jvp(self) -> bool:
        """Whether it has a forward rule."""
        return self.jvp() is not None

    def letters(self, n: int) -> str:
        """The letters for layout inference: nonlinear in each operand."""
        return "N" * n

    def operand_name(self, i: int) -> str:
        """The name of operand i in error messages."""
        return f"operand {i}"

    # -- the call ------------------------------------------------------------------------------------------------
    def apply(self, call: Call, kwargs: dict[str, Any]) -> Any:
        """Run the function on plain values and record it."""
        call.kwargs = {key: self._plain(key, value) for key, value in kwargs.items()}
        args = call.raw()
        recording, state.recording = state.recording, None  # the function's own operations are not recorded
        recorder = state.recorder
        try:
            if recorder is None or not recorder.records:
                result = called(self.function, *args, **call.kwargs)
            else:
                recorder.read_all([call.found[i] for i in call.operands])
                result = recorder.call(called, (self.function, *args), call.kwargs, name=self.name, is_own=True)
        finally:
            state.recording = recording
        ys, call.ans_structure = flatten(result)
        if recording is not None and any(y.__class__ in TENSORS for y in ys):
            ys = self._recorded(call, args, recording)
        call.layout = self._layout(call)
        call.ans = [_value(y) if _is_value(y) else y for y in ys]
        if recorder is not None:
            self._require_known(recorder, call.ans)
        if recording is None or not call.enter(recording) or not any(map(_differentiable, call.ans)):
            xs = call.found
            tensors = [
                Tensor(a, call.layout, None, place_off_tape(a, xs)) if _is_value(a) else a for a in call.ans
            ]  # fmt: skip
            return call.ans_structure.rebuild(tensors)
        if not (events.listeners and events.repeated()):
            self._require_rule(call)
        whole = recording.append((self, None, (), tuple(call.places), (call,), None, None))
        if call.ans_structure.kind is None:
            return Tensor(call.ans[0], call.layout, recording, whole)
        outputs = append_outputs(recording, whole, call.ans, [call.layout] * len(call.ans))
        return call.ans_structure.rebuild(outputs)

    def _require_known(self, recorder: Any, values: Sequence[Any]) -> None:
        """Refuse results that a row of a captured step does not give as they are."""
        if recorder.records and any(_is_value(x) and recorder.slot_of(x) is None for x in values):
            recorder.refuse(
                f"a result of {self.name} or of its vjp is no array of the shape and dtype that its operation needs, "
                "alone or in a tuple or list,", "such arrays, and a vjp in the place of a jvp"
            )  # fmt: skip

    def _require_rule(self, call: Call) -> None:
        if self.vjp() is None and self.jvp() is None:
            raise NotDifferentiable(
                f"{self.name} is to be differentiated with respect to argument"
                f"{'s' if len(call.argnums) > 1 else ''} {', '.join(map(str, call.argnums))}, and has no rule. "
                f"Needed: its vjp or its jvp. Fix: defvjp({self.name}, lambda ans, *args: lambda g: ...), or "
                f"stop_gradient on what is passed"
            )

    def _plain(self, key: str, value: Any) -> Any:
        """A keyword argument with plain arrays, because it is not differentiated."""
        leaves, structure = flatten(value)
        for i, x in enumerate(leaves):
            if x.__class__ in TENSORS:
                if state.recording is not None and x.requires_grad:
                    raise NotDifferentiable(
                        f"{self.name}({key}=...) was given a value that the tape follows, by keyword; keyword "
                        "arguments have no rules, so its gradient would be lost. Fix: pass it by position, or "
                        "stop_gradient(x)"
                    )
                leaves[i] = _value(x)
        return structure.rebuild(leaves)

    def _recorded(self, call: Call, args: Any, recording: Recording) -> list[Any]:
        """Run the function again and record it, to refuse Tensors that it closes over; return its results."""
        start = len(recording.nodes)
        ys, _ = flatten(self.function(*args, **call.kwargs))
        followed = [
            y.node if y.tape is recording else recording.enter(y)
            for y in ys if y.__class__ in TENSORS and y.requires_grad
        ]  # fmt: skip
        sources = _sources(recording, followed, start)
        if sources and not (call.has_objects() and sources <= call.known_places(recording)):
            raise NotDifferentiable(
                f"{self.name} closes over a value that the tape follows: no rule gives its gradient, so it would "
                "be lost. Fix: pass it as an argument, or stop_gradient(x)"
            )
        return ys

    def _layout(self, call: Call) -> Layout | None:
        """The result's layout, inferred for a function that is nonlinear in all operands."""
        grid = state.grid
        for layout in call.layouts:
            grid = layout.grid if layout is not None else grid
        if grid is None:
            return None
        for i in call.operands:
            call.layouts[i] = call.found[i].labelled(grid)
        which = [i for i, x in enumerate(call.leaves) if _has_values(x)]
        arrays = [call.leaves[i] for i in which]
        layouts: list[Any] = [call.layouts[i] or layout_of(call.leaves[i], grid) for i in which]
        shapes = [tuple(int(n) for n in np.shape(a)) for a in arrays]
        out = infer(self, layouts, shapes, [_differentiable(a) for a in arrays], (), arrays)
        if not state.in_rules and not state.distribution.is_alone and max(grid.sizes) > 1:
            words = [x for x in flatten(call.kwargs)[0] if _has_values(x)]
            constant = grid.uniform(C)
            compare_constants(self.name, out, [*layouts, *(constant for _ in words)], [*arrays, *words])
        return out

    # -- the sweeps ----------------------------------------------------------------------------------------------
    def _values(self, call: Call, recording: Recording | None, place: int) -> tuple[Any, tuple[Any, ...]]:
        """The result and the arguments for the rules: plain arrays, or Tensors on the tape for a recorded sweep."""
        if recording is None:
            return call.ans_structure.rebuild(call.ans), call.raw()
        if call.ans_structure.kind is None:
            return Tensor(call.ans[0], call.layout, recording, place), call.lifted(recording)
        ans = find_outputs(recording, place, call.ans, [call.layout] * len(call.ans))
        return call.ans_structure.rebuild(ans), call.lifted(recording)

    def _cotangent(self, call: Call, ct: Any, sweep: Sweep) -> Any:
        """The cotangent for the rule: a container like the result, with zeros where there is no cotangent."""
        known = {0: ct} if call.ans_structure.kind is None else ct.found
        dual = None if call.layout is None else call.layout.dual
        found: list[Any] = []
        for i, a in enumerate(call.ans):
            g: Any = known.get(i)
            if g is None and _is_value(a):
                g = Tensor(_zeros(a), dual) if sweep.record else _zeros(a)
            found.append(relabel(g, dual) if g.__class__ in TENSORS and dual is not None else g)
        return call.ans_structure.rebuild(found)

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        """One step of the reverse sweep."""
        (call,) = options_of(node)
        if sweep.wanted is not None and max(call.places) < sweep.start:
            return  # no operand is in the interval, so the rule is not needed
        self._require_rule(call)
        ans, args = self._values(call, sweep.recording if sweep.record else None, sweep.place)
        ct = self._cotangent(call, ct, sweep)
        rule, recorder = self.vjp(), state.recorder
        if rule is None:
            if recorder is not None and recorder.records:
                recorder.refuse(f"{self.name} has a jvp alone", "defvjp")
            cts = self._transposed_jvp(call, ans, args, ct, sweep.record)
        elif recorder is None or not recorder.records or sweep.record:
            cts = called(lambda ans, args, ct: list(rule(call.argnums, ans, args, call.kwargs)(ct)), ans, args, ct)
        else:
            given = (rule, call.argnums, ans, args, call.kwargs, ct)
            cts = recorder.call(_cotangents, given, name=f"{self.name}, backward", is_own=True)
        for i, g in call.parts(self.name, call.argnums, cts):
            if call.places[i] >= 0 and g is not None:
                g = self._fit(g, call, i, sweep.record)
                if recorder is not None and not sweep.record:
                    self._require_known(recorder, [g])
                sweep.general = sweep.general or dtype_to_round_to(g) is not None
                sweep.add(call.places[i], g)

    def push(self, node: Node, carried: list[Any], start: int, record: bool, recording: Recording, place: int) -> Any:
        """One step of forward mode."""
        (call,) = options_of(node)
        given = {i: carried[p - start] if p >= max(start, 0) else None for i, p in enumerate(call.places)}
        argnums = [k for k, span in enumerate(call.spans()) if any(given[i] is not None for i in range(*span))]
        tangents: list[Any] | None = None
        if argnums:
            self._require_rule(call)
            ans, args = self._values(call, recording if record else None, place)

            def tangent(i: int) -> Any:
                x = call.leaves[i]
                if given[i] is not None or not _is_value(x):
                    return given[i]
                return Tensor(_zeros(x), call.layouts[i]) if record else _zeros(x)

            gs = call.trees(argnums, tangent)
            rule = self.jvp()
            if rule is not None:
                dy = rule(argnums, gs, ans, args, call.kwargs)
            else:
                dy = self._transposed_vjp(call, argnums, gs, ans, args, record)
            if dy is not None:
                found = call.ans_structure.match(dy, f"the tangent that {self.name}'s rule gave")
                tangents = [self._tangent(t, call, record) for t in found]
        return tangents if tangents is None or call.ans_structure.kind is not None else tangents[0]

    def _tangent(self, t: Any, call: Call, record: bool) -> Any:
        if not _is_value(t):
            return None
        if not record:
            return t.array if t.__class__ in TENSORS else as_array(t)
        t = t if t.__class__ in TENSORS else Tensor(as_array(t), call.layout)
        return t if call.layout is None else relabel(t, call.layout)

    def _fit(self, g: Any, call: Call, i: int, record: bool) -> Any:
        """A cotangent with the leaf's shape and dtype; a Tensor if the sweep is recorded."""
        x = call.leaves[i]
        if not _is_value(x):  # an object: see `objects`
            return g
        if g.__class__ not in TENSORS:
            g = as_array(g)
        elif not record:
            g = g.array
        if g.shape != x.shape:
            if g.size == x.size:
                g = reshape(g, x.shape)
            elif not g.shape:
                g = broadcast_to(g, x.shape)  # the same number for every element
            else:
                raise ShapeError(
                    f"{self.name}'s vjp gave a cotangent of shape {g.shape} for an argument of shape {x.shape}. "
                    "Needed: the argument's shape. Fix: sum it over the dimensions along which the argument is repeated"
                )
        if g.dtype != x.dtype:
            g = astype(g, x.dtype)  # for a real operand: the real part of a complex cotangent
        if not record:
            return g
        layout = call.layouts[i]
        g = g if g.__class__ in TENSORS else Tensor(g, None if layout is None else layout.dual)
        return g if layout is None else relabel(g, layout.dual)

    # -- one mode from the other's rule ---------------------------------------------------------------------------
    def _transposed_vjp(
        self, call: Call, argnums: Sequence[int], gs: list[Any], ans: Any, args: tuple[Any, ...], record: bool
    ) -> Any:
        """The tangent, by transposing the reverse rule, which is linear in the cotangent."""
        rule = self.vjp()
        given = dict(call.parts(self.name, argnums, gs))
        dual = None if call.layout is None else call.layout.dual

        def linear(cts: list[Any]) -> list[Any]:
            found = list(rule(call.argnums, ans, args, call.kwargs)(call.ans_structure.rebuild(cts)))
            parts = dict(call.parts(self.name, call.argnums, found))
            linked = {i for i, g in parts.items() if g.__class__ in TENSORS and call.places[i] >= 0}
            return [self._fit(parts[i], call, i, True) if i in linked else None for i in given]

        zeros = [Tensor(_zeros(a), dual) if _differentiable(a) else None for a in call.ans]
        return self._rebuilt(call.ans_structure, transpose(linear, zeros, list(given.values()), record), zeros)

    def _transposed_jvp(self, call: Call, ans: Any, args: tuple[Any, ...], ct: Any, record: bool) -> list[Any]:
        """The cotangents, by transposing the forward rule, which is linear in the tangents."""
        if self in _transposing.operations:
            raise NotDifferentiable(
                f"{self.name} has no vjp, and its jvp is the function itself, so that reverse mode has nothing to "
                f"transpose. Fix: defvjp({self.name}, lambda ans, *args: lambda g: ...)"
            )
        rule = self.jvp()

        def linear(tangents: list[Any]) -> list[Any]:
            gs = call.trees(call.argnums, lambda i: plain[i] if tangents[i] is None else tangents[i])
            dy = rule(call.argnums, gs, ans, args, call.kwargs)
            if dy is None:
                return [None] * len(call.ans)
            return call.ans_structure.match(dy, f"the tangent that {self.name}'s rule gave")

        plain = [_zeros(x) if _is_value(x) else x for x in call.leaves]
        zeros = [
            Tensor(z, layout) if p >= 0 else None for z, p, layout in zip(plain, call.places, call.layouts, strict=True)
        ]
        _transposing.operations = (*_transposing.operations, self)
        try:
            cts = transpose(linear, zeros, call.ans_structure.match(ct, "the cotangent"), record)
        finally:
            _transposing.operations = _transposing.operations[:-1]
        found = self._rebuilt(call.structure, cts, zeros)
        return [None if found is None else found[k] for k in call.argnums]

    def _rebuilt(self, structure: Structure, found: Sequence[Any], zeros: Sequence[Any]) -> Any:
        """The results of `transpose` as a container, with zeros for None; None if all of them are None."""
        if all(g is None for g in found):
            return None
        leaves = [z.array if g is None and z is not None else g for g, z in zip(found, zeros, strict=True)]
        return structure.rebuild(leaves)


class _Transposing(threading.local):
    """The operations of this thread whose forward rule is being transposed."""

    operations: tuple[Any, ...] = ()


_transposing = _Transposing()


def _sources(recording: Recording, places: list[int], start: int) -> set[int]:
    """The places that the values at `places` depend on and that were recorded before `start`, or entered since."""
    found: set[int] = set()
    seen: set[int] = set()
    left = places
    while left:
        place = left.pop()
        node = recording.nodes[place]
        if place < start or node is None or not parents_of(node):
            found.add(place)
        elif place not in seen:
            seen.add(place)
            left += [parent for parent in parents_of(node) if parent >= 0]
    return found


def _as_container(tree: Any, structure: Structure) -> Any:
    """The result of a rule, with the rows of an array or the items of an iterable where the argument is a sequence."""
    kind = structure.kind
    if tree is None or kind is None or kind is type(None):
        return tree
    if issubclass(kind, Mapping):
        if not isinstance(tree, Mapping):
            return tree
        parts = structure.children()
        return {key: _as_container(x, parts[key]) if key in parts else x for key, x in tree.items()}
    is_scalar = hasattr(tree, "shape") and not tree.shape
    if is_scalar or isinstance(tree, Mapping) or not isinstance(tree, Iterable):
        return tree
    items = list(tree)
    if len(items) != len(structure.parts):
        return tree
    return [_as_container(x, part) for x, part in zip(items, structure.parts, strict=True)]


def _has_values(x: Any) -> bool:
    return is_array(x) or isinstance(x, int | float | complex)


def _is_value(x: Any) -> bool:
    """Whether a leaf is an array or a floating or complex number."""
    return x.__class__ in TENSORS or is_array(x) or isinstance(x, float | complex)


def _differentiable(x: Any) -> bool:
    return _is_value(x) and is_inexact(x.dtype if hasattr(x, "dtype") else as_array(x).dtype)


def _value(x: Any) -> Any:
    """A leaf as a plain array, or as a NumPy scalar if it has no dimensions, as users' functions expect."""
    if isinstance(x, Opaque):
        return x.held
    a = x.array if x.__class__ in TENSORS else as_array(x)
    return a if a.shape else a[()]


def _zeros(x: Any) -> Any:
    return _value(np.zeros_like(_value(x)))
