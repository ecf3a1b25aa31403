"""Windows over the spatial dimensions of [examples, channels, *places]: what convolutions and pooling are made of.

`unfold` lays the windows out along a new dimension, [n, c, places in a window, *windows]; `fold` adds them back. Each
is the other's adjoint. Both go through the places of a window one by one, as slices with a step, so that arrays of any
device serve and what is copied is long.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ...arrays.shape_only import Shaped
from ...engine.primitive import Primitive, op
from ...errors import ShapeError, call_site
from ...layouts.layout import Mix

Shape = tuple[int, ...]


class Windows(NamedTuple):
    """Where windows lie; one entry per spatial dimension."""

    kernel: Shape
    stride: Shape
    padding: tuple[tuple[int, int], ...]
    dilation: Shape
    places: Shape
    """The extents that the windows go over, without padding."""

    @property
    def padded(self) -> Shape:
        """The extents with padding."""
        return tuple(n + low + high for n, (low, high) in zip(self.places, self.padding, strict=True))

    @property
    def number(self) -> Shape:
        """How many windows."""
        return tuple(
            (n - d * (k - 1) - 1) // s + 1
            for n, k, s, d in zip(self.padded, self.kernel, self.stride, self.dilation, strict=True)
        )

    def slices(self) -> Iterator[Any]:
        """For each place in a window, where all windows have it in the padded array."""
        for at in product(*map(range, self.kernel)):
            yield (..., *(
                slice(i * d, i * d + s * (m - 1) + 1, s)
                for i, d, s, m in zip(at, self.dilation, self.stride, self.number, strict=True)
            ))  # fmt: skip


def each(value: Any, ndim: int, name: str, least: int) -> Shape:
    """One integer per spatial dimension, from one for all or a sequence."""
    found = (value,) * ndim if isinstance(value, int | np.integer) else tuple(value)
    if len(found) != ndim or any(int(n) != n or n < least for n in found):
        raise ShapeError(
            f"{name}={value!r} was given; needed: an integer from {least} on, or {ndim} of them" + call_site()
        )
    return tuple(int(n) for n in found)


def windows(
    caller: str, places: Shape, kernel: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1
) -> Windows:
    """The windows that a user's words mean; "valid" is no padding, "same" as many windows as places."""
    ndim = len(places)
    kernel = each(kernel, ndim, f"{caller}: kernel_size", 1)
    stride = each(stride, ndim, f"{caller}: stride", 1)
    dilation = each(dilation, ndim, f"{caller}: dilation", 1)
    if padding == "same":
        if max(stride) > 1:
            raise ShapeError(f"{caller}: padding='same' with stride={stride}; needed: stride 1" + call_site())
        reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        pads = tuple((r // 2, r - r // 2) for r in reach)
    else:
        pads = tuple((n, n) for n in each(0 if padding == "valid" else padding, ndim, f"{caller}: padding", 0))
    found = Windows(kernel, stride, pads, dilation, tuple(int(n) for n in places))
    if min(found.number) < 1:
        raise ShapeError(
            f"{caller}: windows of {kernel} with dilation {dilation} over {found.padded} places, padding included: "
            "none fits" + call_site()
        )
    return found


def _inside(w: Windows) -> Any:
    """Where the places are in the padded array."""
    found: list[Any] = [slice(None), slice(None)]
    return (*found, *(slice(low, low + n) for (low, _), n in zip(w.padding, w.places, strict=True)))


def _padded(x: Any, w: Windows, fill: float = 0.0) -> Any:
    if not any(map(any, w.padding)):
        return x
    out = np.full_like(x, fill, shape=(*x.shape[:2], *w.padded))
    out[_inside(w)] = x
    return out


def unfolded(x: Any, w: Windows, fill: float = 0.0) -> Any:
    """The windows of an array, [n, c, places in a window, *windows]; padding counts as `fill`."""
    inside = math.prod(w.kernel)
    shape = (*x.shape[:2], inside, *w.number)
    if type(x) is Shaped:
        return Shaped(shape, x.dtype, x.why)
    x = _padded(x, w, fill)
    if inside == 1 and max(w.stride) == 1:
        return x.reshape(shape)
    out = np.empty_like(x, shape=shape)
    for k, at in enumerate(w.slices()):
        out[:, :, k] = x[at]
    return out


def folded(ct: Any, w: Windows) -> Any:
    """Every window's elements added at their places; what falls on padding is dropped."""
    shape = (*ct.shape[:2], *w.places)
    if type(ct) is Shaped:
        return Shaped(shape, ct.dtype, ct.why)
    if math.prod(w.kernel) == 1 and max(w.stride) == 1 and not any(map(any, w.padding)):
        return ct.reshape(shape)
    out = np.zeros_like(ct, shape=(*ct.shape[:2], *w.padded))
    for k, at in enumerate(w.slices()):
        out[at] += ct[:, :, k]
    return out[_inside(w)]


def _unfold_dims(shapes: Sequence[Shape], options: Any) -> Any:
    return [(0, 1, *(Mix for _ in shapes[0][2:]))]


fold: Primitive = op(
    "fold", "a", lambda x, w: folded(x, Windows(*w)), lambda ct, y, x, w: unfold(ct, options=(w,)),
    dims=_unfold_dims, operands="x",
)  # fmt: skip
unfold: Primitive = op(
    "unfold", "a", lambda x, w: unfolded(x, Windows(*w)), lambda ct, y, x, w: fold(ct, options=(w,)),
    dims=_unfold_dims, operands="x",
)  # fmt: skip

__all__ = ["Windows", "each", "fold", "folded", "unfold", "unfolded", "windows"]
