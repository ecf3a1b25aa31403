"""The registry of operations as plain data, which ``python -m autograd registry`` prints.

Everything is derived from the declarations. The layouts are inferred on a mesh of one rank, for operands of the shapes
that the operation's cases have.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..engine import events
from ..engine.leaves import tensor
from ..engine.multi_output import Several
from ..engine.primitive import Primitive, registry
from ..engine.tensor import TENSORS
from ..errors import RingtapeError
from ..formula import source
from ..layouts.broadcasting import broadcast
from ..layouts.inference import infer
from ..layouts.layout import Grid, I, Label, Layout, Mix, P, R, Shard, Sum, V
from ..layouts.stated_layout import resolve
from .cases import CASES, FAMILIES, REAL_ONLY, WITHOUT_DERIVATIVE, Case

__all__ = ["names", "row", "rows", "source"]

_AXIS = "axis"
_LABELS: tuple[Label, ...] = (R, I, P, V)


def names() -> list[str]:
    """Return the names of all operations, without the examples that docstrings declare."""
    return sorted(name for name in registry if "example" not in name)


def rows(wanted: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Iterate over the rows of all operations, or of those in `wanted`.

    Raises
    ------
    RingtapeError
        There is no operation of a given name.

    Examples
    --------
    >>> from autograd.testing.listing import rows
    >>> (row,) = rows(["multiply"])
    >>> row["word"], row["adjoint"]["x"], row["layouts"]["R P"], row["layouts"]["P P"]
    ('a b', 'lambda ct, y, a, b: ct * b', 'P', None)
    """
    unknown = [name for name in wanted if name not in registry]
    if unknown:
        raise RingtapeError(f"registry: there is no operation {', '.join(unknown)}; python -m autograd registry lists "
                            "them all")  # fmt: skip
    return map(row, wanted or names())


def row(name: str) -> dict[str, Any]:
    """Return all that is known of an operation, as plain data."""
    op = registry[name]
    cases = [c for c in CASES if c.operation == name]
    call = _example_call(op, cases)
    n = len(op.words) if call is None else len(call[0])
    operands = [op.operand_name(i) for i in range(n)]
    return {
        "name": name,
        "word": " ".join(op.words) + ("*" if op.variadic else ""),
        "operands": operands,
        "adjoint": {"operands" if op.variadic else operands[i]: source(rule) for i, rule in enumerate(op.adjoint)},
        "tangent": {operands[i]: source(rule) for i, rule in enumerate(op.tangent) if rule is not None},
        "saves": [operands[i] for i in range(n) if not op.variadic and op.keeps(i)] + ["result"] * op.keeps_y +
                 (["operands"] if op.variadic else []) + ["residuals"] * (op.keeping is not None),
        "dims": _dims(op, call),
        "layouts": {} if call is None else _layouts(op, *call),
        "cases": len(cases),
        "families": len(FAMILIES.get(name, [])) + (op.elementwise and any(c.f is op for c in cases)),
        "real_only": REAL_ONLY.get(name, ""),
        "without_derivative": WITHOUT_DERIVATIVE.get(name, ""),
    }  # fmt: skip


# -- layouts ---------------------------------------------------------------------------------------------------------


class _FirstCall:
    """A listener that stores operands and options of the first call of an operation."""

    def __init__(self, op: Primitive):
        self.op = op
        self.call: Any = None

    def __call__(self, phase: str, direction: str, name: str) -> None:
        pass

    def see(self, phase: str, direction: str, name: str, facts: tuple[Any, ...]) -> None:
        if direction == "forward" and facts[0] is self.op and self.call is None:
            _, xs, _, *options = facts
            self.call = xs, options[0] if options else ()


def _example_call(op: Primitive, cases: Sequence[Case]) -> tuple[list[Any], Any] | None:
    """Return operands and options of the operation in that of its cases whose operands have the most dimensions."""
    best = None
    for c in cases:
        args = [tensor(a) for a in c.variant(1, "float64")]
        first = _FirstCall(op)
        with np.errstate(all="ignore"), events.listening(first):
            c.f(*args)
        operands, options = first.call or (args, ())  # an operation that is decomposed for listeners emits no event
        xs = [x.array if x.__class__ in TENSORS else x for x in operands]
        arrays = [x for x in xs if isinstance(x, np.ndarray)]
        if len(arrays) < len(op.words) or any(0 in a.shape for a in arrays):
            continue
        ndims = [a.ndim for a in arrays]
        size = 10 * min(ndims) + sum(ndims) - 100 * (op.elementwise and len({a.shape for a in arrays}) > 1)
        size -= 5 * sum(a.shape.count(1) for a in arrays)
        if best is None or size > best[0]:
            best = size, xs, options
    return None if best is None else (best[1], best[2])


def _layout(label: Label, array: Any, grid: Grid) -> Layout | None:
    """Return the layout of an array with this label, or None if the array does not have the dimension of a Shard."""
    if not isinstance(label, Shard):
        return grid.uniform(label)
    shape = np.shape(array)
    return resolve({_AXIS: label}, V, shape, grid, None) if label.dim < len(shape) else None


def _single_outputs(op: Any, xs: list[Any], options: Any) -> list[Any]:
    """Return the operation, or for several outputs one operation per output, as layout inference takes them."""
    return op.views(xs, options) if isinstance(op, Several) else [op]


def _layouts(op: Primitive, xs: list[Any], options: Any) -> dict[str, str | None]:
    """Return the label of the result for each combination of labels of the operands, or None if it is refused.

    For an operation of more than two operands only combinations of equal labels are listed. If outputs have different
    labels, all are listed in order.
    """
    grid = Grid.of((_AXIS,), (1,), (0,))
    shapes = [tuple(np.shape(x)) for x in xs]
    real = [getattr(x, "dtype", np.dtype(float)).kind in "fc" for x in xs]
    dims = max((len(s) for s in shapes), default=0)
    choice: tuple[Label, ...] = (*_LABELS, *(Shard(d) for d in range(dims)))
    equal = len(xs) > 2
    found: dict[str, str | None] = {}
    for labels in itertools.product(choice, repeat=1 if equal else len(xs)):
        labels = labels * len(xs) if equal else labels
        layouts = [_layout(R if label is P and letter == "S" else label, x, grid)  # without a cotangent there is no P
                   for label, letter, x in zip(labels, op.letters(len(xs)), xs, strict=True)]  # fmt: skip
        if any(layout is None for layout in layouts):
            continue
        try:
            given = [x for x in layouts if x is not None]
            single = _single_outputs(op, xs, options)
            outs = [repr(infer(o, given, shapes, real, options, xs).labels[0]) for o in single]
            found[" ".join(map(repr, labels))] = outs[0] if len(set(outs)) == 1 else ", ".join(outs)
        except RingtapeError:
            found[" ".join(map(repr, labels))] = None
    return found


def _dims(op: Primitive, call: tuple[list[Any], Any] | None) -> Any:
    """Return where the dimensions of the operands go: "broadcast", or the dimension of the result for each of them.

    The latter is for the shapes of an example call. For several outputs it describes the first.
    """
    if op.dims is broadcast:
        return "broadcast"
    if op.dims is None or call is None:
        return "none" if op.dims is None else "of its options"
    shapes = [tuple(np.shape(x)) for x in call[0]]
    (first, *_) = _single_outputs(op, *call)
    return [
        {"shape": list(shape), "to": [_dim_name(e) for e in entries]}
        for shape, entries in zip(shapes, first.dims(shapes, call[1]), strict=True)
    ]


def _dim_name(e: Any) -> Any:
    if e is Mix:
        return "mix"
    if isinstance(e, Sum):
        return "sum"
    return e if isinstance(e, int) else [int(e[0]), str(e[1])]
