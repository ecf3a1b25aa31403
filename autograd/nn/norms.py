"""Normalisation layers: over features (layer norm, RMS norm, group norm) and over examples (batch norm)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from .. import ops
from ..arrays.capture import Whole, recorded, refuse
from ..arrays.device import as_array
from ..arrays.plain import require_plain
from ..engine.leaves import Parameter
from ..engine.promotion import composite
from ..engine.state import no_grad, state
from ..engine.tensor import TENSORS, Tensor
from ..errors import LayoutError, ShapeError, find_site
from ..layouts.layout import Shard
from ..layouts.messages import describe
from ..layouts.names import name_of
from ..ops.arguments import raw
from ..random.philox import floating
from .arguments import count, number
from .module import Module

__all__ = ["BatchNorm1d", "BatchNorm2d", "GroupNorm", "LayerNorm", "RMSNorm"]


def shape_of_features(shape: Any, caller: str) -> tuple[int, ...]:
    """The extents of the dimensions that are normalised, of a number or of a sequence of numbers."""
    found = tuple(shape) if isinstance(shape, Sequence | np.ndarray) else (shape,)
    if not found:
        raise ShapeError(
            f"{caller}: normalized_shape={shape!r} was given; needed: the extent of at least one dimension"
        )
    return tuple(count(n, f"{caller}: normalized_shape", 1) for n in found)


def over_features(caller: str, normalize: Any, shape: tuple[int, ...], x: Any, *parameters: Any) -> Any:
    """Normalise the last dimensions of `x`, which have this shape, together: as one dimension.

    Raises
    ------
    ShapeError
        The last dimensions of `x`, or a parameter, have another shape.
    """
    k = len(shape)
    if raw(x).shape[-k:] != shape:
        raise ShapeError(
            f"{caller}: normalized_shape={shape} was given for an input of shape {raw(x).shape}; needed: "
            f"{raw(x).shape[-k:]}, the last {'dimension' if k == 1 else f'{k} dimensions'}"
        )
    if k == 1:
        return normalize(x, *parameters)
    for p in parameters:
        if p is not None and raw(p).shape != shape:
            raise ShapeError(
                f"{caller}: a weight or bias of shape {raw(p).shape} was given; needed: {shape}, the normalized_shape"
            )
    rows = ops.reshape(x, (*x.shape[:-k], math.prod(shape)))
    y = normalize(rows, *(None if p is None else ops.reshape(p, (-1,)) for p in parameters))
    return ops.reshape(y, (*y.shape[:-1], *shape))


class LayerNorm(Module):
    """``(x - mean) / sqrt(variance + eps) * weight + bias``, mean and variance over the last dimensions.

    They must not be sharded.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        Extents of the dimensions that are normalised together: the last ones. A number is that of the last dimension.
    eps : float
    elementwise_affine : bool
        Whether there is a weight, initialised to ones.
    bias : bool
        Whether there is also a bias, initialised to zeros.
    dtype : dtype

    Notes
    -----
    Source: Ba, Kiros & Hinton 2016, section 3.

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
        self.normalized_shape = shape = shape_of_features(normalized_shape, "LayerNorm")
        self.eps, dtype = number(eps, "LayerNorm: eps", 0), floating(dtype, "LayerNorm")
        self.weight = Parameter(np.ones(shape, dtype)) if elementwise_affine else None
        self.bias = Parameter(np.zeros(shape, dtype)) if elementwise_affine and bias else None

    def forward(self, input: Any) -> Tensor:
        if len(self.normalized_shape) == 1:
            return ops.layer_norm(input, self.weight, self.bias, self.eps)
        normalize = partial(ops.layer_norm, eps=self.eps)
        return over_features("LayerNorm", normalize, self.normalized_shape, input, self.weight, self.bias)


class RMSNorm(Module):
    """``x / sqrt(mean(x^2) + eps) * weight``, the mean over the last dimensions, which must not be sharded.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        Extents of the dimensions that are normalised together: the last ones. A number is that of the last dimension.
    eps : float, optional
        By default the machine epsilon of the dtype of x.
    elementwise_affine : bool
        Whether there is a weight, initialised to ones.
    dtype : dtype

    Notes
    -----
    Source: Zhang & Sennrich 2019, equation 4.
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True, *,
        dtype: Any = np.float32,
    ):  # fmt: skip
        self.eps = None if eps is None else number(eps, "RMSNorm: eps", 0)
        self.normalized_shape, dtype = shape_of_features(normalized_shape, "RMSNorm"), floating(dtype, "RMSNorm")
        self.weight = Parameter(np.ones(self.normalized_shape, dtype)) if elementwise_affine else None

    def forward(self, input: Any) -> Tensor:
        if len(self.normalized_shape) == 1:
            return ops.rms_norm(input, self.weight, self.eps)
        normalize = partial(ops.rms_norm, eps=self.eps)
        return over_features("RMSNorm", normalize, self.normalized_shape, input, self.weight)


def _refuse_parts(caller: str, x: Any, axes: Sequence[int]) -> None:
    """Raise LayoutError for examples that are divided among the ranks."""
    if x.__class__ not in TENSORS or x.layout is None or not x.layout.special:
        return
    for axis, label in x.layout.items():
        if type(label) is Shard and label.dim in axes:
            name, d = name_of(x, "x"), label.dim
            gathered = f"all_gather({name}, {axis!r}, dim={d})"
            raise LayoutError(
                f"{caller}({name}: {describe(x.array, x.array.shape, x.layout)})\n"
                f"  axis {axis!r}: {name} is {label!r}, and {caller} takes no sharded examples: each rank would use "
                "the mean and the variance of its own part\n"
                "  fix: LayerNorm, RMSNorm or GroupNorm in its place, which normalize each example\n"
                f"  or:  shard(norm({gathered}), {axis!r}, dim={d})   (every rank normalizes the whole batch)"
            )


class GroupNorm(Module):
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` of [examples, channels, ...], statistics of channel groups.

    The mean and variance are those of each example's group of consecutive channels, over all positions. Examples may be
    sharded; channels and positions may not.

    Parameters
    ----------
    num_groups, num_channels : int
        `num_channels` is the size of dimension 1, a multiple of `num_groups`.
    eps : float
    affine : bool
        Whether there are a weight and a bias of each channel, initialised to ones and zeros.
    dtype : dtype

    Raises
    ------
    ShapeError
        The channels do not divide into groups; or, when called, x has other channels.

    Notes
    -----
    Source: Wu & He 2018, section 3.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> nn.GroupNorm(1, 2, eps=0.0)(numpy.array([[1.0, 3.0]])).numpy()
    array([[-1.,  1.]])
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, *, dtype: Any = np.float32
    ):
        num_groups = count(num_groups, "GroupNorm: num_groups", 1)
        num_channels = count(num_channels, "GroupNorm: num_channels", 1)
        if num_channels % num_groups:
            raise ShapeError(
                f"GroupNorm: num_groups={num_groups}, num_channels={num_channels}; needed: num_channels a multiple of "
                "num_groups"
            )
        self.num_groups, self.num_channels = num_groups, num_channels
        self.eps, dtype = number(eps, "GroupNorm: eps", 0), floating(dtype, "GroupNorm")
        self.weight = Parameter(np.ones(num_channels, dtype)) if affine else None
        self.bias = Parameter(np.zeros(num_channels, dtype)) if affine else None

    def forward(self, input: Any) -> Tensor:
        shape = input.shape if input.__class__ in TENSORS else np.shape(input)
        if len(shape) < 2 or shape[1] != self.num_channels:
            raise ShapeError(
                f"GroupNorm: x of shape {tuple(shape)}; needed: {self.num_channels} channels in dimension 1"
            )
        return self._normalized(input, self.weight, self.bias, shape)

    @composite
    def _normalized(self, input: Any, weight: Any, bias: Any, shape: tuple[int, ...]) -> Any:
        groups = ops.layer_norm(ops.reshape(input, (shape[0], self.num_groups, -1)), None, None, self.eps)
        y = ops.reshape(groups, shape)
        if weight is None:
            return y
        wide = (-1, *(1 for _ in shape[2:]))
        return y * ops.reshape(weight, wide) + ops.reshape(bias, wide)


def _update_in_place(module: _BatchNorm, mean: Any, variance: Any, count: int) -> None:
    """Update running averages in their arrays, as replays of a step need, which know a module by its attributes."""
    before = {name: getattr(module, name) for name in _AVERAGES}
    with no_grad():  # a tape would lock the averages, which its operations read on a mesh
        module._update(mean, variance, count)
    for name, old in before.items():
        new = getattr(module, name)
        into, array = raw(old), raw(new)
        is_same = getattr(old, "layout", None) is getattr(new, "layout", None) and into.dtype == array.dtype
        if is_same and isinstance(into, np.ndarray) and into.flags.writeable:
            into[...] = array
            setattr(module, name, old)


_AVERAGES = ("running_mean", "running_var", "num_batches_tracked")


class _BatchNorm(Module):
    """Batch normalisation: ``(x - mean) / sqrt(variance + eps) * weight + bias``, statistics of each channel.

    The mean and variance of a channel are over the examples and the spatial dimensions. Training mode uses those of the
    batch and updates running averages of them, which are buffers. Evaluation mode uses the running averages. On a mesh
    sharded examples are refused, because the mean of a part is not the mean of the batch. If examples are Varying, each
    rank has its own statistics and running averages.

    Parameters
    ----------
    num_features : int
        Number of channels, the size of dimension 1.
    eps : float
    momentum : float, optional
        Weight of the newest batch in the running averages. None takes the plain mean over all batches.
    affine : bool
        Whether there are a weight and a bias, initialised to ones and zeros.
    track_running_stats : bool
        If False, evaluation mode uses the statistics of the batch too.
    dtype : dtype

    Raises
    ------
    ShapeError
        When called with a wrong number of dimensions or channels, or, in training, with one value per channel.

    Notes
    -----
    Source: Ioffe & Szegedy 2015, algorithm 1. The running variance is the unbiased one, as in torch.
    """

    dimensions: tuple[int, ...] = ()
    running_mean: Any
    running_var: Any
    num_batches_tracked: Any

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, *, dtype: Any = np.float32,
    ):  # fmt: skip
        name = type(self).__name__
        self.num_features = num_features = count(num_features, f"{name}: num_features")
        self.eps = number(eps, f"{name}: eps", 0)
        self.momentum = None if momentum is None else number(momentum, f"{name}: momentum", 0, 1)
        dtype = floating(dtype, name)
        self.weight = Parameter(np.ones(num_features, dtype)) if affine else None
        self.bias = Parameter(np.zeros(num_features, dtype)) if affine else None
        tracked = track_running_stats
        self.register_buffer("running_mean", np.zeros(num_features, dtype) if tracked else None)
        self.register_buffer("running_var", np.ones(num_features, dtype) if tracked else None)
        self.register_buffer("num_batches_tracked", np.zeros((), np.int64) if tracked else None)

    def forward(self, input: Any) -> Tensor:
        if input.__class__ not in TENSORS:
            require_plain(input, type(self).__name__)
        shape = input.array.shape if input.__class__ in TENSORS else np.shape(input)
        if len(shape) not in self.dimensions or shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}: x of shape {shape}; needed: {' or '.join(map(str, self.dimensions))} "
                f"dimensions, and {self.num_features} channels in dimension 1"
            )
        return self._normalized(input, self.weight, self.bias, shape)

    @composite
    def _normalized(self, input: Any, weight: Any, bias: Any, shape: tuple[int, ...]) -> Any:
        axes = (0, *range(2, len(shape)))
        wide = (-1, *(1 for _ in shape[2:]))
        if self.training or self.running_mean is None:
            _refuse_parts(type(self).__name__, input, axes)
            mean = ops.mean(input, axes, keepdims=True)
            recording = state.recording if mean.__class__ in TENSORS and mean.layout is not None else None
            if recording is not None and mean.tape is recording:
                recording.note(mean.node, type(self).__name__, find_site())  # the rows of a rank meet in it
            centred = ops.subtract(input, mean)  # an operation, also of a plain array
            variance = ops.mean(ops.multiply(centred, centred), axes, keepdims=True)
            count = int(np.prod([shape[i] for i in axes]))
            if self.training and self.running_mean is not None:
                if count < 2:
                    raise ShapeError(
                        f"{type(self).__name__}: x of shape {shape} has one value per channel; needed in training: at "
                        "least two"
                    )
                self._track(mean, variance, count)
        else:
            mean = ops.reshape(self.buffer("running_mean"), wide)
            centred, variance = ops.subtract(input, mean), ops.reshape(self.buffer("running_var"), wide)
        y = ops.divide(centred, ops.sqrt(ops.add(variance, self.eps)))
        if weight is not None:
            y = y * ops.reshape(weight, wide) + ops.reshape(bias, wide)
        return y

    def _track(self, mean: Any, variance: Any, count: int) -> None:
        if state.repeats:  # the first run has counted the batch
            return
        if state.recorder is None:
            self._update(mean, variance, count)
            return
        recorded(_update_in_place, Whole(self), mean, variance, count, changes="buffers", name="running averages")

    def _update(self, mean: Any, variance: Any, count: int) -> None:
        refuse("running averages of a module were updated", "evaluation mode, or track_running_stats=False")
        batches = as_array(self.num_batches_tracked + 1)
        if issubclass(type(batches), np.generic):  # a captured step writes to it
            batches = np.array(batches)
        momentum = 1.0 / batches if self.momentum is None else self.momentum
        self.num_batches_tracked = batches
        for name, new, scale in (
            ("running_mean", mean, momentum),
            ("running_var", variance, momentum * count / (count - 1)),
        ):
            layout = new.layout if new.__class__ in TENSORS else None
            if layout is None:
                array = (new.array if new.__class__ in TENSORS else new).reshape(-1)
                old = getattr(self, name)
                setattr(self, name, (old * (1 - momentum) + array * scale).astype(old.dtype))
            else:  # on a mesh, by operations, which infer the layout of the buffer
                flat = ops.reshape(ops.stop_gradient(Tensor(new.array, layout)), (-1,))
                old = self.buffer(name)
                self.set_buffer(name, ops.astype(old * (1 - momentum) + flat * scale, old.dtype))


class BatchNorm1d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__
    dimensions = (2, 3)


class BatchNorm2d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__
    dimensions = (4,)
