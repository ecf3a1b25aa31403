"""Functions with the names, arguments and defaults of torch.nn.functional: ``from autograd.nn import functional as F``.

Arguments that follow one that only torch has are given by name. An argument that only torch has is a TypeError.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from .. import ops, random
from ..arrays.capture import checked, decided, recorded
from ..arrays.device import arange_beside, as_array, device_of
from ..engine.tensor import TENSORS
from ..errors import DtypeError, OptionError, ShapeError, answering, typed_errors
from ..ops import log_softmax, softmax, tanh
from ..ops.arguments import labelled, raw
from ..ops.manipulation import pad as pad_array
from ..ops.nn import activations as _activations
from ..ops.nn.activations import *  # noqa: F403
from ..random.keys import integer
from .arguments import number, probability, refuse_in_place
from .dropout import dropout
from .linear import embedding
from .losses import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from .norms import over_features, shape_of_features

__all__ = [
    "avg_pool1d", "avg_pool2d", "binary_cross_entropy_with_logits", "conv1d", "conv2d", "cross_entropy", "dropout",
    "embedding", "l1_loss", "layer_norm", "leaky_relu", "linear", "log_softmax", "max_pool1d", "max_pool2d",
    "mse_loss", "nll_loss", "one_hot", "pad", "rms_norm", "scaled_dot_product_attention", "smooth_l1_loss", "softmax",
    "tanh",
]  # fmt: skip
__all__ += _activations.__all__


@typed_errors
def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """``input @ weight.T + bias``, with a weight [out, in], as in torch.

    The weight of the module `Linear` is stored [in, out]: give ``layer.weight.T``. That of an `Embedding` is not:
    ``F.linear(h, embedding.weight)`` are the logits of tied embeddings.

    Parameters
    ----------
    input : Tensor or array, [..., in]
    weight : Tensor or array, [out, in]
    bias : Tensor or array, [out], optional

    Raises
    ------
    ShapeError
        The shapes do not fit.

    Examples
    --------
    >>> import numpy
    >>> from autograd.nn import functional as F
    >>> F.linear(numpy.ones((1, 2)), numpy.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    array([[ 3.,  7., 11.]])
    """
    have, need = raw(weight).shape, raw(input).shape[-1:]
    if len(have) != 2 or have[1:] != need:
        turned = "\n  fix: weight.T, of a weight that is stored [in, out]" if have[:1] == need else ""
        raise ShapeError(
            f"linear: input of shape {raw(input).shape}, weight of shape {have}; needed: a weight [out, "
            f"{', '.join(map(str, need))}]{turned}"
        )
    turned = ops.swapaxes(weight, 0, 1)
    return input @ turned if bias is None else ops.linear(input, turned, bias)


@typed_errors
def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    """``input`` where it is positive, and ``negative_slope * input`` elsewhere; see `LeakyReLU`."""
    refuse_in_place(inplace, "leaky_relu")
    slope = number(negative_slope, "leaky_relu: negative_slope")
    return ops.where(ops.greater(input, 0), input, ops.multiply(input, slope))


@typed_errors
def layer_norm(
    input: Any, normalized_shape: Sequence[int] | int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """``(input - mean) / sqrt(variance + eps) * weight + bias`` along the last dimensions; see `LayerNorm`.

    Parameters
    ----------
    input : Tensor or array, [..., the dimensions of normalized_shape]
    normalized_shape : sequence of int
        The shape of the last dimensions, which are normalised together.
    weight, bias : Tensor or array of this shape, optional
    eps : float

    Raises
    ------
    ShapeError
        The shapes do not fit.

    Examples
    --------
    >>> import numpy
    >>> from autograd.nn import functional as F
    >>> F.layer_norm(numpy.array([[1.0, 3.0]]), (2,), eps=0.0)
    array([[-1.,  1.]])
    """
    shape = shape_of_features(normalized_shape, "layer_norm")
    return over_features("layer_norm", partial(ops.layer_norm, eps=eps), shape, input, weight, bias)


@typed_errors
def rms_norm(
    input: Any, normalized_shape: Sequence[int] | int, weight: Any = None, eps: float | None = None
) -> Any:
    """``input / sqrt(mean(input^2) + eps) * weight`` along the last dimensions; see `RMSNorm` and `layer_norm`."""
    shape = shape_of_features(normalized_shape, "rms_norm")
    return over_features("rms_norm", partial(ops.rms_norm, eps=eps), shape, input, weight)


@typed_errors
def one_hot(tensor: Any, num_classes: int = -1) -> Any:
    """Integers with a further dimension: 1 at the index that each element is, and 0 elsewhere.

    Parameters
    ----------
    tensor : array of int
    num_classes : int
        The extent of the new dimension; by default one more than the largest element, which the ranks must agree on.
        It is needed where the elements are on a GPU, and they are not checked there.

    Raises
    ------
    DtypeError
        The elements are not integers.
    ShapeError
        An element is negative, or not smaller than `num_classes`.

    Examples
    --------
    >>> import numpy
    >>> from autograd.nn import functional as F
    >>> F.one_hot(numpy.array([0, 2]))
    array([[1, 0, 0],
           [0, 0, 1]])
    """
    indices, n = as_array(raw(tensor)), integer(num_classes, "one_hot: num_classes")
    if indices.dtype.kind not in "iu":
        raise DtypeError(f"one_hot: dtype {indices.dtype} was given; needed: integers")
    is_part = tensor.__class__ in TENSORS and tensor.layout is not None and tensor.layout.special
    if n == -1 and is_part:
        raise OptionError("one_hot: num_classes was not given for a part; needed: the number of classes")
    on_host = isinstance(indices, np.ndarray | np.generic)
    if n == -1 and not on_host:
        raise OptionError(
            f"one_hot: num_classes was not given for an array on {device_of(indices)}; needed: the number of classes"
        )
    n = decided(_number_of_classes, indices) if n == -1 and indices.size else n
    if on_host or n < 1:
        checked(_require_classes, indices, n)
    return labelled(recorded(_one_hot, indices, n, name="one_hot"), tensor)


def _number_of_classes(indices: Any) -> int:
    return int(indices.max()) + 1


def _require_classes(indices: Any, n: int) -> None:
    if n < 1 or (indices.size and (indices.min() < 0 or indices.max() >= n)):
        raise ShapeError(f"one_hot: num_classes={n} was given; needed: more than each element, from 0 on")


def _one_hot(indices: Any, n: int) -> Any:
    return (indices[..., None] == arange_beside(indices, n)).astype(np.int64)


_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@typed_errors
def pad(input: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """The input with elements added at the ends of its last dimensions.

    Parameters
    ----------
    input : Tensor or array
    pad : sequence of int
        Pairs of numbers of elements before and after: the first pair is that of the last dimension.
    mode : {"constant", "reflect", "replicate", "circular"}
    value : float, optional
        The elements of "constant", by default 0.

    Raises
    ------
    ShapeError
        `pad` is not pairs of numbers that are not negative, for at most the dimensions of the input.
    OptionError
        The mode is unknown, or a value is given with another mode than "constant".

    Examples
    --------
    >>> import numpy
    >>> from autograd.nn import functional as F
    >>> F.pad(numpy.array([[1.0, 2.0]]), (1, 2))
    array([[0., 1., 2., 0., 0.]])
    """
    widths, ndim = [integer(n, "pad") for n in pad], len(raw(input).shape)
    if len(widths) % 2 or len(widths) > 2 * ndim or min(widths, default=0) < 0:
        raise ShapeError(
            f"pad: {tuple(pad)} was given for {ndim} dimensions; needed: pairs of numbers from 0 on, that of the last "
            "dimension first"
        )
    if mode not in _MODES or (mode != "constant" and value is not None):
        raise OptionError(
            f"pad: mode={mode!r}, value={value!r} were given; needed: one of {', '.join(_MODES)}, and a value with "
            "'constant' only"
        )
    pairs = [(widths[i], widths[i + 1]) for i in range(0, len(widths), 2)]
    words: dict[str, Any] = {} if value is None else {"constant_values": value}
    return pad_array(input, [(0, 0)] * (ndim - len(pairs)) + pairs[::-1], _MODES[mode], **words)


@typed_errors
def scaled_dot_product_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """``softmax(scale query key' + attn_mask) value``; see `ops.attention`.

    Parameters
    ----------
    query : Tensor or array, [..., heads, tokens, width]
    key, value : Tensor or array, [..., heads, keys, width]
    attn_mask : array, broadcastable to [..., heads, tokens, keys], optional
        Booleans, True where a query attends to a key (in `MultiheadAttention` it is the other way round, as in torch);
        or numbers that are added to the scores.
    dropout_p : float
        The probability of dropping a weight, with the thread's next key. Give 0 in evaluation.
    is_causal : bool
        Whether each query attends only to keys at its own and earlier positions; without a mask.
    scale : float, optional
        By default ``1 / sqrt(width)``.
    enable_gqa : bool
        Whether keys and values may have fewer heads, a divisor of the queries'.

    Raises
    ------
    ShapeError
        The shapes do not fit; the numbers of heads differ, without `enable_gqa`; or, with `is_causal`, those of queries
        and keys, where torch and `ops.attention` mean different keys.
    OptionError
        A mask is given with `is_causal`.
    """
    a, b = raw(query).shape, raw(key).shape
    if is_causal and (attn_mask is not None or a[-2] != b[-2]):
        kind = OptionError if attn_mask is not None else ShapeError
        raise kind(
            f"scaled_dot_product_attention: is_causal=True with {a[-2]} queries, {b[-2]} keys and "
            f"{'no' if attn_mask is None else 'a'} mask; needed: as many keys as queries, without a mask\n"
            "  fix: a mask with numpy.tril"
        )
    if not enable_gqa and len(a) > 2 and len(b) > 2 and a[-3] != b[-3]:
        raise ShapeError(
            f"scaled_dot_product_attention: {a[-3]} heads of queries and {b[-3]} of keys; needed: the same number\n"
            "  fix: enable_gqa=True, for heads of keys that several heads of queries share"
        )
    alone = len(a) == 2
    q, k, v = (ops.expand_dims(x, 0) if alone else x for x in (query, key, value))
    p = probability(dropout_p, "scaled_dot_product_attention: dropout_p")
    if p:
        weights = ops.attention_weights(q, k, attn_mask, causal=is_causal, scale=scale)
        y = dropout(weights, p, key=random.next_key("scaled_dot_product_attention")) @ v
    else:
        y = ops.attention(q, k, v, attn_mask, causal=is_causal, scale=scale)
    return ops.reshape(y, y.shape[1:]) if alone else y


def _spatial(caller: str, input: Any, n: int) -> None:
    if len(raw(input).shape) != n + 2:
        raise ShapeError(
            f"{caller}: input of shape {raw(input).shape}; needed: {n + 2} dimensions, [n, channels, *spatial]"
        )


@typed_errors
def conv1d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    """Convolution of [n, channels, extent]; the arguments are those of `convolution`."""
    _spatial("conv1d", input, 1)
    return ops.convolution(input, weight, bias, stride, padding, dilation, groups)


@typed_errors
def conv2d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    """Convolution of [n, channels, height, width]; the arguments are those of `convolution`."""
    _spatial("conv2d", input, 2)
    return ops.convolution(input, weight, bias, stride, padding, dilation, groups)


@typed_errors
def max_pool1d(input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1) -> Any:
    """Largest element of each window of [n, channels, extent]; the arguments are those of `max_pool`."""
    _spatial("max_pool1d", input, 1)
    return ops.max_pool(input, kernel_size, stride, padding, dilation)


@typed_errors
def max_pool2d(input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1) -> Any:
    """Largest element of each window of [n, channels, height, width]; the arguments are those of `max_pool`."""
    _spatial("max_pool2d", input, 2)
    return ops.max_pool(input, kernel_size, stride, padding, dilation)


@typed_errors
def avg_pool1d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, *, count_include_pad: bool = True
) -> Any:
    """Mean of each window of [n, channels, extent]; the arguments are those of `avg_pool`."""
    _spatial("avg_pool1d", input, 1)
    return ops.avg_pool(input, kernel_size, stride, padding, count_include_pad)


@typed_errors
def avg_pool2d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, *, count_include_pad: bool = True
) -> Any:
    """Mean of each window of [n, channels, height, width]; the arguments are those of `avg_pool`."""
    _spatial("avg_pool2d", input, 2)
    return ops.avg_pool(input, kernel_size, stride, padding, count_include_pad)

globals()["__getattr__"] = answering(__name__)
