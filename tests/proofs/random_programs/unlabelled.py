"""Run a program forward and backward in NumPy without checking layouts.

This simulates a library of collectives with correct adjoints but without any checks. Each cast and collective runs the
adjoint for the layouts that its author intended, and every rank seeds its copy of the objective with 1. Mutation
testing uses it to find out whether a mutant that ringtape refuses would have computed a wrong gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from autograd.layouts.layout import I, Label, P, R, V
from autograd.layouts.partition import parts

from .execute import Seen, groups_along
from .form import Program, Statement
from .serial import addends, part

__all__ = ["unlabelled"]

Arrays = list[Any]
"""One array per rank of a group, or of the mesh; None where the value is absent."""


def unlabelled(program: Program, meant: Mapping[str, Label] | None = None) -> list[Seen]:
    """Every rank's objective and gradients, computed without labels.

    Parameters
    ----------
    program : Program
    meant : mapping from str to Label, optional
        By the name of a statement (a cast or a shard): the label that its author intended for the operand. Default: R.

    Raises
    ------
    ValueError
        Shapes do not match, or a rank has no data where a collective needs it. NumPy raises other errors too.
    """
    return _Ranks(program, meant or {}).seen()


class _Ranks:
    """The values and cotangents of all ranks."""

    def __init__(self, program: Program, meant: Mapping[str, Label]):
        self.program = program
        self.meant = meant
        self.places = [tuple(int(i) for i in p) for p in np.ndindex(*program.sizes)]
        self.values: dict[str, Arrays] = {}
        self.cts: dict[str, Arrays] = {}

    def seen(self) -> list[Seen]:
        program, values = self.program, self.values
        for x in program.leaves:
            held = tuple(V if a in x.unequal else k for a, k in zip(program.axes, x.labels, strict=True))
            whole = addends(x._replace(labels=held), program.sizes, program.seed)
            values[x.name] = [part(whole, held, program.sizes, place) for place in self.places]
        for s in program.statements:
            values[s.name] = self.forward(s)
        loss = values[program.objective]
        if any(y is not None and y.size != 1 for y in loss):
            raise ValueError("the objective is not a scalar")
        self.cts[program.objective] = [None if y is None else np.ones_like(y) for y in loss]
        for s in reversed(program.statements):
            self.backward(s)
        return [
            Seen(place, None if loss[r] is None else float(loss[r]),
                 {x.name: None if x.name not in self.cts else self.cts[x.name][r]
                  for x in program.leaves if x.role != "data"}, {}, {})
            for r, place in enumerate(self.places)
        ]  # fmt: skip

    def groups(self, s: Statement) -> list[list[int]]:
        """All groups of ranks along the axes of a statement, each in order."""
        return groups_along(self.places, [self.program.axes.index(a) for a in s.axes])

    def sizes(self, s: Statement) -> list[int]:
        return [self.program.sizes[self.program.axes.index(a)] for a in s.axes]

    def forward(self, s: Statement) -> Arrays:
        xs = [self.values[n] for n in s.operands]
        result: Arrays = [None] * len(self.places)
        if not s.communicates:
            for rank in range(len(self.places)):
                own = [x[rank] for x in xs]
                result[rank] = None if any(x is None for x in own) else np.asarray(_LOCAL[s.operation][0](s, *own))
            return result
        rule = _Rule(s, self.sizes(s), self.meant.get(s.name, R))
        for group in self.groups(s):
            given = [xs[0][r] for r in group]
            if all(x is None for x in given):
                continue
            for rank, y in zip(group, rule.forward(given), strict=True):
                result[rank] = y
        return result

    def backward(self, s: Statement) -> None:
        cts = self.cts.get(s.name, [None] * len(self.places))
        values = self.values[s.name]
        if not s.communicates:
            for rank, ct in enumerate(cts):
                if ct is None:
                    continue
                own = [self.values[n][rank] for n in s.operands]
                for i, name in enumerate(s.operands):
                    g = _LOCAL[s.operation][1](i, ct, s, *own)
                    self.add(name, rank, _unbroadcast(g, own[i].shape))
            return
        (name,) = s.operands
        rule = _Rule(s, self.sizes(s), self.meant.get(s.name, R))
        for group in self.groups(s):
            xs = [self.values[name][r] for r in group]
            if all(x is None for x in xs):
                continue
            given = [np.zeros_like(values[r]) if cts[r] is None and values[r] is not None else cts[r] for r in group]
            for rank, x, g in zip(group, xs, rule.backward(given, xs), strict=True):
                if x is not None and g is not None:
                    self.add(name, rank, g)

    def add(self, name: str, rank: int, g: Any) -> None:
        known = self.cts.setdefault(name, [None] * len(self.places))
        known[rank] = g if known[rank] is None else known[rank] + g


class _Rule:
    """A collective on the arrays of one group, and its adjoint."""

    def __init__(self, s: Statement, sizes: Sequence[int], meant: Label):
        self.s = s
        self.sizes = sizes
        self.meant = meant
        self.dim = s.dim or 0

    def cut(self, x: Any, dim: int) -> Arrays:
        """Every rank's part of x along a dimension; an earlier axis splits first."""
        pieces = [x]
        for n in self.sizes:
            pieces = [piece[(slice(None),) * dim + (slice(o, o + e),)] for piece in pieces
                      for e, o in zip(*parts(piece.shape[dim], n), strict=True)]  # fmt: skip
        return pieces

    def like(self, x: Any, xs: Arrays, dim: int) -> Arrays:
        """Split x into parts that are as long as the arrays `xs` along a dimension."""
        return np.split(x, np.cumsum([a.shape[dim] for a in xs])[:-1], axis=dim)

    def at_root(self, y: Any, size: int) -> Arrays:
        return [y if r == self.s.root else None for r in range(size)]

    def first(self, xs: Arrays) -> Arrays:
        return [x if r == 0 else np.zeros_like(x) for r, x in enumerate(xs)]

    def swapped(self, xs: Arrays, pairs: Any) -> Arrays:
        result = [np.zeros_like(x) for x in xs]
        for source, target in pairs:
            if xs[source].shape != xs[target].shape:
                raise ValueError("shapes of sender and receiver differ")
            result[target] = xs[source]
        return result

    def forward(self, xs: Arrays) -> Arrays:
        s, p = self.s, len(xs)
        name = s.operation
        if name == "broadcast":
            return [xs[s.root]] * p
        if name == "scatter":
            return self.cut(xs[s.root], self.dim)
        if any(x is None for x in xs):
            raise ValueError("a rank has no data")
        if name in ("all_reduce", "mean"):
            return [_total(xs) / (p if name == "mean" else 1)] * p
        if name == "reduce":
            return self.at_root(_total(xs), p)
        if name == "all_gather":
            return [np.concatenate(xs, axis=self.dim)] * p
        if name == "gather":
            return self.at_root(np.concatenate(xs, axis=self.dim), p)
        if name == "reduce_scatter":
            return self.cut(_total(xs), self.dim)
        if name == "shard":
            return [self.cut(x, self.dim)[r] for r, x in enumerate(xs)]
        if name == "all_to_all":
            rows = [self.cut(x, self.dim) for x in xs]
            return [np.concatenate([row[r] for row in rows], axis=s.dim2) for r in range(p)]
        if name in ("permute", "hand_over"):
            return self.swapped(xs, s.pairs)
        if name == "cast" and s.to is P and self.meant is not V:
            return self.first(xs)
        return xs

    def backward(self, cts: Arrays, xs: Arrays) -> Arrays:
        s, p = self.s, len(xs)
        name = s.operation
        if name == "broadcast":
            return self.at_root(_total(cts) if s.to is R else cts[s.root], p)
        if name == "scatter":
            return self.at_root(np.concatenate(cts, axis=self.dim), p)
        if name in ("all_reduce", "mean"):
            scale = p if name == "mean" else 1
            return [_total(cts) / scale] * p if s.to is R else [ct / scale for ct in cts]
        if name == "reduce":
            return [cts[s.root]] * p
        if name == "all_gather":
            if s.to is R:
                return self.like(_total(cts), xs, self.dim)
            return [self.like(ct, xs, self.dim)[r] for r, ct in enumerate(cts)]
        if name == "gather":
            return self.like(cts[s.root], xs, self.dim)
        if name == "reduce_scatter":
            return [np.concatenate(cts, axis=self.dim)] * p
        if name == "shard":
            if self.meant is I:
                return [np.concatenate(cts, axis=self.dim)] * p
            whole = [[np.zeros_like(ct) for ct in cts] for _ in cts]
            for r, ct in enumerate(cts):
                whole[r][r] = ct
            return [np.concatenate(row, axis=self.dim) for row in whole]
        if name == "all_to_all":
            rows = [self.like(ct, xs, s.dim2 or 0) for ct in cts]
            return [np.concatenate([row[r] for row in rows], axis=self.dim) for r in range(p)]
        if name in ("permute", "hand_over"):
            return self.swapped(cts, [(t, source) for source, t in s.pairs])
        if name == "cast" and self.meant is I and (s.to is R or s.to is V):
            return [_total(cts)] * p
        if name == "cast" and self.meant is R and (s.to is I or s.to is P):
            return self.first(cts)
        return cts


def _total(xs: Arrays) -> Any:
    if len({x.shape for x in xs}) > 1:
        raise ValueError("arrays of different shapes are summed")
    return np.sum(xs, axis=0)


# -- local operations: the function, and the cotangent of operand i --------------------------------------------------


def _unbroadcast(g: Any, shape: tuple[int, ...]) -> Any:
    g = g.sum(axis=tuple(range(g.ndim - len(shape))))
    return g.sum(axis=tuple(i for i, n in enumerate(shape) if n == 1 and g.shape[i] != 1), keepdims=True)


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _softmax_back(i: int, ct: Any, s: Any, x: Any) -> Any:
    y = _softmax(x)
    return y * (ct - (ct * y).sum(axis=-1, keepdims=True))


def _sum_back(i: int, ct: Any, s: Statement, x: Any) -> Any:
    return np.broadcast_to(ct if s.dim is None else np.expand_dims(ct, s.dim), x.shape)


def _head_back(i: int, ct: Any, s: Any, x: Any) -> Any:
    g = np.zeros_like(x)
    g[:1] = ct
    return g


def _join_back(i: int, ct: Any, s: Statement, x: Any, y: Any) -> Any:
    return np.split(ct, [x.shape[s.dim or 0]], axis=s.dim or 0)[i]


_LOCAL: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "keep": (lambda s, x: x, lambda i, ct, s, x: ct),
    "negative": (lambda s, x: -x, lambda i, ct, s, x: -ct),
    "scale": (lambda s, x: x * s.number, lambda i, ct, s, x: ct * s.number),
    "tanh": (lambda s, x: np.tanh(x), lambda i, ct, s, x: ct * (1 - np.tanh(x) ** 2)),
    "sin": (lambda s, x: np.sin(x), lambda i, ct, s, x: ct * np.cos(x)),
    "softmax": (lambda s, x: _softmax(x), _softmax_back),
    "transpose": (lambda s, x: x.T, lambda i, ct, s, x: ct.T),
    "flatten": (lambda s, x: x.reshape(-1), lambda i, ct, s, x: ct.reshape(x.shape)),
    "head": (lambda s, x: x[:1], _head_back),
    "sum": (lambda s, x: x.sum(axis=s.dim), _sum_back),
    "add": (lambda s, x, y: x + y, lambda i, ct, s, x, y: ct),
    "subtract": (lambda s, x, y: x - y, lambda i, ct, s, x, y: -ct if i else ct),
    "multiply": (lambda s, x, y: x * y, lambda i, ct, s, x, y: ct * (x if i else y)),
    "matmul": (lambda s, x, y: x @ y, lambda i, ct, s, x, y: x.T @ ct if i else ct @ y.T),
    "concatenate": (lambda s, x, y: np.concatenate([x, y], axis=s.dim or 0), _join_back),
}
