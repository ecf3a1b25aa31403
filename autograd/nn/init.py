"""Initialisers of parameters, with torch's names. Each changes a Parameter in place and returns it.

Random values come from `random`, with a key that is given or the thread's next one. They do not depend on the number
of ranks: a sharded parameter gets its part of one logical draw.

Shapes are read as this package stores them: a matrix is [in, out], a parameter of more dimensions is a convolution's
``[out, in, *kernel]``.

All take a Parameter `p` of any shape and layout, and return it. A `key` is a `random.Key`; by default it is the
thread's next one. They raise `SavedArrayError` if a tape still needs the present value of `p`. Those that use the
numbers of inputs and outputs (`fans`), and `orthogonal_`, raise `ShapeError` for fewer than two dimensions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import random
from ..arrays.device import move
from ..arrays.shape_only import is_absent
from ..engine.parameter import Leaf
from ..engine.tensor import TENSORS
from ..errors import RingtapeError, SavedArrayError, ShapeError, typed_errors
from ..random.keys import real
from ..random.placement import of_tensor
from .arguments import number

__all__ = [
    "calculate_gain", "constant_", "fans", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_", "orthogonal_",
    "trunc_normal_", "uniform_", "xavier_normal_", "xavier_uniform_", "zeros_",
]  # fmt: skip

Key = random.Key | None


def _set(p: Leaf, value: Any) -> Leaf:
    array = value.array if value.__class__ in TENSORS else value
    if p.uses or (type(p.array) is np.ndarray and not p.array.flags.writeable):
        raise SavedArrayError(
            f"{p.name or 'a parameter'} cannot be initialised: a tape still needs its present value. Fix: initialise "
            "it after backward"
        )
    if not is_absent(p.array) and type(array) is np.ndarray:
        p.array = move(np.ascontiguousarray(array.astype(p.array.dtype, copy=False)), p.array)
    return p


def _key(key: Key) -> random.Key:
    return random.next_key("init") if key is None else key


@typed_errors
def fans(p: Leaf) -> tuple[int, int]:
    """Return (fan_in, fan_out): the number of inputs of each output, and of outputs of each input.

    A sharded parameter counts whole.

    Raises
    ------
    ShapeError
        The parameter has fewer than two dimensions.

    Examples
    --------
    >>> from autograd import nn
    >>> nn.init.fans(nn.Linear(3, 5).weight), nn.init.fans(nn.Conv2d(4, 6, 3).weight)
    ((3, 5), (36, 54))
    """
    shape = p.global_shape
    if len(shape) < 2:
        raise ShapeError(f"fans: a parameter of shape {shape} was given; needed: at least two dimensions")
    if len(shape) == 2:
        return int(shape[0]), int(shape[1])
    kernel_size = math.prod(shape[2:])
    return int(shape[1]) * kernel_size, int(shape[0]) * kernel_size


@typed_errors
def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the recommended gain of an activation, by which initialisers scale the standard deviation.

    Parameters
    ----------
    nonlinearity : str
        "linear", "conv1d", "conv2d", "conv3d", "sigmoid", "tanh", "relu", "leaky_relu" or "selu"; the values are
        torch's.
    param : float, optional
        The negative slope of "leaky_relu", 0.01 by default.
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1 + (0.01 if param is None else number(param, "calculate_gain: param")) ** 2))
    table = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 3.0 / 4}
    for name in ("conv1d", "conv2d", "conv3d"):
        table[name] = 1.0
    if nonlinearity not in table:
        raise RingtapeError(f"nonlinearity={nonlinearity!r} was given; needed: leaky_relu, {', '.join(table)}")
    return table[nonlinearity]


@typed_errors
def uniform_(p: Leaf, a: float = 0.0, b: float = 1.0, key: Key = None) -> Leaf:
    """Fill with uniform values in [a, b)."""
    return _set(p, random.uniform(_key(key), p, low=a, high=b, dtype=p.array.dtype))


@typed_errors
def normal_(p: Leaf, mean: float = 0.0, std: float = 1.0, key: Key = None) -> Leaf:
    """Fill with normal values of the given mean and standard deviation.

    Examples
    --------
    >>> from autograd import nn, random
    >>> w = nn.init.normal_(nn.Linear(200, 100).weight, std=0.02, key=random.Key(0, "w"))
    >>> bool(abs(w.numpy().std() - 0.02) < 1e-3)
    True
    """
    return _set(p, random.normal(_key(key), p, mean=mean, std=std, dtype=p.array.dtype))


@typed_errors
def trunc_normal_(
    p: Leaf, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, key: Key = None
) -> Leaf:
    """Fill with normal values truncated to [a, b].

    As in torch, `a` and `b` are values and not numbers of standard deviations.
    """
    return _set(p, random.truncated_normal(_key(key), p, mean=mean, std=std, low=a, high=b, dtype=p.array.dtype))


@typed_errors
def constant_(p: Leaf, value: float) -> Leaf:
    """Fill with one value.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd import nn
    >>> nn.init.constant_(ag.Parameter([1.0, 2.0]), 0.5).numpy()
    array([0.5, 0.5])
    """
    return _set(p, np.full(p.array.shape, real(value, "constant_: value"), p.array.dtype))


@typed_errors
def zeros_(p: Leaf) -> Leaf:
    """Fill with zeros.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd import nn
    >>> nn.init.zeros_(ag.Parameter([1.0, 2.0])).numpy()
    array([0., 0.])
    """
    return constant_(p, 0.0)


@typed_errors
def ones_(p: Leaf) -> Leaf:
    """Fill with ones.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd import nn
    >>> nn.init.ones_(ag.Parameter([3.0, 2.0])).numpy()
    array([1., 1.])
    """
    return constant_(p, 1.0)


@typed_errors
def xavier_uniform_(p: Leaf, gain: float = 1.0, key: Key = None) -> Leaf:
    """Fill with uniform values in +-gain * sqrt(6 / (fan_in + fan_out)).

    Source: Glorot & Bengio 2010, equation 16.
    """
    bound = gain * math.sqrt(6.0 / sum(fans(p)))
    return uniform_(p, -bound, bound, key)


@typed_errors
def xavier_normal_(p: Leaf, gain: float = 1.0, key: Key = None) -> Leaf:
    """Fill with normal values of standard deviation gain * sqrt(2 / (fan_in + fan_out)).

    Source: Glorot & Bengio 2010, section 4.2.1.
    """
    return normal_(p, 0.0, gain * math.sqrt(2.0 / sum(fans(p))), key)


def _kaiming_std(p: Leaf, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise RingtapeError(f"mode={mode!r} was given; needed: 'fan_in' or 'fan_out'")
    return calculate_gain(nonlinearity, a) / math.sqrt(fans(p)[mode == "fan_out"])


@typed_errors
def kaiming_uniform_(
    p: Leaf, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", key: Key = None
) -> Leaf:
    """Fill with uniform values of standard deviation gain / sqrt(fan).

    Parameters
    ----------
    p : Parameter
    a : float
        The negative slope of "leaky_relu".
    mode : {"fan_in", "fan_out"}
        "fan_in" keeps the variance of activations, "fan_out" that of cotangents.
    nonlinearity : str
        The activation that follows; see `calculate_gain`.
    key : random.Key, optional

    Notes
    -----
    Source: He et al. 2015, equation 14.
    """
    bound = math.sqrt(3.0) * _kaiming_std(p, a, mode, nonlinearity)
    return uniform_(p, -bound, bound, key)


@typed_errors
def kaiming_normal_(
    p: Leaf, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", key: Key = None
) -> Leaf:
    """Fill with normal values of standard deviation gain / sqrt(fan); the parameters are `kaiming_uniform_`'s."""
    return normal_(p, 0.0, _kaiming_std(p, a, mode, nonlinearity), key)


@typed_errors
def orthogonal_(p: Leaf, gain: float = 1.0, key: Key = None) -> Leaf:
    """Fill with gain times a matrix that has orthonormal columns, or rows where there are fewer rows.

    Dimensions after the first are flattened into the columns. Each rank computes the whole matrix and keeps its part.
    The last bits depend on the LAPACK library of the machine. Source: Saxe et al. 2014.
    """
    key, gain = _key(key), number(gain, "orthogonal_: gain")
    shape, box, _ = of_tensor(p, key.axes, "orthogonal_")
    if len(shape) < 2:
        raise ShapeError(f"orthogonal_: a parameter of shape {shape}; needed: at least two dimensions")
    rows, columns = shape[0], math.prod(shape[1:])
    whole = random.normal(key, (rows, columns), part=(slice(0, rows), slice(0, columns)))
    if type(whole) is not np.ndarray or not whole.size:
        return p
    q, r = np.linalg.qr(whole if rows >= columns else whole.T)
    q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)  # makes the distribution uniform over the orthogonal matrices
    return _set(p, ((q if rows >= columns else q.T) * gain).reshape(shape)[box])
