"""Products of arrays with any number of dimensions: dot, inner, outer, tensordot, kron, cross, einsum.

Contractions are reduced to one `matmul` per pair of operands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..engine.dispatch import remembering
from ..engine.tensor import TENSORS
from ..errors import ShapeError
from ..layouts.sizes import SIZES
from .arguments import axes_in_order, instead_of, operand, raw, refusal
from .contractions import matmul
from .elementwise import conj, multiply
from .manipulation import diagonal
from .reductions import sum
from .shape import broadcast_to, concatenate, expand_dims, moveaxis, ravel, reshape, squeeze, transpose
from .sorting import take

__all__ = ["cross", "dot", "einsum", "inner", "kron", "outer", "tensordot", "vdot", "vecdot"]

@instead_of(np.dot, checked=2, in_float32=True)
def dot(a: Any, b: Any, out: None = None) -> Any:
    """Return the sum of products over the last dimension of `a` and the second to last (or only) one of `b`.

    Adjoint: the product of the cotangent and the other operand over the dimensions that the operand does not have.
    """
    if out is not None:
        raise refusal("dot", {"out": out})
    size = next((x for x in (a, b) if x.__class__ in SIZES), None)
    a, b = operand(a), operand(b)
    m, n = len(raw(a).shape), len(raw(b).shape)
    if not m or not n:
        y = multiply(a, b)
        return y if size is None or y.__class__ not in TENSORS else remembering(y, size)
    return matmul(a, b) if m == 1 or n <= 2 else tensordot(a, b, ((m - 1,), (n - 2,)))


@instead_of(np.vdot, in_float32=True)
def vdot(a: Any, b: Any) -> Any:
    """Return the sum of ``conj(a) * b`` over all elements.

    Adjoint: ``conj(ct * b)`` for `a`, and ``ct * conj(a)`` for `b`.
    """
    return matmul(conj(ravel(operand(a))), ravel(operand(b)))


@instead_of(np.vecdot, in_float32=True)
def vecdot(x1: Any, x2: Any, axis: int = -1) -> Any:
    """Return the sum of ``conj(x1) * x2`` along an axis.

    Adjoint: ``conj(ct * x2)`` for `x1`, and ``ct * conj(x1)`` for `x2`.
    """
    x1, x2 = moveaxis(operand(x1), axis, -1), moveaxis(operand(x2), axis, -1)
    return sum(multiply(conj(x1), x2), -1)


@instead_of(np.inner, in_float32=True)
def inner(a: Any, b: Any) -> Any:
    """Return the sum of products over the last dimensions of both operands.

    Adjoint: ``tensordot`` of the cotangent and the other operand.
    """
    a, b = operand(a), operand(b)
    m, n = len(raw(a).shape), len(raw(b).shape)
    return tensordot(a, b, ((m - 1,), (n - 1,))) if m and n else multiply(a, b)


@instead_of(np.outer)
def outer(a: Any, b: Any, out: None = None) -> Any:
    """Return the matrix of all products of an element of `a` and an element of `b`.

    Adjoint: ``ct @ b`` and ``a @ ct``, flattened operands taken.
    """
    return multiply(expand_dims(ravel(operand(a)), 1), expand_dims(ravel(operand(b)), 0))


@instead_of(np.tensordot, in_float32=True)
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Return the sum of products over pairs of dimensions.

    Adjoint: for each operand ``tensordot`` of the cotangent and the other one over the dimensions that remain.

    The other dimensions are kept in order, those of `a` first. An integer `axes` pairs the last `axes` dimensions of
    `a` with the first of `b`.
    """
    a, b = operand(a), operand(b)
    m, n = len(raw(a).shape), len(raw(b).shape)
    if isinstance(axes, int | np.integer):
        axes = (range(m - int(axes), m), range(int(axes)))
    left, right = (
        list(axes_in_order(given, k, "axes"))
        for given, k in zip(axes, (m, n), strict=True)
    )
    if [raw(a).shape[i] for i in left] != [raw(b).shape[i] for i in right]:
        raise ShapeError(
            f"tensordot of {raw(a).shape} and {raw(b).shape} over axes {left} and {right}; needed: equal extents"
        )
    names = [chr(ord("a") + i) for i in range(m + n)]
    one, two = names[:m], names[m:]
    for i, j in zip(left, right, strict=True):
        two[j] = one[i]
    kept = [x for i, x in enumerate(one) if i not in left] + [x for j, x in enumerate(two) if j not in right]
    return _contract(a, one, b, two, kept)


@instead_of(np.kron, in_float32=True)
def kron(a: Any, b: Any) -> Any:
    """Return the Kronecker product: every element of `a` times the whole of `b`.

    Adjoint: for each operand the sum of the cotangent times the elements of the other one.
    """
    a, b = operand(a), operand(b)
    n = max(a.ndim, b.ndim)
    p, q = ((1,) * (n - x.ndim) + tuple(x.shape) for x in (a, b))
    left = reshape(a, tuple(k for s in p for k in (s, 1)))
    right = reshape(b, tuple(k for s in q for k in (1, s)))
    return reshape(multiply(left, right), tuple(s * t for s, t in zip(p, q, strict=True)))


@instead_of(np.cross, in_float32=True)
def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Any:
    """Return the cross product of vectors with three (or two) components along an axis.

    Adjoint: ``cross(b, ct)`` and ``cross(ct, a)``.
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = moveaxis(operand(a), axisa, -1), moveaxis(operand(b), axisb, -1)
    m, n = int(raw(a).shape[-1]), int(raw(b).shape[-1])
    if {m, n} - {2, 3}:
        raise ShapeError(f"cross of vectors of {m} and {n} components; needed: two or three")
    if m == n == 2:
        return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    one, two = [1, 2, 0], [2, 0, 1]
    if m == n:
        y = take(a, one, -1) * take(b, two, -1) - take(a, two, -1) * take(b, one, -1)
    elif n == 2:  # a product with the missing component would be nan where the other one is infinite
        y = concatenate([_cross_with_plane(a, b), a[..., :1] * b[..., 1:] - a[..., 1:2] * b[..., :1]], -1)
    else:
        y = concatenate([-_cross_with_plane(b, a), a[..., :1] * b[..., 1:2] - a[..., 1:] * b[..., :1]], -1)
    return moveaxis(y, -1, axisc)


def _cross_with_plane(a: Any, b: Any) -> Any:
    """The first two components of the cross product of vectors with three components and with two."""
    return concatenate([-(a[..., 2:] * b[..., 1:]), a[..., 2:] * b[..., :1]], -1)


# -- einsum ----------------------------------------------------------------------------------------------------------
_IN_SUBSCRIPTS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,->")


def _parse(operands: Sequence[Any]) -> tuple[list[list[str]], list[str], list[Any]]:
    """Parse both calling forms of einsum, with the dimensions of an ellipsis as labels ".1", ".2", ...

    Returns the labels of each operand, the labels of the result, and the operands.
    """
    terms, result, xs = _terms(operands)
    if len(terms) != len(xs):
        raise ShapeError(f"einsum: {len(terms)} lists of subscripts were given for {len(xs)} operands")
    widest = 0
    for term, x in zip(terms, xs, strict=True):
        extra = x.ndim - len(term) + term.count(Ellipsis)
        if extra < 0 or (extra and Ellipsis not in term):
            raise ShapeError(
                f"einsum: {len(term)} subscripts were given for an operand of shape {raw(x).shape}; needed: one per "
                "dimension"
            )
        widest = max(widest, extra) if Ellipsis in term else widest
    dots = [f".{widest - i}" for i in range(widest)]

    def spelled(term: list[Any], extra: int) -> list[str]:
        if Ellipsis not in term:
            return term
        at = term.index(Ellipsis)
        return term[:at] + (dots[len(dots) - extra :] if extra else []) + term[at + 1 :]

    full = [spelled(t, x.ndim - len(t) + t.count(Ellipsis)) for t, x in zip(terms, xs, strict=True)]
    if result is not None:
        return full, spelled(result, widest), xs
    seen = [i for t in full for i in t if not i.startswith(".")]
    once = [i for i in set(seen) if seen.count(i) == 1]
    return full, dots + sorted(once, key=lambda i: (int(i), i) if i.isdigit() else (0, i)), xs


def _terms(operands: Sequence[Any]) -> tuple[list[list[Any]], list[Any] | None, list[Any]]:
    """The labels of each operand, those of the result, or None, and the operands, of both calling forms of einsum."""
    if isinstance(operands[0], str):
        text, xs = operands[0].replace(" ", ""), [operand(x) for x in operands[1:]]
        if not _IN_SUBSCRIPTS.issuperset(text):
            raise ShapeError(f"einsum: subscripts {text!r} were given; needed: letters")
        head, arrow, tail = text.partition("->")
        return [*map(_labels, head.split(","))], _labels(tail) if arrow else None, xs
    pairs = operands[: len(operands) // 2 * 2]
    xs = [operand(x) for x in pairs[::2]]
    last = operands[-1] if len(operands) % 2 else None
    return [*map(_labels, pairs[1::2])], None if last is None else _labels(last), xs


def _labels(term: Any) -> list[Any]:
    """The labels of an operand, from letters, or from integers, with an ellipsis."""
    if not isinstance(term, str):
        return [i if i is Ellipsis else str(int(i)) for i in term]
    if "..." in term:
        a, b = term.split("...")
        return [*a, Ellipsis, *b]
    return list(term)


def _merge_repeated(x: Any, labels: list[str]) -> tuple[Any, list[str]]:
    """Take the diagonal where an operand has a label twice, so that every label occurs once."""
    labels = list(labels)
    for name in sorted(set(labels)):
        while labels.count(name) > 1:
            i = labels.index(name)
            j = labels.index(name, i + 1)
            shape = raw(x).shape
            if shape[i] != shape[j]:
                raise ShapeError(f"einsum of shape {shape}: label {name!r} has two extents")
            x = diagonal(x, 0, i, j)
            labels = [k for at, k in enumerate(labels) if at not in (i, j)] + [name]
    return x, labels


def _reduce_to(x: Any, labels: list[str], wanted: Sequence[str]) -> Any:
    """Sum `x` over the labels that are not wanted, and put the dimensions in the order of those that are."""
    over = tuple(i for i, name in enumerate(labels) if name not in wanted)
    if over:
        x, labels = sum(x, over), [name for name in labels if name in wanted]
    order = [labels.index(name) for name in wanted if name in labels]
    return x if order == list(range(len(order))) else transpose(x, order)


def _extents(terms: Iterable[Sequence[str]], shapes: Iterable[Sequence[int]]) -> dict[str, int]:
    """The extent of each subscript. An extent of 1 is broadcast to that of another operand.

    Raises
    ------
    ShapeError
        A subscript has two extents.
    """
    extents: dict[str, int] = {}
    for labels, shape in zip(terms, shapes, strict=True):
        for name, n in zip(labels, shape, strict=True):
            if extents.get(name, 1) == 1:
                extents[name] = n
            elif n not in (1, extents[name]):
                raise ShapeError(f"einsum: subscript {name!r} has extents {extents[name]} and {n}; needed: equal ones")
    return extents


def _contract(a: Any, one: list[str], b: Any, two: list[str], kept: Sequence[str]) -> Any:
    """The product of two operands summed over the labels that are not kept, computed by one matmul."""
    extents = _extents((one, two), (a.shape, b.shape))
    shared = [x for x in one if x in two]
    summed = [x for x in shared if x not in kept]
    for name in summed:  # a dimension of extent 1 is broadcast to that of the other operand; the product does the rest
        a = _broadcast_label(a, one, name, extents[name])
        b = _broadcast_label(b, two, name, extents[name])
    batch = [x for x in kept if x in shared]
    left = [x for x in kept if x in one and x not in two]
    right = [x for x in kept if x in two and x not in one]
    a = _reduce_to(a, one, (*batch, *left, *summed))
    b = _reduce_to(b, two, (*batch, *summed, *right))
    k = len(batch)
    if not summed:  # an outer product
        a = expand_dims(a, tuple(range(a.ndim, a.ndim + len(right)))) if right else a
        b = expand_dims(b, tuple(range(k, k + len(left)))) if left else b
        y = multiply(a, b)
    else:
        y = matmul(_merge_dims(_merge_dims(a, k + len(left), len(summed)), k, len(left)),
                   _merge_dims(_merge_dims(b, k + len(summed), len(right)), k, len(summed)))  # fmt: skip
        y = _split_dims(y, k, [extents[x] for x in left], [extents[x] for x in right])
    return _reduce_to(y, [*batch, *left, *right], kept)


def _broadcast_label(x: Any, labels: list[str], name: str, extent: int) -> Any:
    shape = list(raw(x).shape)
    i = labels.index(name)
    if shape[i] == extent:
        return x
    shape[i] = extent
    return broadcast_to(x, tuple(shape))


def _merge_dims(x: Any, at: int, count: int) -> Any:
    """Merge `count` dimensions, from `at` on, into one."""
    if count == 1:
        return x
    if count == 0:
        return expand_dims(x, at)
    shape = x.shape
    n = math.prod(shape[at : at + count])
    return reshape(x, (*shape[:at], n, *shape[at + count :]))


def _split_dims(y: Any, k: int, left: list[int], right: list[int]) -> Any:
    if len(left) == len(right) == 1:
        return y
    if len(left) <= 1 and len(right) <= 1:
        return squeeze(y, tuple(i for i, n in ((k, left), (k + 1, right)) if not n))
    return reshape(y, (*y.shape[:k], *left, *right))


@instead_of(np.einsum, checked=9, in_float32=True)
def einsum(*operands: Any, optimize: Any = False, **words: Any) -> Any:
    """Return sums of products given by subscripts, in both of NumPy's calling forms.

    Adjoint: for each operand ``einsum`` of the cotangent and the other operands, with the subscripts exchanged.

    Operands are contracted two at a time, each pair by one matmul. With three or more operands the order is that of
    ``numpy.einsum_path(..., optimize="greedy")``; `optimize` is ignored.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> x = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> ag.grad(lambda a: np.einsum("ij,ji", a, x))(x).tolist()
    [[1.0, 3.0], [2.0, 4.0]]
    """
    terms, result, xs = _parse(operands)
    parts = [_merge_repeated(x, t) for x, t in zip(xs, terms, strict=True)]
    for labels in (*terms, result):
        if any(len(name) > 1 and not name.startswith(".") and not name.isdigit() for name in labels):
            raise ShapeError(f"einsum: subscripts {labels} were given; needed: letters")
    _extents(terms, [raw(x).shape for x in xs])
    missing = [name for name in result if all(name not in t for t in terms)]
    if missing or len(set(result)) != len(result):
        text = f"einsum: subscripts {result} of the result; needed: subscripts of operands, each once"
        raise ShapeError(text)
    for i, j in _pair_order(parts, result):
        (b, two), (a, one) = parts.pop(j), parts.pop(i)
        rest = {name for _, t in parts for name in t} | set(result)
        if not parts:
            kept: list[str] = result
        else:
            kept = [name for name in dict.fromkeys((*one, *two)) if name in rest]
        parts.append((_contract(a, one, b, two, kept), kept))
    ((x, labels),) = parts
    return _reduce_to(x, labels, result)


def _pair_order(parts: Sequence[tuple[Any, list[str]]], result: list[str]) -> list[tuple[int, int]]:
    """The pairs to contract, as indices i < j into the list of remaining operands; a result goes to its end."""
    n = len(parts)
    if n < 3:
        return [(0, 1)] if n == 2 else []
    letters = {name: chr(97 + k) for k, name in enumerate(dict.fromkeys(x for _, t in parts for x in t))}
    text = ",".join("".join(letters[x] for x in t) for _, t in parts) + "->" + "".join(letters[x] for x in result)
    stand_ins = [np.broadcast_to(0.0, raw(x).shape) for x, _ in parts]
    found = []
    left = n
    for step in np.einsum_path(text, *stand_ins, optimize="greedy")[0][1:]:
        places = sorted(step)
        while len(places) > 1:  # a step over several operands becomes pairs; each result is the last of the list
            i, j = places[0], places[1]
            found.append((i, j))
            left -= 1
            places = [k - 2 for k in places[2:]] + [left - 1]
    return found


@instead_of(np.linalg.multi_dot, in_float32=True)
def multi_dot(arrays: Sequence[Any], *, out: None = None) -> Any:
    """Return the product of several matrices, in an order chosen for low cost. Adjoint: those of the products."""
    xs = [operand(x) for x in arrays]
    if len(xs) == 2:
        return dot(*xs)
    labels = [chr(97 + i) for i in range(len(xs) + 1)]
    terms = [[labels[i]] if i == 0 and x.ndim == 1 else [labels[i], labels[i + 1]] for i, x in enumerate(xs)]
    if xs[0].ndim == 1:
        terms[0] = [labels[1]]
    if xs[-1].ndim == 1:
        terms[-1] = [labels[len(xs) - 1]]
    result = ([] if xs[0].ndim == 1 else [labels[0]]) + ([] if xs[-1].ndim == 1 else [labels[-1]])
    return einsum(",".join(map("".join, terms)) + "->" + "".join(result), *xs)
