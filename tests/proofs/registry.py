"""The record of operations that their test cases make: ``python -m tests.proofs.registry`` writes it.

It writes two files: `autograd/testing/operations.json`, which ``python -m autograd registry`` of an installed ringtape
reads, and `docs/operations.md`. The layouts are inferred on a mesh of one rank, for operands of the shapes that the
operation's cases have. A test fails when the record is out of date.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autograd.__main__ import markdown
from autograd.engine import events
from autograd.engine.leaves import tensor
from autograd.engine.multi_output import Several
from autograd.engine.primitive import Primitive, registry
from autograd.engine.tensor import TENSORS
from autograd.errors import RingtapeError
from autograd.layouts.inference import broadcast, infer
from autograd.layouts.layout import Grid, I, Label, Layout, Mix, P, R, Shard, Sum, V
from autograd.layouts.stated_layout import resolve
from autograd.testing.listing import RECORD, names, row

from .operations import CASES, FAMILIES, REAL_ONLY, WITHOUT_DERIVATIVE, Case

__all__ = ["facts", "main"]

ROOT = Path(__file__).resolve().parents[2]

_AXIS = "axis"
_LABELS: tuple[Label, ...] = (R, I, P, V)


def main() -> None:
    """Write the record and the page."""
    found = {name: facts(name) for name in names()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(known)}" for name, known in found.items())
    (ROOT / "autograd" / "testing" / RECORD).write_text(f"{{\n{lines}\n}}\n")
    (ROOT / "docs" / "operations.md").write_text(markdown([row(*known) for known in found.items()]) + "\n")


def facts(name: str) -> dict[str, Any]:
    """Return what the cases of an operation show, without entries that are empty."""
    op = registry[name]
    cases = [c for c in CASES if c.operation == name]
    call = _example_call(op, cases)
    known = {
        "operands": len(op.words) if call is None else len(call[0]),
        "dims": None if call is None or op.dims in (None, broadcast) else _dims(op, call),
        "layouts": {} if call is None else _layouts(op, *call),
        "cases": len(cases),
        "families": len(FAMILIES.get(name, [])) + (op.elementwise and any(c.f is op for c in cases)),
        "real_only": REAL_ONLY.get(name, ""),
        "without_derivative": WITHOUT_DERIVATIVE.get(name, ""),
    }
    return {key: value for key, value in known.items() if value}


class _FirstCall:
    """A listener that stores operands and options of the first call of an operation."""

    def __init__(self, op: Primitive):
        self.op = op
        self.call: Any = None

    def __call__(self, phase: str, direction: str, name: str) -> None:
        pass

    def see(self, phase: str, direction: str, name: str, facts: tuple[Any, ...]) -> None:
        if (phase, direction) == ("end", "forward") and facts[0] is self.op and self.call is None:
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


def _dims(op: Primitive, call: tuple[list[Any], Any]) -> Any:
    """Return for each operand of an example call which dimension of the result each of its dimensions becomes.

    For several outputs it describes the first.
    """
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


if __name__ == "__main__":
    main()
