"""Cases of `autograd.numpy`'s array manipulation: flips, rolls, repetition, padding, splitting, diagonals, joining."""

from __future__ import annotations

from typing import Any

import numpy

import autograd.numpy as np

from .base import case, normal, numpy_case, strided

_ROWS: list[tuple[str, str, Any, tuple[int, ...]]] = [
    ("flip", "all", lambda np, x: np.flip(x), (2, 3)),
    ("flip", "axis", lambda np, x: np.flip(x, 1), (2, 3)),
    ("flip", "flipud", lambda np, x: np.flipud(x), (2, 3)),
    ("flip", "fliplr", lambda np, x: np.fliplr(x), (2, 3)),
    *(("flip", f"rot90 {k}", lambda np, x, k=k: np.rot90(x, k, (0, 2)), (2, 3, 2)) for k in (1, 2, 3, -1)),
    ("roll", "flat", lambda np, x: np.roll(x, 2), (2, 3)),
    ("roll", "axis", lambda np, x: np.roll(x, -1, 1), (2, 3)),
    ("roll", "axes", lambda np, x: np.roll(x, (1, 2), (0, 1)), (2, 3)),
    ("roll", "one axis twice", lambda np, x: np.roll(x, (1, 1), (0, 0)), (3, 2)),
    ("transpose", "rollaxis", lambda np, x: np.rollaxis(x, 2), (2, 3, 2)),
    ("transpose", "rollaxis to", lambda np, x: np.rollaxis(x, 0, 2), (2, 3, 2)),
    ("transpose", "rollaxis from the end", lambda np, x: np.rollaxis(x, -1, -2), (2, 3, 2)),
    ("transpose", "moveaxis of several", lambda np, x: np.moveaxis(x, (0, 1), (-1, 0)), (2, 3, 2)),
    ("transpose", "matrix_transpose", lambda np, x: np.matrix_transpose(x), (2, 3, 2)),
    ("broadcast_to", "repeat", lambda np, x: np.repeat(x, 3), (2, 2)),
    ("broadcast_to", "repeat along", lambda np, x: np.repeat(x, 2, 1), (2, 3)),
    ("getitem", "repeat by counts of a host array", lambda np, x: np.repeat(x, [0, 2, 1], 1), (2, 3)),
    ("broadcast_to", "tile", lambda np, x: np.tile(x, (2, 1, 2)), (2, 3)),
    ("broadcast_to", "tile of a row", lambda np, x: np.tile(x, 3), (3,)),
    ("broadcast_to", "tile of a number", lambda np, x: np.tile(x, (2, 2)), ()),
    ("getitem", "resize by a host array", lambda np, x: np.resize(x, (3, 3)), (2, 2)),
    ("put", "pad", lambda np, x: np.pad(x, ((1, 0), (2, 1))), (2, 3)),
    ("put", "pad by one", lambda np, x: np.pad(x, 1), (2, 2)),
    ("put", "pad with constants of a host array", lambda np, x: np.pad(x, (1, 2), constant_values=3.0), (3,)),
    *(("getitem", f"pad {m} by a host array", lambda np, x, m=m: np.pad(x, ((2, 1), (0, 2)), m), (3, 3))
      for m in ("edge", "reflect", "symmetric", "wrap")),
    ("getitem", "split", lambda np, x: np.split(x, 3, 1)[1], (2, 3)),
    ("getitem", "split by places", lambda np, x: np.concatenate(np.split(x, [1, 2])[::-1]), (3, 2)),
    ("getitem", "array_split", lambda np, x: np.array_split(x, 3)[0] * np.array_split(x, 3)[1], (6, 2)),
    ("getitem", "vsplit", lambda np, x: np.vsplit(x, 2)[1], (2, 3)),
    ("getitem", "hsplit", lambda np, x: np.hsplit(x, 3)[1], (2, 3)),
    ("getitem", "hsplit of a row", lambda np, x: np.hsplit(x, 3)[1], (3,)),
    ("getitem", "dsplit", lambda np, x: np.dsplit(x, 2)[1], (2, 1, 2)),
    ("getitem", "delete by a host array", lambda np, x: np.delete(x, [0, 2], 1), (2, 3)),
    ("diagonal", "square", lambda np, x: np.diagonal(x), (3, 3)),
    ("diagonal", "offset", lambda np, x: np.diagonal(x, 1), (2, 3)),
    ("diagonal", "below", lambda np, x: np.diagonal(x, -1, 0, 2), (3, 2, 3)),
    ("diagonal", "axes", lambda np, x: np.diagonal(x, 0, 2, 0), (2, 3, 4)),
    ("diagonal", "outside", lambda np, x: np.diagonal(x, 7), (2, 3)),
    ("diagonal", "diag", lambda np, x: np.diag(x, -1), (3, 2)),
    ("diagonal", "trace", lambda np, x: np.trace(x), (2, 3)),
    ("diagonal", "trace of several", lambda np, x: np.trace(x, 1, 1, 2), (2, 3, 3)),
    ("make_diagonal", "diag", lambda np, x: np.diag(x), (3,)),
    ("make_diagonal", "diag below", lambda np, x: np.diag(x, -2), (3,)),
    ("make_diagonal", "diagflat", lambda np, x: np.diagflat(x, 1), (2, 2)),
    ("tril", "square", lambda np, x: np.tril(x), (3, 3)),
    ("tril", "below", lambda np, x: np.tril(x, -1), (2, 2, 3)),
    ("tril", "of a row", lambda np, x: np.tril(x), (3,)),
    ("triu", "square", lambda np, x: np.triu(x), (3, 3)),
    ("triu", "above", lambda np, x: np.triu(x, 1), (2, 3, 2)),
    ("triu", "empty", lambda np, x: np.triu(x), (0, 2)),
    ("subtract", "diff", lambda np, x: np.diff(x), (2, 3)),
    ("subtract", "diff twice", lambda np, x: np.diff(x, 2, 0), (4, 2)),
    ("subtract", "diff with ends", lambda np, x: np.diff(x, prepend=1.0, append=x[:, :1]), (2, 3)),
    ("subtract", "ediff1d", lambda np, x: np.ediff1d(x, to_begin=2.0), (2, 3)),
    ("subtract", "gradient", lambda np, x: np.gradient(x), (4,)),
    ("subtract", "gradient of several", lambda np, x: np.stack(np.gradient(x, 0.5)), (3, 4)),
    ("subtract", "gradient along", lambda np, x: np.gradient(x, axis=1), (2, 3)),
    ("subtract", "gradient, edges of order 2", lambda np, x: np.gradient(x, 2.0, edge_order=2), (4,)),
    ("multiply", "gradient at places of a host array", lambda np, x: np.gradient(x, numpy.array([0.0, 1.0, 3.0, 3.5]),
                                                                                 edge_order=2), (4,)),
    ("multiply", "trapezoid", lambda np, x: np.trapezoid(x, dx=0.5, axis=0), (3, 2)),
    ("reshape", "Fortran's order", lambda np, x: np.reshape(x, (3, 2), order="F"), (2, 3)),
    ("reshape", "ravel in Fortran's order", lambda np, x: np.ravel(x, order="F"), (2, 3)),
    ("reshape", "atleast", lambda np, x: np.atleast_3d(x) + np.atleast_1d(x) + np.atleast_2d(x), (2,)),
    ("reshape", "flatten", lambda np, x: x.flatten(), (2, 2)),
    ("broadcast_to", "meshgrid", lambda np, x: np.meshgrid(x, x * x)[1], (3,)),
    ("broadcast_to", "meshgrid by rows", lambda np, x: np.meshgrid(x, x[:2], indexing="ij")[0], (3,)),
    ("broadcast_to", "broadcast_arrays", lambda np, x: np.broadcast_arrays(x, x[:1])[1], (3, 2)),
    ("broadcast_to", "full", lambda np, x: np.full((2, 3), x), ()),
    ("broadcast_to", "full of a row", lambda np, x: np.full((2, 3), x), (3,)),
    ("broadcast_to", "full_like", lambda np, x: np.full_like(x, x[0]), (3,)),
    ("multiply", "linspace, a host array", lambda np, x: np.linspace(x[0], x[1], 5), (2,)),
    ("multiply", "linspace of rows, a host array", lambda np, x: np.linspace(x, 1.0, 3, endpoint=False, axis=1), (2,)),
    ("power", "logspace, a host array", lambda np, x: np.logspace(x[0], x[1], 3, base=2.0), (2,)),
    ("stack", "last", lambda np, x: np.stack([x, x], -1), (2, 3)),
    ("stack", "rows", lambda np, x: np.stack([x, x * x], 1), (2, 3)),
    ("stack", "array of numbers", lambda np, x: np.array([x[0], 2.0, x[1] * x[0]]), (2,)),
    ("stack", "array of nested lists", lambda np, x: np.array([[x[0], 1.0], [x[1], x[0]]]), (2,)),
    ("stack", "array of itself", lambda np, x: np.array(x, ndmin=3), (2,)),
    ("concatenate", "vstack", lambda np, x: np.vstack([x[0], x]), (2, 3)),
    ("concatenate", "hstack", lambda np, x: np.hstack([x, x * x]), (2, 3)),
    ("concatenate", "hstack of rows", lambda np, x: np.hstack([x, x * x]), (3,)),
    ("concatenate", "dstack", lambda np, x: np.dstack([x, x]), (2, 2)),
    ("concatenate", "column_stack", lambda np, x: np.column_stack([x, x[:, 0]]), (2, 2)),
    ("concatenate", "append", lambda np, x: np.append(x, 2.0), (2, 2)),
    ("concatenate", "append along", lambda np, x: np.append(x, x, 1), (2, 2)),
    ("concatenate", "block", lambda np, x: np.block([[x, x], [x[:1], x[:1]]]), (2, 2)),
    ("concatenate", "flat", lambda np, x: np.concatenate([x, x[0]], axis=None), (2, 2)),
    ("concatenate", "r_", lambda np, x: np.r_[x, 1.0, x[:1]], (3,)),
    ("concatenate", "c_", lambda np, x: np.c_[x, x], (3,)),
]
for _mode in ("maximum", "mean", "median", "minimum"):
    _ROWS.append(("concatenate", f"pad {_mode}", lambda np, x, m=_mode: np.pad(x, (1, 2), m), (2, 3)))
    _ROWS.append(("concatenate", f"pad {_mode} of ends", lambda np, x, m=_mode: np.pad(x, ((0, 1), (2, 0)), m,
                                                                                      stat_length=(1, 2)), (3, 4)))
_ROWS.append(("concatenate", "pad linear_ramp", lambda np, x: np.pad(x, ((1, 2), (0, 3)), "linear_ramp",
                                                                    end_values=((1.0, -2.0), (0.5, 3.0))), (2, 3)))
for _operation, _label, _f, _shape in _ROWS:
    numpy_case(_operation, _label, _f, normal(*_shape))
    if _label in ("axis", "square", "rows", "rot90 1"):
        numpy_case(_operation, f"{_label}, strided", _f, strided(normal(*_shape)))
case("make_diagonal", "of rows", lambda x: np.make_diagonal(x, 0, -1, -2),
     lambda x: x[..., None] * numpy.eye(3, dtype=x.dtype), normal(2, 3))  # fmt: skip
case("make_diagonal", "in front, offset", lambda x: np.make_diagonal(x, 1, 0, 1),
     lambda x: _diagonal_in_front(x), normal(2, 3))  # fmt: skip


def _diagonal_in_front(x: Any) -> Any:
    out = numpy.zeros((4, 4, 2), x.dtype)
    for i in range(3):
        out[i, i + 1] = x[:, i]
    return out
