"""Families of cases of the operations that are not elementwise, and `draw`, which returns a random case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy

import autograd.numpy as np
from autograd import ops
from autograd.engine.primitive import registry

from .base import CASES, FAMILIES, Argument, Case, Use, apart, family, normal
from .choices import Pick

__all__ = ["draw"]


def draw(operation: str, pick: Pick) -> Case:
    """Return a random case of an operation: from its families, elementwise with random shapes, or a declared one."""
    declared = [c for c in CASES if c.operation == operation]
    direct = [c for c in declared if c.f is registry.get(operation) and all(isinstance(a, Argument) for a in c.args)]
    families = FAMILIES.get(operation, [])
    if families and (not declared or pick.integer(0, 3)):
        use = pick.one_of(families)(pick)
        return Case(operation, f"drawn {[getattr(a, 'shape', '?') for a in use.args]}", use.f, use.reference, use.args)
    if direct and registry[operation].elementwise and pick.integer(0, 3):
        c = direct[0]
        shapes = pick.broadcastable(len(c.args))
        args = tuple(replace(a, shape=s) for a, s in zip(c.args, shapes, strict=True))  # type: ignore[type-var]  # see `direct`
        return Case(operation, f"drawn {shapes}", c.f, c.numpy, args)
    return pick.one_of(declared)


# -- families --------------------------------------------------------------------------------------------------------
for _name in ("sum", "mean", "max", "min"):

    @family(_name)
    def _reduction(pick: Pick, name: str = _name) -> Use:
        shape = pick.shape(min_side=0 if name == "sum" else 1)
        axis, keepdims = pick.axes(shape), pick.boolean()
        ours, theirs = getattr(np, name), getattr(numpy, name)
        return Use(lambda x: ours(x, axis=axis, keepdims=keepdims), lambda x: theirs(x, axis=axis, keepdims=keepdims),
                   (apart if name in ("max", "min") else normal)(*shape))  # fmt: skip


@family("matmul")
def _matmul(pick: Pick) -> Use:
    batches = pick.broadcastable(2, max_dims=2, max_side=2)
    m, k, n = (pick.integer(0, 3) for _ in range(3))
    left = (k,) if not batches[0] and pick.boolean() else (*batches[0], m, k)
    right = (k,) if not batches[1] and pick.boolean() else (*batches[1], k, n)
    return Use(lambda a, b: a @ b, numpy.matmul, normal(*left), normal(*right))


@family("linear")
def _linear(pick: Pick) -> Use:
    m, k, n = (pick.integer(0, 3) for _ in range(3))
    return Use(ops.linear, lambda x, w, b: x @ w + b, normal(m, k), normal(k, n), normal(n))


@family("contract")
def _contract(pick: Pick) -> Use:
    m, k, n = (pick.shape(max_dims=2, max_side=3) for _ in range(3))
    count = len(k)
    return Use(lambda a, b: ops.contract(a, b, options=(count,)), lambda a, b: numpy.tensordot(a, b, count),
               normal(*m, *k), normal(*k, *n))  # fmt: skip


@family("reshape")
def _reshape(pick: Pick) -> Use:
    shape = pick.shape(max_dims=4)
    order = pick.permutation(len(shape))
    cut = pick.integer(0, len(shape))
    moved = tuple(shape[i] for i in order)
    to = (int(numpy.prod(moved[:cut])), *moved[cut:])
    return Use(lambda x: np.reshape(x, to), lambda x: numpy.reshape(x, to), normal(*shape))


@family("transpose")
def _transpose(pick: Pick) -> Use:
    shape = pick.shape(max_dims=4)
    axes = pick.permutation(len(shape))
    return Use(lambda x: np.transpose(x, axes), lambda x: numpy.transpose(x, axes), normal(*shape))


@family("broadcast_to")
def _broadcast_to(pick: Pick) -> Use:
    (source,) = pick.broadcastable(1)
    to = (*pick.shape(max_dims=1), *(pick.integer(0, 3) if n == 1 else n for n in source))
    return Use(lambda x: np.broadcast_to(x, to), lambda x: numpy.broadcast_to(x, to), normal(*source))


@family("expand_dims")
def _expand_dims(pick: Pick) -> Use:
    shape = pick.shape()
    axis = pick.integer(-len(shape) - 1, len(shape))
    return Use(lambda x: np.expand_dims(x, axis), lambda x: numpy.expand_dims(x, axis), normal(*shape))


@family("squeeze")
def _squeeze(pick: Pick) -> Use:
    shape = list(pick.shape())
    shape.insert(pick.integer(0, len(shape)), 1)
    return Use(np.squeeze, numpy.squeeze, normal(*shape))


@family("concatenate")
def _concatenate(pick: Pick) -> Use:
    shape = pick.shape(min_dims=1)
    axis = pick.axis(shape)
    parts = []
    for _ in range(pick.integer(1, 3)):
        part = list(shape)
        part[axis] = pick.integer(0, 2)
        parts.append(tuple(part))
    return Use(lambda *xs: np.concatenate(xs, axis), lambda *xs: numpy.concatenate(xs, axis),
               *(normal(*part) for part in parts))  # fmt: skip


def _key(pick: Pick, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return a random index: for some leading dimensions a slice, an integer, and at most one index array or mask."""
    key: list[Any] = []
    arrays = 0
    for n in shape[: pick.integer(0, len(shape))]:
        kind = pick.integer(0, 3 if n and not arrays else 1 if n else 0)
        if kind == 0:
            key.append(slice(pick.one_of((None, 1, -1)), pick.one_of((None, 2)), pick.one_of((None, -1, 2))))
        elif kind == 1:
            key.append(pick.integer(-n, n - 1))
        else:
            arrays += 1
            picked = [pick.integer(0, n - 1) for _ in range(pick.integer(0, 3))]
            key.append(numpy.array(picked, int) if kind == 2 else numpy.isin(numpy.arange(n), picked))
    return tuple(key)


@family("getitem")
def _getitem(pick: Pick) -> Use:
    shape = pick.shape()
    key = _key(pick, shape)
    return Use(lambda x: x[key], lambda x: x[key], normal(*shape))


@family("put")
def _put(pick: Pick) -> Use:
    shape = pick.shape()
    key = _key(pick, shape)
    part = numpy.shape(numpy.zeros(shape)[key])

    def theirs(x: Any) -> Any:
        out = numpy.zeros(shape, x.dtype)
        numpy.add.at(out, key, x)
        return out

    return Use(lambda x: registry["put"](x, options=(key, shape)), theirs, normal(*part))


@family("where")
def _where(pick: Pick) -> Use:
    c, a, b = pick.broadcastable(3)
    mask = numpy.random.default_rng(pick.integer(0, 9)).random(c) < 0.5
    return Use(lambda x, y: np.where(mask, x, y), lambda x, y: numpy.where(mask, x, y), normal(*a), normal(*b))


for _name, _theirs in (("softmax", lambda e, a: e / e.sum(axis=a, keepdims=True)),
                       ("logsumexp", lambda e, a: numpy.log(e.sum(axis=a)))):  # fmt: skip

    @family(_name)
    def _rows(pick: Pick, name: str = _name, theirs: Any = _theirs) -> Use:
        shape = pick.shape(min_dims=1, min_side=1)
        axis = pick.axis(shape)
        return Use(lambda x: getattr(ops, name)(x, axis), lambda x: theirs(numpy.exp(x), axis), normal(*shape))
