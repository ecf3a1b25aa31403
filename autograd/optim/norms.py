"""Norms of parameters and gradients, and gradient clipping.

A norm is that of the whole value. A process can compute it alone without a mesh, and from Invariant and Replicated
copies. On a mesh `global_norm` counts copies once and sums the parts and the Varying values of all ranks. Partial
gradients are refused: the norm of an addend is not the norm of the sum.

A function `norm` of the program may take the place of `global_norm`. The 1st, 2nd, 4th, 8th, ... of its results on a
mesh is compared with that of `global_norm`, and every one between the ranks.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ..arrays.capture import Capture, Whole, current_capture, recorded, refuse
from ..arrays.device import device_of, to_host
from ..arrays.half import is_half, rounded
from ..arrays.pairs import from_pairs, pairs_of
from ..arrays.shape_only import Shaped, is_absent
from ..engine import events
from ..engine.leaves import Leaf
from ..engine.locks import step_check
from ..engine.state import state
from ..engine.tensor import Tensor
from ..errors import ArgumentError, LayoutError, OptionError, typed_errors
from ..kernels import stands_for
from ..layouts.layout import C, D, I, Layout, P, R, Rooted, Shard, V
from ..layouts.messages import describe
from .fused import is_supported, squares
from .hyperparameters import check_numbers

__all__ = [
    "Norm", "axes_of_parts", "check_norm", "clip_grad_norm_", "clip_grad_value_", "global_norm",
    "local_norm", "masters", "norm_of", "sum_of_squares", "traced_norm",
]  # fmt: skip

Norm = Callable[[list[Tensor], float], float]
"""A function from a list of Tensors and the order of the norm to the norm of all their elements together."""

masters: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""By the id of a parameter with a master weight, and of the master weight: the `MasterWeights`, while it exists."""


def local_norm(tensors: list[Tensor], norm_type: float = 2.0) -> float:
    """Return the norm of all elements of the Tensors together. Each must be whole on this rank.

    Raises
    ------
    LayoutError
        A Tensor is sharded, Varying, Partial or Rooted.
    """
    for i, x in enumerate(tensors):
        if x.layout is None:
            continue
        for axis, label in x.layout.items():
            if not any(label is same for same in (I, R, C, D)):
                name = getattr(x, "name", "") or f"value {i}"
                raise LayoutError(
                    f"norm({name}: {describe(x.array, x.array.shape, x.layout)})\n  axis {axis!r}: it is {label.word}, "
                    "and the norm of what this rank holds is not that of the whole\n  fix: norm=optim.global_norm, "
                    "which sums over what all ranks hold"
                )
    arrays = [x.array for x in tensors]
    return _scaled(lambda order, scale: _root(_power(arrays, order, scale), order), norm_type)


def _scaled(norm: Callable[[float, float], float], norm_type: float) -> float:
    """The norm of numbers, given ``norm(order, scale)`` of the numbers divided by `scale`.

    The powers of the numbers may be too large or too small where the norm is neither: these are divided by the largest
    one. The sums of orders 1 and 2 are first computed without that, in double precision. All ranks get the same result
    and take the same branch.
    """
    if norm_type in _PLAIN:
        total = norm(norm_type, 1.0)
        if norm_type == math.inf or math.isnan(total) or 1e-140 < total < math.inf:
            return total
    largest = norm(math.inf, 1.0)
    return largest * norm(norm_type, largest) if 0 < largest < math.inf else largest


_PLAIN = (1.0, 2.0, math.inf)


@typed_errors
def global_norm(tensors: Iterable[Tensor], norm_type: float = 2.0) -> float:
    """Return the norm of all elements of the Tensors together, over all ranks of the mesh.

    Copies (R, I, C) count once, and so does a Rooted value. The parts of a Shard, and Varying values, are summed over
    the ranks: all ranks along their axes call this together, with Tensors of the same layouts. If one is Varying, all
    ranks of the mesh call it, and they may have Tensors of their own, as the stages of a model. All ranks get the same
    number, bitwise.

    Parameters
    ----------
    tensors : iterable of Tensor
    norm_type : float
        Order of the norm, above 0; ``math.inf`` for the largest absolute value.

    Returns
    -------
    float

    Raises
    ------
    LayoutError
        A Tensor is Partial, or its mesh is not current.

    Examples
    --------
    Two ranks hold the parts [3] and [4] of one value, and a copy of [12]:

    >>> import autograd as ag, collectives as cc
    >>> from autograd import optim
    >>> def program():
    ...     with cc.Mesh(tp=2) as mesh:
    ...         part = [3.0 + int(mesh.ranks.rank)]
    ...         w = ag.Parameter(part, {"tp": cc.Shard(0)}, global_shape=(2,))
    ...         return optim.global_norm([w, ag.Parameter([12.0])])
    >>> cc.run(program, ranks=2)
    [13.0, 13.0]
    """
    tensors = list(tensors)
    return _norm_over_ranks(tensors, [x.layout for x in tensors], norm_type)


def _norm_over_ranks(tensors: list[Tensor], layouts: Iterable[Layout | None], norm_type: float) -> float:
    """`global_norm`, where `layouts` are those of all Tensors that any rank may give."""
    layouts = list(layouts)
    by_axes: dict[tuple[str, ...], list[Any]] = {axes_of_parts("global_norm", layout): [] for layout in layouts}
    for x in tensors:
        for axis, label in () if x.layout is None else x.layout.items():
            if label is P:
                raise LayoutError(
                    f"global_norm: a value is {label.word} on axis {axis!r}; needed: copies, parts, or values of each "
                    "rank"
                )
        by_axes.setdefault(axes_of_parts("global_norm", x.layout), []).append(x.array)
    grid: Any = state.grid
    own = any(label is V for layout in layouts if layout is not None for label in layout.labels)
    own = own or bool(state.distribution.stage_axes)

    def norm(order: float, scale: float) -> float:
        found = {axes: _power(arrays, order, scale) for axes, arrays in by_axes.items()}
        if own:  # ranks with Tensors of their own, as stages of a model, may have other layouts than this one
            sizes = dict(zip(grid.names, grid.sizes, strict=True))
            if order != math.inf:  # all ranks add theirs, and copies count once
                for axes in found:
                    found[axes] /= math.prod(n for name, n in sizes.items() if name not in axes)
            found = {grid.names: _sum(found.values(), order)}
        powers = []
        for axes, power in sorted(found.items()):
            call = f"norm over the ranks (axis={'*'.join(axes)!r})"
            powers.append(_sum(state.distribution.numbers_of_all(power, axes, call), order) if axes else power)
        return _root(_sum(powers, order), order)

    return _scaled(norm, norm_type)


def axes_of_parts(caller: str, layout: Layout | None) -> tuple[str, ...]:
    """The axes along which the ranks hold different elements: parts, values of their own, or one rank holds all."""
    if layout is None:
        return ()
    found = [axis for axis, label in layout.items() if label is V or type(label) in (Shard, Rooted)]
    if found and state.grid is not layout.grid:
        raise LayoutError(
            f"{caller}: a value is {layout!r}, and its mesh is not current: the ranks hold parts of it\n"
            "  fix: call it inside `with mesh:`, on all ranks"
        )
    return tuple(found)


def _power(arrays: list[Any], norm_type: float, scale: float) -> float:
    """The sum of the powers of all elements divided by `scale`, or the largest absolute value."""
    arrays = [a for a in arrays if type(a) is not Shaped]  # a dry run has no values: the norm is 0
    if not all(isinstance(a, _HOST) for a in arrays):
        away = [a for a in arrays if not isinstance(a, _HOST)]
        powers = to_host(_powers_on_device(away, norm_type, scale)).tolist()  # one read for all of them
        powers.append(_power([a for a in arrays if isinstance(a, _HOST)], norm_type, scale))
        return _sum(powers, norm_type)
    if norm_type == math.inf:
        return _sum([float(np.max(np.abs(a))) for a in arrays if a.size], norm_type)
    if norm_type == 2.0 and scale == 1.0:  # dot products need no array of squares
        return _sum([sum_of_squares(a) for a in arrays], norm_type)
    with np.errstate(over="ignore"):
        return _sum([float(np.sum(_powers(a, norm_type, scale))) for a in arrays], norm_type)


def _powers(a: Any, norm_type: float, scale: float) -> Any:
    """The powers of the elements divided by `scale`, in double precision."""
    size = np.abs(a).astype(np.float64)
    size = size if scale == 1.0 else size / scale
    return size if norm_type == 1.0 else size**norm_type


_HOST = (np.ndarray, np.generic, float)


def _powers_on_device(arrays: list[Any], norm_type: float, scale: float = 1.0) -> Any:
    """Numbers on the device, the sum of which is that of the powers, or the maximum that of the absolute values."""
    found: list[Any] = []
    by_dtype: dict[Any, list[Any]] = {}
    for a in arrays:
        if norm_type == 2.0 and scale == 1.0:
            for part in parts_of_number(a):
                if is_supported(part) and part.size:
                    by_dtype.setdefault(part.dtype, []).append(part)
                else:
                    found.append(np.sum(np.square(part, dtype=np.float64)))
        elif norm_type != math.inf:
            found.append(np.sum(_powers(a, norm_type, scale)))
        elif a.size:
            found.append(np.max(np.abs(a)).astype(np.float64))
    found += [squares(same)[0] for same in by_dtype.values()]
    return np.stack(found) if found else np.zeros_like(arrays[0], np.float64, shape=(0,))


def parts_of_number(a: Any) -> list[Any]:
    """The array, or the real and the imaginary part of a complex one."""
    return [a.real, a.imag] if a.dtype.kind == "c" else [a]


def norm_on_device(a: Any) -> Any:
    """The norm of one array on a GPU as an array there, without a read."""
    total = np.sqrt(sum(np.sum(np.square(part, dtype=np.float64)) for part in parts_of_number(a)))
    return total.astype(np.float32 if is_half(a.dtype) else a.real.dtype)


def _sum(powers: Iterable[float], norm_type: float) -> float:
    powers = list(powers)
    if norm_type != math.inf:
        return math.fsum(powers) if all(map(math.isfinite, powers)) else sum(powers)  # fsum may refuse others
    return next((x for x in powers if math.isnan(x)), max(powers, default=0.0))


def _root(power: float, norm_type: float) -> float:
    return power if norm_type == math.inf else math.sqrt(power) if norm_type == 2.0 else power ** (1.0 / norm_type)


def norm_of(
    norm: Norm | None, tensors: list[Tensor], norm_type: float = 2.0, layouts: Iterable[Layout | None] = ()
) -> float:
    """Return ``norm(tensors, norm_type)``, by default `global_norm`; `layouts` as in `_norm_over_ranks`.

    The ranks compare what `norm` returns along the axes on which a Tensor is one value, not Varying.

    Raises
    ------
    OptionError
        `norm` returns another number than `global_norm`.
    ArgumentError
        `norm` does not take two arguments.
    """
    if norm is None:
        return _norm_over_ranks(tensors, layouts, norm_type)
    try:
        total, grid = float(norm(tensors, norm_type)), state.grid
    except TypeError as error:
        if _takes_two(norm):
            raise
        raise ArgumentError(
            f"norm={getattr(norm, '__name__', norm)} was called with 2 arguments, which it does not take; needed: a "
            "function of the Tensors and the order of the norm\n  fix: def norm(tensors, norm_type): ..."
        ) from error
    found = [x.layout for x in tensors if x.layout is not None and x.layout.grid is grid]
    known = [*found, *(layout for layout in layouts if layout is not None and layout.grid is grid)]
    if grid is None or not known:
        return total
    labels = [V if all(layout.labels[k] is V for layout in known) else I for k in range(len(grid.names))]
    if found:
        state.distribution.note_declaration("norm", Tensor(np.float64(total), grid.layout(labels)))
    # Where a label is Varying, the rank's own norm may be meant.
    if V not in labels and norm is not global_norm and state.distribution.is_norm_due():
        right = _norm_over_ranks(tensors, layouts, norm_type)
        if not (state.dry or not math.isfinite(right) or math.isclose(total, right, rel_tol=1e-3, abs_tol=1e-12)):
            raise OptionError(
                f"norm= returned {total:.6g}, and the norm of order {norm_type:g} of what all ranks hold together is "
                f"{right:.6g}\n  needed: copies (R, I) count once, and parts (Shard, V) are summed over the ranks; a "
                "sum over the ranks that includes copies counts them once per rank\n"
                "  fix: leave norm= out, which is norm=optim.global_norm"
            )
    return total


def _takes_two(norm: Any) -> bool:
    try:
        inspect.signature(norm).bind((), 2.0)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        pass
    return True


def sum_of_squares(a: Any) -> float:
    """The sum of the squares of the elements of a host array in double precision, in an order that its size fixes."""
    if a.dtype.kind == "c":
        return sum_of_squares(a.real) + sum_of_squares(a.imag)
    return math.fsum(_squares(a))


def _squares(a: Any) -> tuple[Any, ...]:
    """The sum of the squares of each part of an array of real numbers."""
    flat = a.reshape(-1)
    if a.dtype == np.float64:
        with np.errstate(over="ignore"):
            return (flat.dot(flat),)
    if a.dtype.kind != "f":  # bfloat16
        flat = flat.astype(np.float32)
    wide = (flat[i : i + _PART].astype(np.float64) for i in range(0, len(flat), _PART))
    return tuple([part.dot(part) for part in wide])


def _exact_sum(xs: Any) -> Any:
    return np.float64(_sum(xs.tolist(), 2.0))


def _sum_of_numbers(xs: Sequence[Any]) -> Any:
    """The sum of numbers of NumPy as `_sum` makes it, which a trace can call, too."""
    if len(xs) == 1:
        return xs[0]
    return _exact_sum(np.stack(xs)) if stands_for.whole is None else stands_for.whole(_exact_sum, np.stack(xs))


def _root_of(parts: Iterable[tuple[Any, ...]]) -> Any:
    """The norm of arrays whose `_squares` are given, as a number of NumPy."""
    return np.sqrt(_sum_of_numbers([_sum_of_numbers(part) for part in parts]))


def traced_norm(a: Any) -> Any:
    """The norm of one traced array of float32 as an array without dimensions, without a decision on its value.

    It is that of `local_norm`: squares of float32 neither overflow nor vanish in double precision.
    """
    return _root_of((_squares(a),)).reshape(())


_PART = 8192  # so that a part in double precision stays in the cache


@typed_errors
def clip_grad_norm_(
    parameters: Iterable[Leaf] | Leaf, max_norm: float, norm_type: float = 2.0, *, norm: Norm | None = None
) -> float:
    """Scale all gradients by one factor, so that the norm of all their elements together is at most `max_norm`.

    Parameters
    ----------
    parameters : Parameter or iterable of Parameter
        Parameters without a gradient are skipped.
    max_norm : float
        At least 0.
    norm_type : float
        Order of the norm, above 0; ``math.inf`` for the largest absolute value.
    norm : callable, optional
        ``norm(gradients, norm_type)`` returns the norm of all gradients (Tensors) together, including those of the
        other ranks. The default is `global_norm`: if a parameter is sharded or Varying, all ranks along its axes clip
        together.

    Returns
    -------
    float
        The norm before clipping. In a captured step (`autograd.capture`) on a GPU it is an array on the device.

    Raises
    ------
    LayoutError
        A gradient is Partial: clip after the reduction, or each rank clips its own addend.
    OptionError
        `max_norm` or `norm_type` is out of range. `norm` returns another number than `global_norm`.

    Notes
    -----
    The factor is ``min(1, max_norm / (norm + 1e-6))``, as in torch. Source: Pascanu et al. 2013, algorithm 1.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd import optim
    >>> w = ag.Parameter([3.0, 4.0])
    >>> with ag.Tape() as tape:
    ...     loss = (w * w).sum() / 2
    >>> tape.backward(loss); optim.clip_grad_norm_([w], 1.0), w.grad.numpy().round(5)
    (5.0, array([0.6, 0.8]))
    """
    for name, x in (("max_norm", max_norm), ("norm_type", norm_type)):
        if not isinstance(x, numbers.Real):
            raise ArgumentError(f"clip_grad_norm_: {name}={x!r} was given; needed: a number")
    if not max_norm >= 0 or not norm_type > 0:
        raise OptionError(
            f"clip_grad_norm_: max_norm={max_norm}, norm_type={norm_type}; needed: at least 0, and above 0"
        )
    check_norm("clip_grad_norm_", norm)
    given: Any = [parameters] if isinstance(parameters, Leaf) else parameters
    given = list(given) if isinstance(given, Iterable) else given
    gradients = _gradients(given, "clip_grad_norm_")
    layouts: list[Layout | None] = []
    if state.grid is not None:  # a parameter that has a gradient on some ranks only is included on all of them
        layouts = [p.labelled(state.grid) for p in given]
    if (capture := current_capture()) is not None:
        if capture.records:
            if norm is None and _is_plain(gradients, layouts, capture):
                total = _clip_by_rows(gradients, max_norm, norm_type)
            else:
                total = recorded(_clipped, Whole(norm), max_norm, norm_type, *map(Whole, given), changes=True,
                                 name="clip_grad_norm_")  # fmt: skip
            return Tensor(total)  # type: ignore[return-value]  # a float for the checker: a replay has no number
        return _clip_captured(gradients, max_norm, norm_type, norm)
    total = norm_of(norm, [g for _, g in gradients], norm_type, layouts)
    scale = float(max_norm) / (total + 1e-6)
    if not scale >= 1.0:  # a scale of NaN is applied too, as in torch
        for p, g in _scale_on_device(gradients, scale):
            with np.errstate(invalid="ignore"):  # an infinite gradient becomes NaN
                _replace(p, g, _product(g.array, scale))
            if events.listeners:
                with events.emitting("update", name := f"clip {p.name}".strip(), None, p):
                    events.emit("end", "update", name, None, p.grad)
    return total


def _clipped(norm: Norm | None, max_norm: float, norm_type: float, *parameters: Leaf) -> Any:
    return np.float64(clip_grad_norm_(parameters, max_norm, norm_type, norm=norm))


def _is_plain(gradients: list[tuple[Leaf, Tensor]], layouts: Iterable[Layout | None], capture: Capture) -> bool:
    """Whether each rank has all that the norm is of, in arrays of NumPy that calls of the step have made."""
    if any(axes_of_parts("clip_grad_norm_", layout) for layout in layouts) or state.distribution.stage_axes:
        return False
    arrays = [g.array for _, g in gradients]
    return all(
        a.__class__ is np.ndarray and a.dtype.char in "fd" and a.flags.writeable and capture.knows(a)
        for a in arrays
    )


def _clip_by_rows(gradients: list[tuple[Leaf, Tensor]], max_norm: float, norm_type: float) -> Any:
    """`clip_grad_norm_` as calls that a recorded step can compile, which multiply by 1.0 what need not be scaled."""
    arrays = tuple(g.array for _, g in gradients)
    parts = tuple(recorded(_squares, a) for a in arrays) if norm_type == 2.0 else ()
    total, factor = recorded(_total_and_factor, max_norm, norm_type, parts, arrays)
    recorded(_scale, factor, *[Whole(p) for p, _ in gradients], changes="gradients", name="clip_grad_norm_")
    return total


def _total_and_factor(
    max_norm: float, norm_type: float, parts: tuple[Any, ...], arrays: tuple[Any, ...]
) -> tuple[Any, Any]:
    if parts:
        root = _root_of(parts)
        # squares of float32 neither overflow nor vanish in double precision
        if all(a.dtype == np.float32 for a in arrays) or (root > 1e-140) & (root < math.inf):
            factor = float(max_norm) / (root + 1e-6)
            return root, np.where(factor >= 1.0, 1.0, factor)

    def norm(order: float, scale: float) -> float:
        is_of_parts = parts and order == 2.0 and scale == 1.0
        return _root(_sum(map(math.fsum, parts), order) if is_of_parts else _power([*arrays], order, scale), order)

    total = _scaled(norm, norm_type)
    scale = float(max_norm) / (total + 1e-6)
    return np.float64(total), np.float64(1.0 if scale >= 1.0 else scale)


def _scale(factor: Any, *parameters: Leaf) -> None:
    for p in parameters:
        g: Any = p.grad
        with np.errstate(invalid="ignore"):
            g.array[...] = g.array * factor.astype(g.array.dtype)


def _product(a: Any, scale: float) -> Any:
    """An array times a number, which may be too small for 16 bits: of these in float32, rounded once."""
    wide = a.astype(np.float32) if is_half(a.dtype) else a
    y = wide * wide.dtype.type(scale)
    return y if wide is a else rounded(y, a.dtype)


def _scale_on_device(gradients: list[tuple[Leaf, Tensor]], scale: Any) -> list[tuple[Leaf, Tensor]]:
    """Multiply the gradients on a device in place, those of a dtype in one launch. Return the others."""
    by_dtype: dict[Any, list[Any]] = {}
    others = []
    for p, g in gradients:
        a = g.array
        if is_supported(a):
            by_dtype.setdefault(a.dtype, []).append(a)
        else:
            others.append((p, g))
    for same in by_dtype.values():
        squares(same, same, scale, with_sum=False)
    return others


def _clip_captured(gradients: list[tuple[Leaf, Tensor]], max_norm: float, norm_type: float, norm: Norm | None) -> Any:
    """`clip_grad_norm_` in a captured step: the norm stays on the device, and is returned as an array."""
    plain = norm is None and norm_type == 2.0 and state.distribution.is_alone
    if not plain or not all(is_supported(g.array) for _, g in gradients):
        refuse("clip_grad_norm_ reads the norm", "norm_type=2.0, one rank, and contiguous gradients on a GPU")
    if not gradients:
        return 0.0
    total = np.sqrt(np.sum(_powers_on_device([g.array for _, g in gradients], norm_type), keepdims=True))
    _scale_on_device(gradients, np.minimum(1.0, max_norm / (total + 1e-6)))
    return total[0]


@typed_errors
def clip_grad_value_(parameters: Iterable[Leaf] | Leaf, clip_value: float) -> None:
    """Clip each element of each gradient to [-clip_value, clip_value], of a complex one both of its parts.

    Parameters
    ----------
    parameters : iterable of Parameter, or one
        Their gradients are R, I, V or Shard.
    clip_value : float

    Raises
    ------
    LayoutError
        A gradient is Partial.
    OptionError
        `clip_value` is NaN, infinite or negative.
    """
    check_numbers("clip_grad_value_", clip_value=clip_value)
    if (capture := current_capture()) is not None and capture.records:
        given = [parameters] if isinstance(parameters, Leaf) else parameters
        recorded(_clipped_values, clip_value, *map(Whole, given), changes="gradients", name="clip_grad_value_")
        return
    for p, g in _gradients(parameters, "clip_grad_value_"):
        is_complex = g.array.dtype.kind == "c"  # NumPy would compare complex numbers by their real parts
        clipped = np.clip(pairs_of(g.array) if is_complex else g.array, -clip_value, clip_value)
        _replace(p, g, from_pairs(clipped) if is_complex else clipped)


def _clipped_values(clip_value: float, *parameters: Leaf) -> None:
    clip_grad_value_(parameters, clip_value)


def check_norm(caller: str, norm: Any) -> None:
    """Raise ArgumentError unless `norm` is a function, or None."""
    if norm is not None and not callable(norm):
        raise ArgumentError(f"{caller}: norm={norm!r} was given; needed: a function, or None")


def _gradients(parameters: Iterable[Leaf] | Leaf, caller: str) -> list[tuple[Leaf, Tensor]]:
    found = []
    given = [parameters] if isinstance(parameters, Leaf) else parameters
    if not isinstance(given, Iterable):
        raise ArgumentError(f"{caller}: {given!r} was given; needed: Parameters")
    for i, p in enumerate(given):
        if not isinstance(p, Leaf):
            raise ArgumentError(f"{caller}: {type(p).__name__} was given; needed: Parameters")
        if (owner := masters.get(id(p))) is not None:
            p = owner.master_of(p)
        g = p.grad
        if g is None or is_absent(g.array):
            continue
        for axis, label in () if g.layout is None else g.layout.items():
            if label.letter == "P":
                name = p.name or f"parameter {i}"
                raise LayoutError(
                    f"{caller}({name}.grad: {describe(g.array, g.array.shape, g.layout)})\n  axis {axis!r}: the "
                    "gradient is Partial: each rank would clip its own addend, and the sum of clipped addends is not "
                    f"the clipped sum\n  fix: make the parameter Invariant and enter it by cast({name}, {axis!r}, "
                    "to=R), whose adjoint is the all-reduce; then clip"
                )
        step_check(p)
        found.append((p, g))
    return found


def _replace(p: Leaf, g: Tensor, array: Any) -> None:
    """Set the values of the gradient `g` of `p`, in place where possible: buckets and optimizers may hold its array."""
    if g.array.__class__ is np.ndarray and g.array.flags.writeable or device_of(g.array) != "cpu":
        g.array[...] = array
    else:
        p.grad = Tensor(array, g.layout)
