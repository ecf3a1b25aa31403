"""The Jacobian and the Hessian, by one sweep per element of the global value.

Every rank makes the same number of sweeps, whatever part of the value it holds, so that communications inside match,
for uneven parts too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import ops
from ..arrays.capture import checked, recorded
from ..arrays.shape_only import DRY, Shaped
from ..engine.state import no_grad, state
from ..engine.tensor import TENSORS, Tensor
from ..errors import ArgumentError, ObjectiveError, typed_errors
from ..layouts.layout import C, I, Layout, Shard
from .basis import Basis
from .reverse import warn_if_constant
from .traced import Function, Traced, zeros_like
from .wrapping import Argnum, like, nary

__all__ = ["hessian", "jacobian"]


@typed_errors
def jacobian(fun: Function, argnum: Argnum = 0, *, mode: str | None = None) -> Function:
    """
    Returns a function which computes the Jacobian of `fun`, the array of all partial derivatives.

    Parameters
    ----------
    fun : callable
        Returns an array, or a nested container of arrays, of any layout.
    argnum : int or sequence of int
        As in `grad`.
    mode : "reverse" or "forward", optional
        Reverse mode takes one sweep per element of the output, forward mode one per element of the argument. The
        default is the cheaper one: forward if it takes at most half as many sweeps, because a forward replay costs up
        to twice a reverse sweep. Under a mesh the layout of the result depends on the mode, and the default is reverse.

    Returns
    -------
    callable
        A function of the arguments of `fun`. It returns the array ``J[i..., j...] = d y[i...] / d x[j...]``, whose
        shape is that of the output followed by that of the argument. Containers give a container like the output, in
        which each leaf is a container like the argument.

    Raises
    ------
    ArgumentError
        `mode` is neither "reverse" nor "forward".
    ObjectiveError
        In a call: a complex output is not a holomorphic function of a complex argument, so that it has no complex
        derivative.
    ShapeError
        In a call, on all ranks: the parts of a Varying value do not fit together.

    Notes
    -----
    The cost is one run of `fun` and one sweep per element of the output y, or of the argument x; in reverse mode two
    per element for a complex y and a real x. For a complex x and a real y the rows are gradients, ``df/dx - i df/dy``.

    Under a mesh all ranks loop over the elements of the global value together; a rank that does not hold the current
    element starts its sweep from zeros. In reverse mode the first dimensions of J are those of the whole output, on
    every rank, and the others are this rank's part of the argument. Each row is a gradient, so its layout is dual to
    that of the argument (shifted by the dimensions of the output): a Replicated argument gives addends (P), which
    ``all_reduce`` sums; a Shard(0) argument gives the columns of this rank. In forward mode each column is a tangent
    of the output: first comes this rank's part of the output, in the output's layout, then the whole argument. The
    parts of a Varying value count as concatenated along the first dimension, in order of the ranks.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> ag.jacobian(lambda x: x * x * np.array([1.0, 10.0]))(np.array([1.0, 2.0]))
    array([[ 2.,  0.],
           [ 0., 40.]])
    """
    _check_mode("jacobian", mode, ("reverse", "forward"))
    return nary("jacobian", _jacobian, fun, argnum, mode)


@typed_errors
def hessian(fun: Function, argnum: Argnum = 0, *, mode: str | None = None) -> Function:
    """
    Returns a function which computes the Hessian of `fun`: the Jacobian of its gradient.

    Parameters
    ----------
    fun : callable
        Usually returns one number. If it returns an array, the result is the Hessian of each element, with the
        dimensions of the output first.
    argnum : int or sequence of int
        As in `grad`. Containers give containers of containers.
    mode : str, optional
        "reverse-over-reverse" (the default), "forward-over-reverse", "reverse-over-forward" or "forward-over-forward".
        The first two record one gradient and sweep over that record; the others record one per element.

    Returns
    -------
    callable
        A function of the arguments of `fun`. The shape of the result is that of the output, followed by that of the
        argument twice. Under a mesh its layout is that of the `jacobian` of the gradient: in reverse mode rows are
        whole and columns are the part of this rank. The gradient of an argument that is R is P, and so is its Hessian:
        each rank has an addend, and ``all_reduce(hessian, axis, to=I)`` sums them.

    Raises
    ------
    ArgumentError
        `mode` is none of the four.

    Notes
    -----
    ``H[i, j] = d^2 f / dx_i dx_j``. The gradient is recorded once; each of the n elements of the argument then takes
    one sweep over that record. A forward sweep costs about 1.7 times a reverse sweep (measured with 100 operations on
    vectors of 60), which is why reverse mode is the default.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> ag.hessian(lambda x: np.sum(x**3))(np.array([1.0, 2.0]))
    array([[ 6.,  0.],
           [ 0., 12.]])
    """
    _check_mode("hessian", mode, [f"{a}-over-{b}" for a in ("forward", "reverse") for b in ("reverse", "forward")])
    outer, inner = (None, None) if mode is None else mode.split("-over-")
    return nary("hessian", _hessian, fun, argnum, outer, inner)


def _check_mode(name: str, mode: str | None, known: Sequence[str]) -> None:
    if mode is not None and mode not in known:
        raise ArgumentError(f"{name}: mode={mode!r} was given; needed: None or one of {', '.join(known)}")


def _hessian(f: Function, x: Any, outer: str | None, inner: str | None) -> Any:
    return _jacobian(like(f, lambda z: _jacobian(f, z, inner, warn=False)), x, outer, warn=False)


def _jacobian(f: Function, x: Any, mode: str | None, *, warn: bool = True) -> Any:
    traced = Traced(f, x)
    if warn:
        warn_if_constant(traced)
    if mode is None:
        mode = _cheaper_mode(traced)
    for i, y in enumerate(traced.outputs):
        if y.array.dtype.kind == "c" and any(z.array.dtype.kind == "c" for z in traced.inputs):
            _require_holomorphic(traced, i)
    return traced.out_structure.rebuild([traced.structure.rebuild(row) for row in _swept(traced, mode == "reverse")])


def _cheaper_mode(traced: Traced) -> str:
    """The mode that needs less work, or reverse where the layout of the result depends on the mode.

    Reverse, too, where a user's primitive has no forward rule. The transpose of its reverse rule would call that rule
    with Tensors, and rules of HIPS autograd's programs may compute with functions of any library.
    """
    layouts = [x.layout for x in (*traced.inputs, *traced.outputs) if x.layout is not None]
    if any(label is not I and label is not C for layout in layouts for label in layout.labels):
        return "reverse"  # a value and its cotangent are not equal on all ranks
    if 2 * _count(traced.inputs) > _count(traced.outputs) or traced.has_only_reverse_rules:
        return "reverse"
    return "forward"


def _count(xs: Sequence[Tensor]) -> int:
    return sum(x.array.size * (2 if x.array.dtype.kind == "c" else 1) for x in xs)


def _swept(traced: Traced, reverse: bool) -> list[list[Any]]:
    """The Jacobian of each output with respect to each input, by a sweep from each global element at one end.

    Reverse sweeps start from the elements of the outputs, and forward sweeps from those of the inputs; two start from
    an element of a complex value where a value at the other end is real.
    """
    starts, ends = (traced.outputs, traced.inputs) if reverse else (traced.inputs, traced.outputs)
    sweep: Any = traced.pull if reverse else traced.push

    def layout_of(x: Tensor) -> Layout | None:
        return x.layout.dual if reverse and x.layout is not None else x.layout

    table = []
    for i, y in enumerate(starts):
        basis = Basis(y, layout_of(y))
        two = y.array.dtype.kind == "c" and any(x.array.dtype.kind == "f" for x in ends)
        found: list[list[Any]] = [[] for _ in ends]
        for unit in basis:
            first = sweep(_one_hot(unit, i, starts, reverse))
            turned = sweep(_one_hot(_scaled(unit, 1j), i, starts, reverse)) if two else first
            for x, parts, g, h in zip(ends, found, first, turned, strict=True):
                parts.append(g - 1j * h if two and x.array.dtype.kind == "f" else g)
        table.append([
            _join(parts, basis.shape, x, layout_of(x), reverse, traced) for x, parts in zip(ends, found, strict=True)
        ])  # fmt: skip
    return table if reverse else [[row[k] for row in table] for k in range(len(ends))]


def _one_hot(unit: Any, i: int, xs: Sequence[Tensor], reverse: bool) -> list[Any]:
    """`unit` for the i-th of some values, and for the others a cotangent None or a tangent of zeros."""
    if reverse:
        return [unit if k == i else None for k in range(len(xs))]
    return [unit if k == i and unit is not None else Tensor(zeros_like(x.array), x.layout) for k, x in enumerate(xs)]


def _scaled(unit: Any, factor: complex) -> Any:
    return None if unit is None else Tensor(unit.array * unit.array.dtype.type(factor), unit.layout)


def _join(
    parts: list[Any], whole: tuple[int, ...], x: Tensor, layout: Layout | None, first: bool, traced: Traced
) -> Any:
    """Join rows or columns into one array, with the dimensions that were looped over first or last."""
    local = tuple(int(n) for n in x.array.shape)
    shape = whole + local if first else local + whole
    if not parts:
        empty = np.zeros(shape, x.array.dtype) if type(x.array) is not Shaped else Shaped(shape, x.array.dtype, DRY)
        return traced.out(Tensor(empty, _shift_dims(layout, len(whole) if first else 0)))
    if any(p.__class__ in TENSORS and p.tape is not None for p in parts):
        return stacked(parts, whole, 0 if first else len(local))
    arrays = [p.array if p.__class__ in TENSORS else p for p in parts]
    joined: Any = recorded(_joined, arrays, 0 if first else -1, shape)
    if parts[0].__class__ not in TENSORS:
        return joined
    return Tensor(joined, _shift_dims(layout, len(whole) if first else 0))


def _joined(arrays: list[Any], axis: int, shape: tuple[int, ...]) -> Any:
    found = np.stack(arrays, axis).reshape(shape)
    return found if shape else found[()]


def stacked(parts: Sequence[Any], whole: Sequence[int], at: int) -> Any:
    """Stack parts, given in C order of an index of shape `whole`, along new dimensions at `at`; recorded.

    It stacks once per dimension rather than reshape: with sharded parts, reshape could not tell which of several
    dimensions of extent 1 is the sharded one.
    """
    found = list(parts)
    for n in reversed(whole):
        found = [ops.stack(found[i : i + n], at) for i in range(0, len(found), n)]
    return found[0]


def _shift_dims(layout: Layout | None, by: int) -> Layout | None:
    """A layout after `by` unsharded dimensions were inserted at the front."""
    if layout is None or not layout.special or not by:
        return layout
    return layout.grid.layout([
        x.on(x.dim + by) if isinstance(x, Shard) else x for x in layout.labels
    ])  # fmt: skip


def _require_holomorphic(traced: Traced, i: int) -> None:
    """Raise ObjectiveError for a complex function of complex arguments whose pullback is not complex-linear."""
    y = traced.outputs[i]
    if type(y.array) is Shaped or not y.array.size or y.layout is not None or state.grid is not None:
        return
    rng = np.random.default_rng(0)
    ct = (rng.standard_normal(y.array.shape) + 1j * rng.standard_normal(y.array.shape)).astype(y.array.dtype)
    with no_grad():
        found, turned = (traced.pull(_one_hot(c, i, traced.outputs, True)) for c in (ct, 1j * ct))
    for x, g, h in zip(traced.inputs, found, turned, strict=True):
        if x.array.dtype.kind != "c":
            continue
        g, h = (a.array if a.__class__ in TENSORS else a for a in (g, h))
        checked(_require_linear, g, h, float(np.finfo(y.array.dtype).eps))


def _require_linear(g: Any, h: Any, eps: float) -> None:
    """Raise ObjectiveError unless the cotangent h of 1j times a cotangent is 1j times that of it, g."""
    off, scale = np.max(np.abs(h - 1j * g), initial=0), np.max(np.abs(g), initial=0) + np.max(np.abs(h), initial=0)
    if not off <= 1e3 * eps * scale:
        raise ObjectiveError(
            f"jacobian of a complex function that is not holomorphic, of a complex argument of shape {g.shape}: it has "
            "no complex derivative. Needed: a real output or argument. Fix: jacobian of the real and of the imaginary "
            "part, np.real(fun(z)) and np.imag(fun(z))"
        )
