"""Convolution and pooling layers for inputs ``[n, channels, *spatial]``. Weights have torch's shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import ops, random
from ..engine.tensor import Tensor
from ..errors import ShapeError
from ..ops.nn.unfold import per_dimension
from .arguments import count
from .linear import uniform_parameter
from .module import Module

__all__ = ["AvgPool1d", "AvgPool2d", "Conv1d", "Conv2d", "MaxPool1d", "MaxPool2d"]


class _Conv(Module):
    """Convolution of ``[n, in_channels, *spatial]``; see `ops.convolution`.

    The weight has shape ``[out_channels, in_channels / groups, *kernel_size]``. Weight and bias are initialised
    uniformly in +-1 / sqrt(in_channels / groups * prod(kernel_size)), as in torch.

    Parameters
    ----------
    in_channels, out_channels : int
        Multiples of `groups`.
    kernel_size, stride, dilation : int or sequence of int
        One number, or one for each spatial dimension.
    padding : int, sequence of int, "valid" or "same"
        Zeros added on both sides of each spatial dimension.
    groups : int
        Number of groups of channels that are convolved separately.
    bias : bool
    dtype : dtype
    key : random.Key, optional
        Key of the initial weights. By default the thread's next key.

    Raises
    ------
    ShapeError
        `groups` does not divide the channels, or `kernel_size` has the wrong number of entries.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> nn.Conv2d(3, 8, 3, padding=1)(numpy.zeros((2, 3, 5, 5), numpy.float32)).shape
    (2, 8, 5, 5)
    """

    ndim = 0

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1, bias: bool = True, *, dtype: Any = np.float32,
        key: random.Key | None = None,
    ):  # fmt: skip
        name = type(self).__name__
        in_channels = count(in_channels, f"{name}: in_channels")
        out_channels = count(out_channels, f"{name}: out_channels")
        groups = count(groups, f"{name}: groups", 1)
        for what, value, least in ("stride", stride, 1), ("dilation", dilation, 1), ("padding", padding, 0):
            if not (what == "padding" and padding in ("valid", "same")):
                per_dimension(value, self.ndim, f"{name}: {what}", least)
        if in_channels % groups or out_channels % groups:
            raise ShapeError(
                f"{name}: in_channels={in_channels}, out_channels={out_channels}, groups={groups}; needed: multiples "
                "of groups"
            )
        key = random.next_key(name) if key is None else key
        shape = (out_channels, in_channels // groups, *per_dimension(kernel_size, self.ndim, f"{name}: kernel_size", 1))
        bound = 1.0 / max(math.prod(shape[1:]), 1) ** 0.5
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.weight = uniform_parameter(key.fold("weight"), shape, bound, dtype)
        self.bias = uniform_parameter(key.fold("bias"), (out_channels,), bound, dtype) if bias else None

    def forward(self, input: Any) -> Tensor:
        return ops.convolution(input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Conv1d(_Conv):
    __doc__ = _Conv.__doc__
    ndim = 1


class Conv2d(_Conv):
    __doc__ = _Conv.__doc__
    ndim = 2


def _check_windows(module: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any = 1) -> None:
    """Raise ShapeError for sizes of windows that no input fits."""
    given = ("kernel_size", kernel_size, 1), ("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1)
    for what, value, least in given:
        if not (what == "stride" and value is None):
            per_dimension(value, module.ndim, f"{type(module).__name__}: {what}", least)


class _MaxPool(Module):
    """Largest element of each window; see `ops.max_pool`.

    Parameters
    ----------
    kernel_size, dilation : int or sequence of int
        One number, or one for each spatial dimension.
    stride : int or sequence of int, optional
        By default `kernel_size`.
    padding : int or sequence of int
        Implicit -inf on both sides of each spatial dimension.
    """

    ndim = 0

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1):
        _check_windows(self, kernel_size, stride, padding, dilation)
        self.kernel_size, self.stride = kernel_size, stride
        self.padding, self.dilation = padding, dilation

    def forward(self, input: Any) -> Tensor:
        _check_ndim(self, input)
        return ops.max_pool(input, self.kernel_size, self.stride, self.padding, self.dilation)


class MaxPool1d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    ndim = 1


class MaxPool2d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    ndim = 2


class _AvgPool(Module):
    """Mean of each window; see `ops.avg_pool`.

    Parameters
    ----------
    kernel_size : int or sequence of int
        One number, or one for each spatial dimension.
    stride : int or sequence of int, optional
        By default `kernel_size`.
    padding : int or sequence of int
        Zeros on both sides of each spatial dimension.
    count_include_pad : bool
        Whether padding counts as elements of the mean.
    """

    ndim = 0

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0, *, count_include_pad: bool = True):
        _check_windows(self, kernel_size, stride, padding)
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.count_include_pad = count_include_pad

    def forward(self, input: Any) -> Tensor:
        _check_ndim(self, input)
        return ops.avg_pool(input, self.kernel_size, self.stride, self.padding, self.count_include_pad)


class AvgPool1d(_AvgPool):
    __doc__ = _AvgPool.__doc__
    ndim = 1


class AvgPool2d(_AvgPool):
    __doc__ = _AvgPool.__doc__
    ndim = 2


def _check_ndim(module: _MaxPool | _AvgPool, x: Any) -> None:
    if len(x.shape) != module.ndim + 2:
        raise ShapeError(
            f"{type(module).__name__}: x of shape {tuple(map(int, x.shape))}; needed: {module.ndim + 2} dimensions"
        )
