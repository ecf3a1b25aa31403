"""Linear layers, embeddings, and modules that only change the shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ops, random
from ..engine.parameter import Parameter
from ..engine.tensor import TENSORS
from ..errors import DtypeError, ShapeError, call_site
from .module import Module

__all__ = ["Embedding", "Flatten", "Identity", "Linear"]


def uniform_parameter(key: random.Key, shape: tuple[int, ...], bound: float, dtype: Any) -> Parameter:
    """A Parameter uniform in +-bound, the same on every rank."""
    return Parameter(random.uniform(key, shape, low=-bound, high=bound, dtype=dtype))


class Linear(Module):
    """``y = x @ weight + bias``, weight stored [in_features, out_features] (torch's, transposed).

    Weights are uniform in +-1/sqrt(in_features), from the thread's seed and the count of Linears made so far, so that
    every rank that builds the same program starts from the same numbers.

    Parameters
    ----------
    in_features, out_features : int
    bias : bool
    dtype : dtype
    key : random.Key, optional
        In the place of the thread's.

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
        key = random.next_key("Linear") if key is None else key
        bound = 1.0 / max(in_features, 1) ** 0.5
        self.weight = uniform_parameter(key.fold("weight"), (in_features, out_features), bound, dtype)
        self.bias = uniform_parameter(key.fold("bias"), (out_features,), bound, dtype) if bias else None

    def forward(self, x: Any) -> Any:
        return x @ self.weight if self.bias is None else ops.linear(x, self.weight, self.bias)


class Embedding(Module):
    """Row `i` of the weight for every index `i`; weight [num_embeddings, embedding_dim], normal with variance 1.

    Parameters
    ----------
    num_embeddings, embedding_dim : int
    dtype : dtype
    key : random.Key, optional

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> nn.Embedding(10, 4)(numpy.array([[1, 2, 9]])).shape
    (1, 3, 4)
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, *, dtype: Any = np.float32, key: random.Key | None = None
    ):
        key = random.next_key("Embedding") if key is None else key
        self.weight = Parameter(random.normal(key.fold("weight"), (num_embeddings, embedding_dim), dtype=dtype))

    def forward(self, index: Any) -> Any:
        return embedding(index, self.weight)


def embedding(index: Any, weight: Any) -> Any:
    """Rows of `weight` by `index`. Adjoint: each row's cotangents, summed.

    Raises
    ------
    DtypeError, ShapeError
        An index that is no integer, or out of range; negative ones too, which would count from the end.
    """
    raw = index.array if index.__class__ in TENSORS else np.asarray(index)
    if raw.dtype.kind not in "iu":
        raise DtypeError(f"embedding: an index of dtype {raw.dtype} was given; needed: integers" + call_site())
    rows = weight.shape[0]
    if type(raw) is np.ndarray and raw.size and (raw.max() >= rows or raw.min() < 0):
        raise ShapeError(
            f"embedding: indices from {raw.min()} to {raw.max()} were given; needed: 0..{rows - 1}" + call_site()
        )
    return ops.take_rows(weight, index)


class Identity(Module):
    """x."""

    def forward(self, x: Any) -> Any:
        return x


class Flatten(Module):
    """Dimensions from `start_dim` on as one."""

    def __init__(self, start_dim: int = 1):
        self.start_dim = start_dim

    def forward(self, x: Any) -> Any:
        return ops.reshape(x, (*x.shape[: self.start_dim], -1))
