"""Windows over the spatial dimensions of [n, channels, *spatial], from which convolution and pooling are built.

`unfold` copies the elements of the windows to a new dimension, [n, channels, elements of a window, *windows]; `fold`
adds them back. Each is the adjoint of the other. Both loop over the elements of one window and copy each of them
for all windows at once, by a strided slice: this works on every device, and the copies are long.

On the CPU the copies are long only if the innermost dimension is. Where images are small and examples many, convolution
and pooling compute with the examples innermost: [1, channels, *spatial, n], where the examples are one more spatial
dimension, with windows of one element. The result is a transposed view, so that the next layer, and what acts on single
elements between them, finds this order again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ...arrays.half import in_float32
from ...arrays.shape_only import Shaped
from ...engine.primitive import Primitive, op
from ...errors import ShapeError
from ...layouts.layout import Mix

Shape = tuple[int, ...]


class Windows(NamedTuple):
    """The geometry of windows, with one entry per spatial dimension."""

    kernel: Shape
    stride: Shape
    padding: tuple[tuple[int, int], ...]
    dilation: Shape
    extents: Shape
    """The spatial extents of the array, without padding."""

    @property
    def padded(self) -> Shape:
        """The spatial extents with padding."""
        return tuple(n + low + high for n, (low, high) in zip(self.extents, self.padding, strict=True))

    @property
    def number(self) -> Shape:
        """The number of windows along each spatial dimension."""
        return tuple(
            (n - d * (k - 1) - 1) // s + 1
            for n, k, s, d in zip(self.padded, self.kernel, self.stride, self.dilation, strict=True)
        )

    @property
    def tiles(self) -> bool:
        """Whether each position of the padded array lies in exactly one window."""
        covered = tuple(k * m for k, m in zip(self.kernel, self.number, strict=True))
        return self.stride == self.kernel and max(self.dilation) == 1 and covered == self.padded

    def slices(self) -> tuple[Any, ...]:
        """For each element of a window, the key that takes it from the padded array for all windows."""
        return _slices(self)


@lru_cache(maxsize=1024)  # of the windows of a model; without it each unfold and pooling takes 10 us more
def _slices(w: Windows) -> tuple[Any, ...]:
    number = w.number
    return tuple(
        (..., *(
            slice(i * d, i * d + s * (m - 1) + 1, s)
            for i, d, s, m in zip(at, w.dilation, w.stride, number, strict=True)
        ))
        for at in product(*map(range, w.kernel))
    )  # fmt: skip


def shape_only(shape: Shape, dtype: Any, *arrays: Any) -> Any:
    """A shape-only array where one of the arrays is shape-only, else None."""
    return next((Shaped(shape, dtype, x.why) for x in arrays if type(x) is Shaped), None)


def per_dimension(value: Any, ndim: int, name: str, least: int) -> Shape:
    """Return one integer per spatial dimension, from one for all of them or a sequence; `least` is the smallest."""
    found = tuple(value) if isinstance(value, list | tuple) else (value,) * ndim
    if len(found) != ndim or not all(isinstance(n, int | np.integer) and n >= least for n in found):
        raise ShapeError(f"{name}={value!r} was given; needed: an integer from {least} on, or {ndim} of them")
    return tuple(int(n) for n in found)


def windows(
    caller: str, extents: Shape, kernel: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1
) -> Windows:
    """Return the checked geometry for a user's arguments. Padding "valid" is none; "same" keeps the extents.

    Raises
    ------
    ShapeError
        An argument is out of range, or no window fits.
    """
    ndim = len(extents)
    kernel = per_dimension(kernel, ndim, f"{caller}: kernel_size", 1)
    stride = per_dimension(stride, ndim, f"{caller}: stride", 1)
    dilation = per_dimension(dilation, ndim, f"{caller}: dilation", 1)
    if padding == "same":
        if max(stride) > 1:
            raise ShapeError(f"{caller}: padding='same' with stride={stride}; needed: stride 1")
        reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        pads = tuple((r // 2, r - r // 2) for r in reach)
    else:
        pads = tuple((n, n) for n in per_dimension(0 if padding == "valid" else padding, ndim, f"{caller}: padding", 0))
    found = Windows(kernel, stride, pads, dilation, tuple(int(n) for n in extents))
    if min(found.number) < 1:
        raise ShapeError(
            f"{caller}: no window of {kernel} with dilation {dilation} fits into extents {found.padded}, padding "
            "included"
        )
    return found


def arranged(w: Windows, *arrays: Any) -> tuple[Windows, list[Any], Callable[[Any], Any]]:
    """The windows and arrays [n, channels, *spatial] in the order in which the copies are longest.

    Returns also the function that takes an array of this order back to [n, channels, *spatial]; both are views.
    """
    n = len(arrays[0])
    if n <= w.number[-1] or n <= 1 or arrays[0].__class__ is not np.ndarray:
        return w, list(arrays), lambda y: y
    ones, none = (*w.kernel, 1), (*w.padding, (0, 0))
    inside = Windows(ones, (*w.stride, 1), none, (*w.dilation, 1), (*w.extents, n))
    return inside, [x.transpose((*range(1, x.ndim), 0))[None] for x in arrays], _examples_outside


def _examples_outside(x: Any) -> Any:
    """[1, channels, *spatial, n] as [n, channels, *spatial]."""
    return x[0].transpose((x.ndim - 2, *range(x.ndim - 2)))


def unpadded_key(w: Windows) -> Any:
    """The key of the array within the padded array."""
    found: list[Any] = [slice(None), slice(None)]
    return (*found, *(slice(low, low + n) for (low, _), n in zip(w.padding, w.extents, strict=True)))


def padded(x: Any, w: Windows, fill: float = 0.0) -> Any:
    if not any(map(any, w.padding)):
        return x
    out = np.full_like(x, fill, shape=(*x.shape[:2], *w.padded), order="C")
    out[unpadded_key(w)] = x
    return out


def unfolded(x: Any, w: Windows) -> Any:
    """Return the windows of an array, [n, channels, elements of a window, *windows]; padding counts as 0."""
    elements = math.prod(w.kernel)
    shape = (*x.shape[:2], elements, *w.number)
    if type(x) is Shaped:
        return Shaped(shape, x.dtype, x.why)
    x = padded(x, w)
    if elements == 1 and max(w.stride) == 1:
        return x.reshape(shape)
    out = np.empty_like(x, shape=shape, order="C")
    for k, at in enumerate(w.slices()):
        out[:, :, k] = x[at]
    return out


def folded(ct: Any, w: Windows) -> Any:
    """Return the sum of all windows' elements at their positions; those on padding are dropped."""
    shape = (*ct.shape[:2], *w.extents)
    if type(ct) is Shaped:
        return Shaped(shape, ct.dtype, ct.why)
    if math.prod(w.kernel) == 1 and max(w.stride) == 1 and not any(map(any, w.padding)):
        return ct.reshape(shape)
    out = np.zeros_like(ct, shape=(*ct.shape[:2], *w.padded), order="C")
    add_folded(out, ct, w)
    return out[unpadded_key(w)]


def add_folded(out: Any, ct: Any, w: Windows) -> None:
    """Add all windows' elements at their positions in a padded array."""
    for k, at in enumerate(w.slices()):
        out[at] += ct[:, :, k]


def _unfold_dims(shapes: Sequence[Shape], options: Any) -> Any:
    return [(0, 1, *(Mix for _ in shapes[0][2:]))]


fold: Primitive = op(
    "fold", "a", in_float32(lambda x, w: folded(x, Windows(*w))), lambda ct, y, x, w: unfold(ct, options=(w,)),
    dims=_unfold_dims, operands="x",
)  # fmt: skip
unfold: Primitive = op(
    "unfold", "a", lambda x, w: unfolded(x, Windows(*w)), lambda ct, y, x, w: fold(ct, options=(w,)),
    dims=_unfold_dims, operands="x",
)  # fmt: skip

__all__ = ["Windows", "fold", "folded", "unfold", "unfolded", "windows"]
