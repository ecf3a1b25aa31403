"""Linear layers, embeddings, and modules that only change the shape."""

from __future__ import annotations

from typing import Any, overload

import numpy as np

from .. import ops, random
from ..arrays.capture import checked
from ..arrays.device import as_array
from ..engine.leaves import Parameter
from ..engine.tensor import TENSORS, Tensor
from ..errors import DtypeError, PositionError, ShapeError, typed_errors
from ..ops.arguments import computed
from ..ops.nn.embedding import require_range
from ..random.keys import integer
from .arguments import count
from .module import Module

__all__ = ["Embedding", "Flatten", "Identity", "Linear", "TiedLinear"]


def uniform_parameter(key: random.Key, shape: tuple[int, ...], bound: float, dtype: Any) -> Parameter:
    """Create a Parameter with uniform values in +-bound, the same on every rank."""
    return Parameter(random.uniform(key, shape, low=-bound, high=bound, dtype=dtype))


class _Weighted(Module):
    """A module that refuses the weight of one that stores it transposed. In torch an embedding and a linear layer can
    share one. Each assignment is checked, because a forward pass with a square weight would raise nothing."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight" and isinstance(value, Parameter):
            transposed = self.stores_transposed(name)
            if value.is_transposed is (not transposed):
                stored = "[in, out], the transpose of torch's", "as in torch"
                raise ShapeError(
                    f"{type(self).__name__}: the weight of another module was assigned to its weight. It is "
                    f"stored {stored[transposed]}; needed: stored {stored[not transposed]}\n"
                    "  fix: instead of the linear layer functional.linear(x, embedding.weight), which takes [out, in]"
                )
            value.is_transposed = transposed
        super().__setattr__(name, value)


class Linear(_Weighted):
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

    def stores_transposed(self, attribute: str) -> bool:
        return attribute == "weight"

    def forward(self, input: Any) -> Tensor:
        try:
            bias = self.bias
            return input @ self.weight if bias is None else ops.linear(input, self.weight, bias)
        except ShapeError:
            self._refuse_width(input)
            raise

    def _forward_with(self, joint: Any, input: Any) -> Any:
        if self.bias is None or not self._is_called(Linear.forward):
            return NotImplemented
        try:
            return joint(input, self.weight, self.bias)
        except ShapeError:
            self._refuse_width(input)
            raise

    def _refuse_width(self, input: Any) -> None:
        """Raise a ShapeError that names this layer, if the last dimension of `input` is not its width."""
        layouts = getattr(input, "layout", None), self.weight.layout
        if any(layout is not None and layout.special for layout in layouts):
            return  # parts: the operation's own error has their labels
        needed, shape = self.weight.array.shape[0], np.shape(getattr(input, "array", input))
        if not shape:
            reason = f"has no dimensions, needed {needed} feature{'s' * (needed != 1)} in the last one"
        elif shape[-1] != needed:
            reason = f"has {shape[-1]} features (its last dimension), needed {needed}"
            reason += "\n  fix: x[:, None], a row for each of its elements" if len(shape) == needed == 1 else ""
        else:
            return
        raise ShapeError(f"Linear({self.extra_repr()}): x of shape {shape} {reason}") from None


class Embedding(_Weighted):
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
            self.padding_idx = _row(padding_idx, num_embeddings, "Embedding")
            self.weight.array[self.padding_idx] = 0

    def stores_transposed(self, attribute: str) -> bool:
        return False

    def forward(self, input: Any) -> Tensor:
        return embedding(input, self.weight, self.padding_idx)


@overload
def embedding(input: Any, weight: Tensor, padding_idx: int | None = None) -> Tensor: ...
@overload
def embedding(input: Any, weight: Any, padding_idx: int | None = None) -> Any: ...
@typed_errors
def embedding(input: Any, weight: Any, padding_idx: int | None = None) -> Any:
    """Return the rows ``weight[input]``.

    Parameters
    ----------
    input : array of int, any shape
        Indices of rows.
    weight : Tensor or array, [rows, width]
    padding_idx : int, optional
        The index of a row that gets no gradient.

    Returns
    -------
    Tensor or array, ``[*input.shape, width]``

    Raises
    ------
    DtypeError
        An index is not an integer.
    ShapeError
        An index is out of range. Negative indices are refused: they do not count from the end. On a GPU the indices are
        not looked at, for which the host would wait.
    DeviceError
        The weight and the indices are on different devices.
    PositionError
        `padding_idx` is no row. A negative one counts from the end.

    Notes
    -----
    Adjoint: row i of the gradient is the sum of the cotangents of all lookups of row i.
    """
    raw = input.array if input.__class__ in TENSORS else as_array(input)
    if raw.dtype.kind not in "iu":
        raise DtypeError(f"embedding: an index of dtype {raw.dtype} was given; needed: integers")
    rows = weight.shape[0]
    if type(raw) is np.ndarray:
        checked(require_range, raw, int(rows), "embedding: indices")
    found = ops.take_rows(weight, input if input.__class__ in TENSORS else raw)
    if padding_idx is None:
        return found
    input = computed(input)
    padding = ops.reshape(input == _row(padding_idx, int(rows), "embedding"), (*input.shape, 1))
    return ops.where(padding, ops.stop_gradient(found), found)


def _row(padding_idx: int, rows: int, caller: str) -> int:
    """The index of the row for padding, from 0 on."""
    at = integer(padding_idx, f"{caller}: padding_idx")
    if not -rows <= at < rows:
        raise PositionError(f"{caller}: padding_idx={at} was given; needed: a row of {rows}")
    return at % rows


class Identity(Module):
    """Return x unchanged."""

    def forward(self, input: Any) -> Tensor:
        return input


class TiedLinear(Module):
    """The product with the rows of an embedding's table, ``x @ weight.T``: the logits of a language model.

    The table is that of the embedding, a tied weight: its gradient is the sum of those of both uses.

    Parameters
    ----------
    embedding : Embedding

    Notes
    -----
    Source: Press and Wolf 2017, *Using the Output Embedding to Improve Language Models*.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> table = nn.Embedding(10, 4)
    >>> nn.TiedLinear(table)(numpy.zeros((3, 4), numpy.float32)).shape
    (3, 10)
    """

    def __init__(self, embedding: Embedding):
        self.weight = embedding.weight

    def stores_transposed(self, attribute: str) -> bool:
        return False

    def forward(self, input: Any) -> Tensor:
        return input @ ops.swapaxes(self.weight, 0, 1)


class Flatten(Module):
    """Flatten the dimensions from `start_dim` to `end_dim` into one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1):
        self.start_dim, self.end_dim = integer(start_dim, "Flatten: start_dim"), integer(end_dim, "Flatten: end_dim")

    def forward(self, input: Any) -> Tensor:
        ndim = len(input.shape)
        if self.start_dim == ndim and self.end_dim == -1:  # of [n] with the defaults: [n, 1]
            return ops.reshape(input, (*input.shape, 1))
        first, last = self.start_dim % max(ndim, 1), self.end_dim % max(ndim, 1)
        if not (-ndim <= self.start_dim < ndim and -ndim <= self.end_dim < ndim and first <= last):
            raise ShapeError(
                f"Flatten: start_dim={self.start_dim}, end_dim={self.end_dim} were given for x of shape "
                f"{tuple(map(int, input.shape))}; needed: two of its dimensions in order"
            )
        return ops.reshape(input, (*input.shape[:first], -1, *input.shape[last + 1 :]))
