"""Initialisers of parameters, with torch's names. Each changes a Parameter in place and returns it.

Random values come from `random`, with a key that is given or the thread's next one. They do not depend on the number
of ranks: a sharded parameter gets its part of one logical draw.

Shapes are read as this package stores them: a matrix is [in, out], a parameter of more dimensions is a convolution's
``[out, in, *kernel]``.

All take a Parameter `tensor` of any shape and layout, and return it. A `key` is a `random.Key`; by default it is the
thread's next one. They raise `SavedArrayError` if a tape still needs the present value of `tensor`. Those that use the
numbers of inputs and outputs (`fans`), and `orthogonal_`, raise `ShapeError` for fewer than two dimensions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import random
from ..arrays.device import device_of, move
from ..arrays.shape_only import is_absent
from ..engine.leaves import Leaf
from ..engine.tensor import TENSORS
from ..errors import RingtapeError, SavedArrayError, ShapeError, answering, typed_errors
from ..random.keys import real
from ..random.placement import of_tensor
from .arguments import count, number

__all__ = [
    "calculate_gain", "constant_", "dirac_", "eye_", "fans", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_",
    "orthogonal_", "trunc_normal_", "uniform_", "xavier_normal_", "xavier_uniform_", "zeros_",
]  # fmt: skip

Key = random.Key | None


def _set(tensor: Leaf, value: Any) -> Leaf:
    array = value.array if value.__class__ in TENSORS else value
    if tensor.uses or (type(tensor.array) is np.ndarray and not tensor.array.flags.writeable):
        raise SavedArrayError(
            f"{tensor.name or 'a parameter'} cannot be initialised: a tape still needs its present value. Fix: "
            "initialise it after backward"
        )
    if not is_absent(tensor.array) and type(array) is np.ndarray:
        tensor.array = move(np.ascontiguousarray(array.astype(tensor.array.dtype, copy=False)), tensor.array)
    elif device_of(array) != "cpu":  # drawn there
        tensor.array = array.astype(tensor.array.dtype, copy=False)
    return tensor


def _key(key: Key) -> random.Key:
    return random.next_key("init") if key is None else key


@typed_errors
def fans(tensor: Leaf) -> tuple[int, int]:
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
    shape = tensor.global_shape
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
        "linear", "conv1d" to "conv3d", "conv_transpose1d" to "conv_transpose3d", "sigmoid", "tanh", "relu",
        "leaky_relu" or "selu"; the values are torch's.
    param : float, optional
        The negative slope of "leaky_relu", 0.01 by default.
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1 + (0.01 if param is None else number(param, "calculate_gain: param")) ** 2))
    table = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 3.0 / 4}
    for n in (1, 2, 3):
        table[f"conv{n}d"] = table[f"conv_transpose{n}d"] = 1.0
    if nonlinearity not in table:
        text = f"nonlinearity={nonlinearity!r} was given; needed: leaky_relu, {', '.join(table)}"
        raise RingtapeError(text)
    return table[nonlinearity]


@typed_errors
def uniform_(tensor: Leaf, a: float = 0.0, b: float = 1.0, key: Key = None) -> Leaf:
    """Fill with uniform values in [a, b)."""
    return _set(tensor, random.uniform(_key(key), tensor, low=a, high=b, dtype=tensor.array.dtype))


@typed_errors
def normal_(tensor: Leaf, mean: float = 0.0, std: float = 1.0, key: Key = None) -> Leaf:
    """Fill with normal values of the given mean and standard deviation.

    Examples
    --------
    >>> from autograd import nn, random
    >>> w = nn.init.normal_(nn.Linear(200, 100).weight, std=0.02, key=random.Key(0, "w"))
    >>> bool(abs(w.numpy().std() - 0.02) < 1e-3)
    True
    """
    return _set(tensor, random.normal(_key(key), tensor, mean=mean, std=std, dtype=tensor.array.dtype))


@typed_errors
def trunc_normal_(
    tensor: Leaf, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, key: Key = None
) -> Leaf:
    """Fill with normal values truncated to [a, b].

    As in torch, `a` and `b` are values and not numbers of standard deviations.
    """
    drawn = random.truncated_normal(_key(key), tensor, mean=mean, std=std, low=a, high=b, dtype=tensor.array.dtype)
    return _set(tensor, drawn)


@typed_errors
def constant_(tensor: Leaf, val: float) -> Leaf:
    """Fill with one value.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd import nn
    >>> nn.init.constant_(ag.Parameter([1.0, 2.0]), 0.5).numpy()
    array([0.5, 0.5])
    """
    return _set(tensor, np.full(tensor.array.shape, real(val, "constant_: val"), tensor.array.dtype))


@typed_errors
def zeros_(tensor: Leaf) -> Leaf:
    """Fill with zeros.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd import nn
    >>> nn.init.zeros_(ag.Parameter([1.0, 2.0])).numpy()
    array([0., 0.])
    """
    return constant_(tensor, 0.0)


@typed_errors
def ones_(tensor: Leaf) -> Leaf:
    """Fill with ones.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd import nn
    >>> nn.init.ones_(ag.Parameter([3.0, 2.0])).numpy()
    array([1., 1.])
    """
    return constant_(tensor, 1.0)


@typed_errors
def eye_(tensor: Leaf) -> Leaf:
    """Fill a matrix with zeros, and ones on its diagonal, so that a linear layer returns its inputs.

    Raises
    ------
    ShapeError
        It has not two dimensions.

    Examples
    --------
    >>> from autograd import nn
    >>> nn.init.eye_(nn.Linear(2, 3).weight).numpy()
    array([[1., 0., 0.],
           [0., 1., 0.]], dtype=float32)
    """
    shape, box, _ = of_tensor(tensor, (), "eye_")
    if len(shape) != 2:
        raise ShapeError(f"eye_: a parameter of shape {shape} was given; needed: two dimensions")
    return _set(tensor, np.eye(int(shape[0]), int(shape[1]))[box])


@typed_errors
def dirac_(tensor: Leaf, groups: int = 1) -> Leaf:
    """Fill a convolution's weight so that it returns as many of its input channels as it can, in each group.

    Raises
    ------
    ShapeError
        It has not 3, 4 or 5 dimensions, or `groups` does not divide the first.
    """
    shape, box, _ = of_tensor(tensor, (), "dirac_")
    groups = count(groups, "dirac_: groups", 1)
    if len(shape) not in (3, 4, 5) or shape[0] % groups:
        raise ShapeError(
            f"dirac_: a parameter of shape {shape} and groups={groups} were given; needed: 3 to 5 dimensions, the "
            "first a multiple of groups"
        )
    whole, each = np.zeros(tuple(map(int, shape))), int(shape[0]) // groups
    centre = tuple(int(n) // 2 for n in shape[2:])
    for group in range(groups):
        for i in range(min(each, int(shape[1]))):
            whole[(group * each + i, i, *centre)] = 1
    return _set(tensor, whole[box])


@typed_errors
def xavier_uniform_(tensor: Leaf, gain: float = 1.0, key: Key = None) -> Leaf:
    """Fill with uniform values in +-gain * sqrt(6 / (fan_in + fan_out)).

    Source: Glorot & Bengio 2010, equation 16.
    """
    bound = gain * math.sqrt(6.0 / sum(fans(tensor)))
    return uniform_(tensor, -bound, bound, key)


@typed_errors
def xavier_normal_(tensor: Leaf, gain: float = 1.0, key: Key = None) -> Leaf:
    """Fill with normal values of standard deviation gain * sqrt(2 / (fan_in + fan_out)).

    Source: Glorot & Bengio 2010, section 4.2.1.
    """
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(fans(tensor))), key)


def _kaiming_std(tensor: Leaf, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise RingtapeError(f"mode={mode!r} was given; needed: 'fan_in' or 'fan_out'")
    return calculate_gain(nonlinearity, a) / math.sqrt(fans(tensor)[mode == "fan_out"])


@typed_errors
def kaiming_uniform_(
    tensor: Leaf, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", key: Key = None
) -> Leaf:
    """Fill with uniform values of standard deviation gain / sqrt(fan).

    Parameters
    ----------
    tensor : Parameter
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
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, key)


@typed_errors
def kaiming_normal_(
    tensor: Leaf, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", key: Key = None
) -> Leaf:
    """Fill with normal values of standard deviation gain / sqrt(fan); the parameters are `kaiming_uniform_`'s."""
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), key)


@typed_errors
def orthogonal_(tensor: Leaf, gain: float = 1.0, key: Key = None) -> Leaf:
    """Fill with gain times a matrix that has orthonormal columns, or rows where there are fewer rows.

    Dimensions after the first are flattened into the columns. Each rank computes the whole matrix and keeps its part.
    The last bits depend on the LAPACK library of the machine. Source: Saxe et al. 2014.
    """
    key, gain = _key(key), number(gain, "orthogonal_: gain")
    shape, box, _ = of_tensor(tensor, key.axes, "orthogonal_")
    if len(shape) < 2:
        raise ShapeError(f"orthogonal_: a parameter of shape {shape}; needed: at least two dimensions")
    rows, columns = shape[0], math.prod(shape[1:])
    whole = random.normal(key, (rows, columns), part=(slice(0, rows), slice(0, columns)))
    if type(whole) is not np.ndarray or not whole.size:
        return tensor
    q, r = np.linalg.qr(whole if rows >= columns else whole.T)
    q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)  # makes the distribution uniform over the orthogonal matrices
    return _set(tensor, ((q if rows >= columns else q.T) * gain).reshape(shape)[box])

globals()["__getattr__"] = answering(__name__)
