"""Normalisation: over features (layer norm, RMS norm) and over examples (batch norm)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import ops
from ..engine.parameter import Parameter
from ..engine.tensor import TENSORS, Tensor
from ..errors import ShapeError, call_site
from .module import Module

__all__ = ["BatchNorm1d", "BatchNorm2d", "LayerNorm", "RMSNorm"]


def _features(shape: int | Sequence[int], caller: str) -> int:
    found = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    if len(found) != 1:
        raise ShapeError(
            f"{caller}: normalized_shape={shape!r} was given; needed: one number, the extent of the last dimension. "
            "Fix: reshape the last dimensions into one"
        )
    return int(found[0])


class LayerNorm(Module):
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last dimension, which may not be sharded.

    Parameters
    ----------
    normalized_shape : int
    eps : float
    elementwise_affine, bias : bool
        Whether there is a weight (ones at the start), and with it a bias (zeros).
    dtype : dtype

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> nn.LayerNorm(2, eps=0.0)(numpy.array([[1.0, 3.0]])).numpy()
    array([[-1.,  1.]])
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, *, dtype: Any = np.float32,
    ):  # fmt: skip
        n = _features(normalized_shape, "LayerNorm")
        self.eps = eps
        self.weight = Parameter(np.ones(n, dtype)) if elementwise_affine else None
        self.bias = Parameter(np.zeros(n, dtype)) if elementwise_affine and bias else None

    def forward(self, x: Any) -> Any:
        return ops.layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, which may not be sharded.

    Parameters
    ----------
    normalized_shape : int
    eps : float, optional
        By default the precision of the dtype.
    elementwise_affine : bool
    dtype : dtype
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True, *,
        dtype: Any = np.float32,
    ):  # fmt: skip
        self.eps = eps
        n = _features(normalized_shape, "RMSNorm")
        self.weight = Parameter(np.ones(n, dtype)) if elementwise_affine else None

    def forward(self, x: Any) -> Any:
        return ops.rms_norm(x, self.weight, self.eps)


class _BatchNorm(Module):
    """Each channel to mean 0 and variance 1 over the examples and places, then ``* weight + bias``.

    In training the batch's own mean and variance are used, and running averages of them kept as buffers; in evaluation
    the running ones. On a mesh examples that are sharded are refused, for the mean of a part is not the whole's; where
    they are Varying every rank has statistics of its own, and so are the running ones.

    Parameters
    ----------
    num_features : int
        Channels, dimension 1.
    eps : float
    momentum : float, optional
        The weight of the newest batch in the running averages; None for the plain mean over all batches.
    affine, track_running_stats : bool
    dtype : dtype

    Notes
    -----
    Ioffe & Szegedy 2015, algorithm 1. The running variance is the unbiased one, as in torch.
    """

    dimensions: tuple[int, ...] = ()
    running_mean: Any
    running_var: Any
    num_batches_tracked: Any

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, *, dtype: Any = np.float32,
    ):  # fmt: skip
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = Parameter(np.ones(num_features, dtype)) if affine else None
        self.bias = Parameter(np.zeros(num_features, dtype)) if affine else None
        tracked = track_running_stats
        self.register_buffer("running_mean", np.zeros(num_features, dtype) if tracked else None)
        self.register_buffer("running_var", np.ones(num_features, dtype) if tracked else None)
        self.register_buffer("num_batches_tracked", np.zeros((), np.int64) if tracked else None)

    def forward(self, x: Any) -> Any:
        shape = x.array.shape if x.__class__ in TENSORS else np.shape(x)
        if len(shape) not in self.dimensions or shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}: x of shape {shape}; needed: {' or '.join(map(str, self.dimensions))} "
                f"dimensions, and {self.num_features} channels in dimension 1" + call_site()
            )
        axes = (0, *range(2, len(shape)))
        wide = (-1, *(1 for _ in shape[2:]))
        if self.training or self.running_mean is None:
            mean = ops.mean(x, axes, keepdims=True)
            centred = x - mean
            variance = ops.mean(centred * centred, axes, keepdims=True)
            count = int(np.prod([shape[i] for i in axes]))
            if self.training and self.running_mean is not None:
                if count < 2:
                    raise ShapeError(f"{type(self).__name__}: one value a channel, of shape {shape}; needed: two")
                self._track(mean, variance, count)
        else:
            mean = ops.reshape(self.buffer("running_mean"), wide)
            centred, variance = x - mean, ops.reshape(self.buffer("running_var"), wide)
        y = centred / ops.sqrt(variance + self.eps)
        if self.weight is not None:
            y = y * ops.reshape(self.weight, wide) + ops.reshape(self.bias, wide)
        return y

    def _track(self, mean: Any, variance: Any, count: int) -> None:
        seen = np.asarray(self.num_batches_tracked + 1)
        share = 1.0 / float(seen) if self.momentum is None else self.momentum
        self.num_batches_tracked = seen
        for name, new in (("running_mean", mean), ("running_var", variance)):
            scale = share if name == "running_mean" else share * count / (count - 1)
            layout = new.layout if new.__class__ in TENSORS else None
            array = (new.array if new.__class__ in TENSORS else new).reshape(-1)
            known = self.buffer(name) if layout is not None else getattr(self, name)
            if layout is None:
                dtype = known.dtype
                setattr(self, name, (known * (1 - share) + array * scale).astype(dtype))
            else:  # under a mesh, by operations, so that the buffer has the layout of what it is made of
                flat = ops.reshape(ops.stop_gradient(Tensor(new.array, layout)), (-1,))
                self.set_buffer(name, ops.astype(known * (1 - share) + flat * scale, known.dtype))


class BatchNorm1d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__
    dimensions = (2, 3)


class BatchNorm2d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__
    dimensions = (4,)
