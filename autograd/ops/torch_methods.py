"""Methods of torch's tensors that NumPy's arrays do not have, for programs that are ported."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from ..arrays.device import dtype_named, gpu_named, where_to
from ..engine.leaves import Leaf
from ..engine.state import state
from ..engine.tensor import Tensor
from ..errors import ArgumentError, ShapeError, typed_errors
from ..layouts.rank_values import INTEGERS
from . import elementwise, manipulation, shape, sorting
from .arguments import FIRST, normal_axis, one_of
from .indexing import as_parts

__all__ = ["METHODS", "copy"]


def copy(x: Any) -> Tensor:
    """Return `x` itself where the active tape follows it, as ``numpy.copy`` does, else a leaf with a copy of the value.

    Tensors are never changed in place, so a copy is not needed, and a new leaf would have no gradient.
    """
    if state.recording is not None and x.requires_grad:
        return x
    return Leaf(x.array.copy(), x.layout)


def _several(given: tuple[Any, ...]) -> Any:
    """The arguments of a method that takes several integers or one sequence."""
    return given[0] if len(given) == 1 and not isinstance(given[0], INTEGERS) else given


def _integer(n: Any, what: str) -> int:
    try:
        return index(n)
    except TypeError as error:
        raise ArgumentError(f"{what} {n!r} was given; needed: an integer") from error


@typed_errors
def _view(x: Any, *given: Any) -> Any:
    """Return the same elements in another shape: torch's ``view``, which is ``reshape`` here."""
    wanted = _several(given)
    if not isinstance(wanted, Sequence):
        raise ArgumentError(f"view: {wanted!r} was given; needed: extents. Fix: astype, for a dtype")
    return shape.reshape(x, tuple(wanted))


def _permute(x: Any, *dims: Any) -> Any:
    """Return the dimensions permuted."""
    return shape.transpose(x, _several(dims))


def _unsqueeze(x: Any, dim: int | None = None, *, axis: int | None = None) -> Any:
    """Return `x` with a new dimension of extent 1 at `dim`."""
    return shape.expand_dims(x, dim if axis is None else one_of("unsqueeze", dim, None, axis))


def _split(x: Any, split_size: Any, dim: int = FIRST, *, axis: int | None = None) -> tuple[Any, ...]:
    """Return the parts of a size (the last one may be smaller), or of several sizes, along `dim`."""
    dim = dim if axis is None else one_of("split", dim, FIRST, axis)
    n = int(x.array.shape[normal_axis(dim, x.ndim)])
    if isinstance(split_size, Sequence):
        sizes = [_integer(size, "split: the size") for size in split_size]
        if sum(sizes) != n or min(sizes, default=0) < 0:
            raise ShapeError(f"split: sizes {sizes} were given for an extent of {n}; needed: its parts")
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    else:
        size = _integer(split_size, "split: the size")
        if size < 1:
            raise ShapeError(f"split: a size of {size} was given; needed: at least 1")
        ends = list(range(size, n, size))
    return as_parts(tuple(manipulation.split(x, ends, dim)))


def _chunk(x: Any, chunks: int, dim: int = FIRST, *, axis: int | None = None) -> tuple[Any, ...]:
    """Return at most `chunks` parts of one size along `dim`; the last one may be smaller."""
    dim = dim if axis is None else one_of("chunk", dim, FIRST, axis)
    n, chunks = int(x.array.shape[normal_axis(dim, x.ndim)]), _integer(chunks, "chunk: the number")
    if chunks < 1:
        raise ShapeError(f"chunk: {chunks} parts were asked for; needed: at least 1")
    return _split(x, max(-(-n // chunks), 1), dim)


def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """Return `x` with `value` where the mask is True."""
    return sorting.where(mask, value, x)


def _to(x: Any, *args: Any, dtype: Any = None, device: str | None = None, non_blocking: bool = False,
        copy: bool = False) -> Any:  # fmt: skip
    """Return `x` of a dtype and on a device: itself if it is so already. Adjoint: the cotangent, moved back.

    Parameters
    ----------
    *args
        A dtype, a device, both, or a Tensor or array, whose dtype and device are meant.
    dtype : dtype, optional
    device : str, optional
        "cpu", "cuda" (the current GPU of this thread) or "cuda:0".
    non_blocking, copy : bool
        Ignored.

    Raises
    ------
    OptionError
        The device is unknown.
    DependencyError
        The device is a GPU, and CuPy is not installed.
    DeviceError
        The device is a GPU that does not exist, or is not the current one of this thread.

    Examples
    --------
    >>> import autograd as ag
    >>> ag.tensor([1.0, 2.0]).to("cpu", "float32").dtype
    dtype('float32')
    """
    dtype, device = where_to(args, dtype, device, "to")
    y = x if dtype is None else elementwise.astype(x, dtype_named(dtype))
    return y if device is None else elementwise.to_device(y, device)


METHODS: dict[str, Any] = {
    "chunk": _chunk,
    "clone": copy,
    "contiguous": lambda x: x,
    "cpu": lambda x: _to(x, device="cpu"),
    "cuda": lambda x, device=None: _to(x, device=gpu_named(device)),
    "detach": elementwise.stop_gradient,
    "dim": lambda x: x.ndim,
    "masked_fill": _masked_fill,
    "numel": lambda x: x.size,
    "permute": _permute,
    "split": _split,
    "to": _to,
    "unsqueeze": _unsqueeze,
    "view": _view,
}
