"""Linear layers, embeddings, and modules that only change the shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ops, random
from ..engine.parameter import Parameter
from ..engine.tensor import TENSORS
from ..errors import DtypeError, PositionError, ShapeError, call_site, typed_errors
from ..ops.arguments import operand
from ..random.keys import integer
from .arguments import count
from .module import Module

__all__ = ["Embedding", "Flatten", "Identity", "Linear"]


def uniform_parameter(key: random.Key, shape: tuple[int, ...], bound: float, dtype: Any) -> Parameter:
    """Create a Parameter with uniform values in +-bound, the same on every rank."""
    return Parameter(random.uniform(key, shape, low=-bound, high=bound, dtype=dtype))


class Linear(Module):
    """Affine map ``y = x @ weight + bias`` of the last dimension.

    The weight has shape [in_features, out_features], the transpose of torch's. Weight and bias are initialised
    uniformly in +-1 / sqrt(in_features).

    Parameters
    ----------
    in_features, out_features : int
    bias : bool
    dtype : dtype
    key : random.Key, optional
        Key of the initial weights. By default the thread's next key, which depends on the thread's seed and on the
        number of Linears created before, so that ranks that build the same model start from the same values.

    Examples
    --------
    >>> from autograd import nn
    >>> nn.Linear(3, 2).weight.shape
    (3, 2)
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, dtype: Any = np.float32,
        key: random.Key | None = None,
    ):  # fmt: skip
        in_features = count(in_features, "Linear: in_features")
        out_features = count(out_features, "Linear: out_features")
        key = random.next_key("Linear") if key is None else key
        bound = 1.0 / max(in_features, 1) ** 0.5
        self.weight = uniform_parameter(key.fold("weight"), (in_features, out_features), bound, dtype)
        self.bias = uniform_parameter(key.fold("bias"), (out_features,), bound, dtype) if bias else None

    def forward(self, x: Any) -> Any:
        return x @ self.weight if self.bias is None else ops.linear(x, self.weight, self.bias)


class Embedding(Module):
    """Look up rows of a table: index ``i`` gives row ``i`` of the weight, [num_embeddings, embedding_dim].

    The weight is initialised with standard normal values.

    Parameters
    ----------
    num_embeddings, embedding_dim : int
    padding_idx : int, optional
        The index of a row for padding. It is initialised to zeros and gets no gradient.
    dtype : dtype
    key : random.Key, optional
        Key of the initial weights. By default the thread's next key.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> nn.Embedding(10, 4)(numpy.array([[1, 2, 9]])).shape
    (1, 3, 4)
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, *, dtype: Any = np.float32,
        key: random.Key | None = None,
    ):  # fmt: skip
        num_embeddings = count(num_embeddings, "Embedding: num_embeddings")
        embedding_dim = count(embedding_dim, "Embedding: embedding_dim")
        key = random.next_key("Embedding") if key is None else key
        self.weight = Parameter(random.normal(key.fold("weight"), (num_embeddings, embedding_dim), dtype=dtype))
        self.padding_idx = None
        if padding_idx is not None:
            at = integer(padding_idx, "Embedding: padding_idx")
            if not -num_embeddings <= at < num_embeddings:
                raise PositionError(
                    f"Embedding: padding_idx={at} was given; needed: a row of {num_embeddings}" + call_site()
                )
            self.padding_idx = at % num_embeddings
            self.weight.array[self.padding_idx] = 0

    def forward(self, index: Any) -> Any:
        rows = embedding(index, self.weight)
        if self.padding_idx is None:
            return rows
        index = operand(index)
        padding = ops.reshape(index == self.padding_idx, (*index.shape, 1))
        return ops.where(padding, ops.stop_gradient(rows), rows)


@typed_errors
def embedding(index: Any, weight: Any) -> Any:
    """Return the rows ``weight[index]``.

    Parameters
    ----------
    index : array of int, any shape
    weight : Tensor or array, [rows, width]

    Returns
    -------
    Tensor or array, [*index.shape, width]

    Raises
    ------
    DtypeError
        An index is not an integer.
    ShapeError
        An index is out of range. Negative indices are refused: they do not count from the end.

    Notes
    -----
    Adjoint: row i of the gradient is the sum of the cotangents of all lookups of row i.
    """
    raw = index.array if index.__class__ in TENSORS else np.asarray(index)
    if raw.dtype.kind not in "iu":
        raise DtypeError(f"embedding: an index of dtype {raw.dtype} was given; needed: integers" + call_site())
    rows = weight.shape[0]
    if type(raw) is np.ndarray and raw.size and (raw.max() >= rows or raw.min() < 0):
        raise ShapeError(
            f"embedding: indices from {raw.min()} to {raw.max()} were given; needed: 0..{rows - 1}" + call_site()
        )
    return ops.take_rows(weight, index if index.__class__ in TENSORS else raw)


class Identity(Module):
    """Return x unchanged."""

    def forward(self, x: Any) -> Any:
        return x


class Flatten(Module):
    """Flatten the dimensions from `start_dim` on into one."""

    def __init__(self, start_dim: int = 1):
        self.start_dim = integer(start_dim, "Flatten: start_dim")

    def forward(self, x: Any) -> Any:
        if not -len(x.shape) <= self.start_dim <= len(x.shape):
            raise ShapeError(f"Flatten: start_dim={self.start_dim} was given for x of shape {x.shape}" + call_site())
        return ops.reshape(x, (*x.shape[: self.start_dim], -1))
