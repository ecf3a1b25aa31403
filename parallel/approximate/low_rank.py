"""Compression of matrices by a product of two thin ones: `PowerSGD`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd.arrays.shape_only import DRY, Shaped
from autograd.optim.hyperparameters import check_count
from autograd.random import Key, integers
from collectives.transports.protocol import Array, Communicator, Request
from collectives.transports.steps import Steps

from .compression import Compression, New, Shapes, difference, working_dtype, write_sums
from .error_feedback import GradientBucket, sizes_of, split, vectors_of

__all__ = ["PowerSGD", "orthonormal"]


class PowerSGD(Compression):
    """Send each matrix as the product of two thin ones, by one step of power iteration, with error feedback.

    A parameter of several dimensions is a matrix of its first dimension by all others. Vectors, and matrices for which
    `rank` times rows plus columns is no fewer elements than the matrix has, are summed exactly.

    Parameters
    ----------
    rank : int
        The rank of the approximation.
    start_step : int
        The number of exact reductions before the first compressed one.
    seed : int
        The same on all ranks.

    Notes
    -----
    For M_r, the gradient and residual of rank r, and Q, the result of the step before (Vogels, Karimireddy and Jaggi
    2019, algorithms 1 and 2):

    1. P = sum_r M_r orth(Q), one all-reduce; P = orth(P).
    2. Q_r = M_r^T P; Q = sum_r Q_r, one all-reduce.
    3. The sum of the gradients is approximated by P Q^T; the residual of rank r is M_r - P Q_r^T.

    The first Q is random, and so are columns of Q that have become zero, which otherwise would stay zero. Q is made
    orthonormal before it is used, too: its columns have the magnitude of the gradient, and the product would have its
    square, which can underflow.

    Examples
    --------
    >>> from parallel import PowerSGD
    >>> round(PowerSGD(rank=2).compression_ratio([(512, 512), (512,)], ranks=4), 1)
    102.5
    """

    _copies = ("factor",)

    def __init__(self, rank: int = 2, start_step: int = 0, seed: int = 0):
        super().__init__(start_step)
        check_count("PowerSGD", 1, rank=rank)
        self.rank, self.key = rank, Key(seed, "powersgd")

    def factors(self, shape: Sequence[int]) -> tuple[int, int, int] | None:
        """Rows, columns and rank of the approximation of a parameter; None if it is summed exactly."""
        if len(shape) < 2 or not math.prod(shape):
            return None
        rows, columns = shape[0], math.prod(shape[1:])
        rank = min(self.rank, rows, columns)
        return (rows, columns, rank) if rank * (rows + columns) < rows * columns else None

    def _requests(self, shapes: Shapes, ranks: int, dtype: np.dtype[Any], rank: int = 0) -> list[Request]:
        factors = [sides for shape in shapes if (sides := self.factors(shape))]
        dense = sum(math.prod(shape) for shape in shapes if not self.factors(shape))
        first = sum(r * rows for rows, _, r in factors) + dense + len(shapes)
        found = [Request("all_reduce", Shaped((first,), dtype, DRY))]
        if factors:
            second = sum(r * columns for _, columns, r in factors)
            found.append(Request("all_reduce", Shaped((second,), dtype, DRY)))
        return found

    def _reduce(self, bucket: GradientBucket, group: Communicator, step: int) -> Steps[New]:
        dtype, sizes = working_dtype(bucket.flat.dtype), sizes_of(bucket.shapes)
        given = [g.astype(dtype) for g in vectors_of(bucket)]
        factors = [self.factors(shape) for shape in bucket.shapes]
        matrices = {}
        for i, (name, sides) in enumerate(zip(bucket.names, factors, strict=True)):
            if sides:
                given[i] += self.state.get("residual", name, sizes[i], dtype)
                matrices[i] = given[i].reshape(sides[:2])
        left = {i: _product(m, self._start(bucket.names[i], factors[i], step, dtype)) for i, m in matrices.items()}
        dense = [g for i, g in enumerate(given) if i not in matrices]
        flags = bucket.flags.astype(dtype)
        first = np.concatenate([*(p.ravel() for p in left.values()), *dense, flags])
        pending = group.start(Request("all_reduce", first))
        yield pending

        found = split(pending.wait(), [*(p.size for p in left.values()), *(g.size for g in dense), len(given)])
        thin, exactly = found[: len(left)], iter(found[len(left) : -1])
        bucket.flags[:] = found[-1]
        left = {i: orthonormal(p.reshape(left[i].shape)) for i, p in zip(left, thin, strict=True)}
        right = {i: _product(m.T, left[i]) for i, m in matrices.items()}
        sums: list[Array] = [given[i] if i in matrices else next(exactly) for i in range(len(given))]
        new: dict[str, list[Any]] = {"residual": [None] * len(given), "factor": [None] * len(given)}
        if matrices:
            pending = group.start(Request("all_reduce", np.concatenate([q.ravel() for q in right.values()])))
            for i, m in matrices.items():
                new["residual"][i] = difference(m, _product(left[i], right[i].T)).ravel()
            yield pending
            for i, q in zip(matrices, split(pending.wait(), [q.size for q in right.values()]), strict=True):
                new["factor"][i] = q
                _outer(left[i], q.reshape(right[i].shape), matrices[i])  # the memory of the sum's part of this rank
        write_sums(bucket, sums)
        return new

    def _start(self, name: str, factors: Any, step: int, dtype: np.dtype[Any]) -> Array:
        """An orthonormal basis of the columns of Q, in which columns of zeros are replaced by random ones."""
        _, columns, rank = factors
        q = self.state.get("factor", name, columns * rank, dtype).reshape(columns, rank)
        lost = ~q.any(axis=0)
        if lost.any():
            draws = integers(self.key.fold(name).at(step), (columns, rank), -(2**31), 2**31)
            q = np.where(lost, draws.astype(dtype), q)
        return orthonormal(q)


@np.errstate(invalid="ignore", over="ignore")
def _product(a: Array, b: Array) -> Array:
    return a @ b


@np.errstate(invalid="ignore", over="ignore")
def _outer(left: Array, right: Array, out: Array) -> None:
    """``out = left @ right.T`` for thin matrices, as a sum of outer products: the same bits on every machine."""
    np.multiply.outer(left[:, 0], right[:, 0], out=out)
    for j in range(1, left.shape[1]):
        out += np.multiply.outer(left[:, j], right[:, j])


@np.errstate(invalid="ignore", over="ignore")
def orthonormal(a: Array) -> Array:
    """Orthonormal columns that span those of `a`, by Gram-Schmidt in float64, with the same bits on every machine.

    A column that depends on the columns before it becomes zero.
    """
    q = np.zeros(a.shape)
    least = 100 * float(np.finfo(a.dtype).eps)
    for j in range(a.shape[1]):
        column = a[:, j].astype(np.float64)
        norm = math.sqrt(_dot(column, column))
        if norm == 0:
            continue
        column /= norm
        for _ in range(2):  # the second pass removes what rounding has left
            for i in range(j):
                column -= _dot(column, q[:, i]) * q[:, i]
        rest = math.sqrt(_dot(column, column))
        if not rest <= least:  # which NaN is not, so that it stays visible
            q[:, j] = column / rest
    return q.astype(a.dtype)


def _dot(a: Array, b: Array) -> float:
    """The dot product, added from the first element to the last one."""
    return float(np.add.accumulate(a * b)[-1])
