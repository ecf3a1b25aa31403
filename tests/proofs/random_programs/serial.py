"""Evaluate a program serially in NumPy, on whole values and without ranks; gradients come from the complex step.

A value is one array. Its label only says how ranks would hold it, so most collectives and casts are the identity here.
Along V axes the ranks have different values, which are stacked along leading dimensions, one per mesh axis.

Derivatives are found by evaluating the program at ``x + ih`` for every element of every leaf at once (Squire and Trapp,
"Using complex variables to estimate derivatives of real functions", 1998). No adjoint is involved that could have the
same error as ringtape's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd.layouts.layout import Label, P, Rooted, Shard, V
from autograd.layouts.partition import level

from .form import LeafForm, Program, Statement
from .rules import Kind, kinds

__all__ = ["Answer", "addends", "dense", "part"]

_STEP = 1e-40  # h: the error is of order h**2, and there is no cancellation, since nothing is subtracted


class Answer:
    """The objective of a program, and the gradient of every leaf that is not data.

    Attributes
    ----------
    objective : float
    gradients : dict of name -> array
        The leading dimensions are the mesh axes (of extent 1 unless the leaf is V there), then the whole value's shape.
    """

    def __init__(self, objective: float, gradients: dict[str, np.ndarray]):
        self.objective = objective
        self.gradients = gradients


def addends(leaf: LeafForm, sizes: Sequence[int], seed: int) -> np.ndarray:
    """The values of a leaf on all ranks.

    The leading dimensions are the mesh axes, of full extent where ranks differ (V or P) and 1 elsewhere. Then comes the
    shape of the whole value.
    """
    own = [n if label is V or label is P else 1 for label, n in zip(leaf.labels, sizes, strict=True)]
    rng = np.random.default_rng([seed, *leaf.name.encode()])
    return rng.standard_normal((*own, *leaf.shape))


def part(values: np.ndarray, labels: Sequence[Label], sizes: Sequence[int], place: Sequence[int]) -> Any:
    """The array of the rank at `place`, taken from values as `addends` returns them; None where it is absent."""
    if any(isinstance(x, Rooted) and x.root != at for x, at in zip(labels, place, strict=True)):
        return None
    front = values.shape[: len(sizes)]
    own = values[tuple(at if n > 1 else 0 for at, n in zip(place, front, strict=True))]
    for label, size, at in zip(labels, sizes, place, strict=True):  # an earlier axis splits first
        if isinstance(label, Shard):
            extents = level(own.shape[label.dim], size, label.unit)
            start = sum(extents[:at])
            own = own[(slice(None),) * label.dim + (slice(start, start + extents[at]),)]
    return own


def dense(program: Program) -> Answer:
    """Evaluate a program serially: its objective and gradients."""
    known = kinds(program)
    wanted = [x for x in program.leaves if x.role != "data"]
    values: dict[str, np.ndarray] = {}
    whole: dict[str, np.ndarray] = {}
    for x in program.leaves:
        a = addends(x, program.sizes, program.seed)
        whole[x.name] = a.sum(axis=tuple(k for k, label in enumerate(x.labels) if label is P), keepdims=True)
        values[x.name] = whole[x.name][None].astype(complex)
    count = sum(whole[x.name].size for x in wanted)
    at = 0
    for x in wanted:
        a = whole[x.name]
        moved = np.repeat(values[x.name], max(count, 1), axis=0)
        flat = moved.reshape(moved.shape[0], -1)
        flat[np.arange(at, at + a.size), np.arange(a.size)] += 1j * _STEP
        values[x.name], at = moved, at + a.size
    evaluate = _Evaluator(program)
    for s in program.statements:
        values[s.name] = evaluate.value(s, [values[n] for n in s.operands], [known[n] for n in s.operands])
    y = np.broadcast_to(values[program.objective].reshape(-1), (max(count, 1),))
    gradients, at = {}, 0
    for x in wanted:
        a = whole[x.name]
        gradients[x.name] = (y.imag[at : at + a.size] / _STEP).reshape(a.shape)
        at += a.size
    return Answer(float(y.real[0]), gradients)


class _Evaluator:
    """Every operation in NumPy, on arrays of shape (complex steps, one extent per mesh axis, whole shape)."""

    def __init__(self, program: Program):
        self.axes = program.axes
        self.sizes = program.sizes
        self.front = 1 + len(program.sizes)

    def value(self, s: Statement, xs: list[np.ndarray], known: list[Kind]) -> np.ndarray:
        if s.communicates:
            return self.communication(s, xs[0], known[0])
        return np.asarray(getattr(self, s.operation)(s, *xs))

    # -- local operations ----------------------------------------------------------------------------------------
    def negative(self, s: Statement, x: Any) -> Any:
        return -x

    def scale(self, s: Statement, x: Any) -> Any:
        return x * s.number

    def tanh(self, s: Statement, x: Any) -> Any:
        t = np.tanh(x.real)  # NumPy's complex tanh can lose the tiny imaginary part
        return t + 1j * x.imag * (1 - t * t)

    def sin(self, s: Statement, x: Any) -> Any:
        return np.sin(x.real) + 1j * x.imag * np.cos(x.real)

    def softmax(self, s: Statement, x: Any) -> Any:
        shifted = x - x.real.max(axis=-1, keepdims=True)
        e = np.exp(shifted.real) * (1 + 1j * shifted.imag)
        return e / e.sum(axis=-1, keepdims=True)

    def transpose(self, s: Statement, x: Any) -> Any:
        return np.swapaxes(x, -1, -2)

    def flatten(self, s: Statement, x: Any) -> Any:
        return x.reshape((*x.shape[:-2], -1))

    def head(self, s: Statement, x: Any) -> Any:
        return x[(slice(None),) * self.front + (slice(0, 1),)]

    def sum(self, s: Statement, x: Any) -> Any:
        return x.sum(axis=tuple(range(self.front, x.ndim)) if s.dim is None else self.front + s.dim)

    def lifted(self, *xs: Any) -> list[Any]:
        ndim = max(x.ndim for x in xs)
        return [x.reshape(x.shape[: self.front] + (1,) * (ndim - x.ndim) + x.shape[self.front :]) for x in xs]

    def add(self, s: Statement, *xs: Any) -> Any:
        x, y = self.lifted(*xs)
        return x + y

    def subtract(self, s: Statement, *xs: Any) -> Any:
        x, y = self.lifted(*xs)
        return x - y

    def multiply(self, s: Statement, *xs: Any) -> Any:
        x, y = self.lifted(*xs)
        return x * y

    def matmul(self, s: Statement, x: Any, w: Any) -> Any:
        return x @ w

    def concatenate(self, s: Statement, x: Any, y: Any) -> Any:
        front = np.broadcast_shapes(x.shape[: self.front], y.shape[: self.front])
        x, y = (np.broadcast_to(a, front + a.shape[self.front :]) for a in (x, y))
        return np.concatenate([x, y], axis=self.front + (s.dim or 0))

    # -- collectives and casts -----------------------------------------------------------------------------------
    def communication(self, s: Statement, x: np.ndarray, kind: Kind) -> np.ndarray:
        """The value after a collective or cast: unchanged, unless V values or shards are combined or created."""
        along = [self.axes.index(a) for a in s.axes]
        one = kind.labels[along[0]]
        size = int(np.prod([self.sizes[k] for k in along]))
        fronts = tuple(1 + k for k in along)
        addends_of = s.operation in ("all_reduce", "mean", "declare_partial", "reduce", "reduce_scatter")
        addends_of = addends_of or (s.operation == "cast" and s.to is P)
        if isinstance(one, Shard) and (addends_of or (s.operation == "cast" and s.to is V)):
            x, one = self.split(x, along[0], one.dim), V
        if one is V:
            x = self.spread(x, along)
            if addends_of:
                x = x.sum(axis=fronts, keepdims=True)
            elif s.operation in ("all_gather", "gather"):
                x = self.concatenated(x, along, s.dim or 0)
            elif s.operation in ("broadcast", "scatter"):
                root = np.unravel_index(s.root, [self.sizes[k] for k in along])
                for k, at in zip(fronts, root, strict=True):
                    x = x.take([at], axis=k)
            elif s.operation in ("permute", "hand_over"):
                places = [tuple(map(int, p)) for p in np.ndindex(*(self.sizes[k] for k in along))]
                y = np.zeros_like(x)
                for source, target in s.pairs:
                    y[self.at(along, places[target])] = x[self.at(along, places[source])]
                x = y
            elif s.operation == "all_to_all":
                x = self.exchanged(x, along, s.dim or 0, s.dim2 or 0)
            elif isinstance(s.to, Shard):
                x = self.concatenated(x, along, s.to.dim)
        elif s.operation == "cast" and s.to is V:
            x = self.spread(x, along)
        return x / size if s.operation == "mean" else x

    def spread(self, x: np.ndarray, along: Sequence[int]) -> np.ndarray:
        """Give every rank along some axes a value of its own, by repeating equal copies."""
        shape = list(x.shape)
        for k in along:
            shape[1 + k] = self.sizes[k]
        return np.broadcast_to(x, shape)

    def concatenated(self, x: np.ndarray, along: Sequence[int], dim: int) -> np.ndarray:
        """Concatenate the values of the ranks along a dimension."""
        at = self.front + dim
        y = np.moveaxis(x, [1 + k for k in along], range(at - len(along), at))
        shape = list(x.shape)
        for k in along:
            shape[at] *= shape[1 + k]
            shape[1 + k] = 1
        return y.reshape(shape)

    def split(self, x: np.ndarray, k: int, dim: int) -> np.ndarray:
        """Split a dimension into equal parts, one value for each rank along axis k."""
        at, p = self.front + dim, self.sizes[k]
        y = x.reshape((*x.shape[:at], p, x.shape[at] // p, *x.shape[at + 1 :]))
        return np.moveaxis(y, at, 1 + k).squeeze(axis=2 + k)

    def exchanged(self, x: np.ndarray, along: Sequence[int], split: int, concat: int) -> np.ndarray:
        """all_to_all: rank r gets part r along `split` of every rank's value, concatenated along `concat`."""
        shape = [self.sizes[k] for k in along]
        places = [tuple(int(i) for i in p) for p in np.ndindex(*shape)]
        values = [x[self.at(along, p)] for p in places]
        rows = [np.split(v, len(places), axis=self.front + split) for v in values]
        received = [np.concatenate([row[r] for row in rows], axis=self.front + concat) for r in range(len(places))]
        front = list(x.shape[: self.front])
        y = np.zeros((*front, *received[0].shape[self.front :]), complex)
        for p, value in zip(places, received, strict=True):
            y[self.at(along, p)] = value
        return y

    def at(self, along: Sequence[int], place: Sequence[int]) -> tuple[slice, ...]:
        index = [slice(None)] * self.front
        for k, i in zip(along, place, strict=True):
            index[1 + k] = slice(i, i + 1)
        return tuple(index)
