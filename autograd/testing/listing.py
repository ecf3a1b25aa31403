"""The registry as data: what ``python -m autograd registry`` prints. Everything is derived from the declarations.

Layouts are what inference gives on a mesh of one rank for an operation of the shapes that its cases have.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..engine import events
from ..engine.broadcasting import broadcast
from ..engine.multi_output import Several
from ..engine.parameter import resolve, tensor
from ..engine.primitive import Primitive, registry
from ..engine.tensor import TENSORS
from ..errors import RingtapeError
from ..layouts.inference import infer
from ..layouts.layout import Grid, I, Label, Layout, Mix, P, R, Shard, Sum, V
from .cases import CASES, FAMILIES, REAL_ONLY, WITHOUT_DERIVATIVE, Case

__all__ = ["names", "row", "rows", "source"]

_AXIS = "axis"
_LABELS: tuple[Label, ...] = (R, I, P, V)


def names() -> list[str]:
    """The operations' names; examples that docstrings declare are left out."""
    return sorted(name for name in registry if "example" not in name)


def rows(wanted: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """A row for each operation, or for those named.

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
    """Everything there is to know of an operation, as plain data."""
    op = registry[name]
    cases = [c for c in CASES if c.operation == name]
    call = _call(op, cases)
    n = len(op.words) if call is None else len(call[0])
    operands = [op.operand_name(i) for i in range(n)]
    return {
        "name": name,
        "word": " ".join(op.words) + ("*" if op.variadic else ""),
        "operands": operands,
        "adjoint": {"operands" if op.variadic else operands[i]: source(rule) for i, rule in enumerate(op.adjoint)},
        "tangent": {operands[i]: source(rule) for i, rule in enumerate(op.tangent) if rule is not None},
        "saves": [operands[i] for i in range(n) if not op.variadic and op.keeps(i)] + ["result"] * op.keeps_y +
                 (["operands"] if op.variadic else []) + ["what the rules need"] * (op.keeping is not None),
        "dims": _dims(op, call),
        "layouts": {} if call is None else _layouts(op, *call),
        "cases": len(cases),
        "families": len(FAMILIES.get(name, [])) + (op.elementwise and any(c.f is op for c in cases)),
        "real_only": REAL_ONLY.get(name, ""),
        "without_derivative": WITHOUT_DERIVATIVE.get(name, ""),
    }  # fmt: skip


# -- rules as text ---------------------------------------------------------------------------------------------------


def source(rule: Callable[..., Any] | None) -> str:
    """The text of a rule: a function or a lambda as it is written, with the lambdas that a lambda closes over.

    Examples
    --------
    >>> from autograd.testing.listing import source
    >>> from autograd.engine.primitive import registry
    >>> source(registry["exp"].adjoint[0])
    'lambda ct, y, x: ct * derivative(y, x), where derivative = lambda y, x: y'
    >>> source(None)
    'no cotangent'
    """
    if rule is None:
        return "no cotangent"
    code = getattr(rule, "__code__", None)
    if code is None:
        return str(getattr(rule, "name", None) or getattr(rule, "__name__", repr(rule)))
    if code.co_name != "<lambda>":
        try:
            return textwrap.dedent(inspect.getsource(rule)).rstrip()
        except (OSError, TypeError):
            return str(code.co_name)
    text = _lambda(code)
    closed = zip(code.co_freevars, (c.cell_contents for c in rule.__closure__ or ()), strict=True)
    # a function with a name of its own is to be looked up, and its text would not fit a row
    inner = [f"{name} = {source(x)}" for name, x in closed if getattr(x, "__name__", "") == "<lambda>"]
    return text + (f", where {'; '.join(inner)}" if inner else "")


@lru_cache(maxsize=64)
def _lambdas(file: str) -> list[tuple[ast.Lambda, str]]:
    text = "".join(linecache.getlines(file))
    return [(node, text) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Lambda)]


def _lambda(code: Any) -> str:
    """A lambda's own text: of those in its file, the one whose body stands where its code does."""
    spans = {(line, column) for line, _, column, _ in code.co_positions()}
    there = [(n, text) for n, text in _lambdas(code.co_filename) if n.lineno == code.co_firstlineno]
    own = [(n, text) for n, text in there if (n.body.lineno, n.body.col_offset) in spans] or there
    return " ".join((ast.get_source_segment(own[0][1], own[0][0]) or "").split()) if own else "lambda"


# -- layouts ---------------------------------------------------------------------------------------------------------


class _Caught:
    """A listener that keeps the first call of an operation."""

    def __init__(self, op: Primitive):
        self.op = op
        self.call: Any = None

    def __call__(self, phase: str, direction: str, name: str) -> None:
        pass

    def see(self, phase: str, direction: str, name: str, facts: tuple[Any, ...]) -> None:
        if direction == "forward" and facts[0] is self.op and self.call is None:
            _, xs, _, *options = facts
            self.call = xs, options[0] if options else ()


def _call(op: Primitive, cases: Sequence[Case]) -> tuple[list[Any], Any] | None:
    """Operands and options of a call of the operation in one of its cases, of the most dimensions."""
    best = None
    for c in cases:
        args = [tensor(a) for a in c.variant(1, "float64")]
        caught = _Caught(op)
        with np.errstate(all="ignore"), events.listening(caught):
            c.f(*args)
        called, options = caught.call or (args, ())  # one that is taken apart for listeners: as the case calls it
        xs = [x.array if x.__class__ in TENSORS else x for x in called]
        arrays = [x for x in xs if isinstance(x, np.ndarray)]
        if len(arrays) < len(op.words) or any(0 in a.shape for a in arrays):
            continue
        ndims = [a.ndim for a in arrays]
        size = 10 * min(ndims) + sum(ndims) - 100 * (op.elementwise and len({a.shape for a in arrays}) > 1)
        size -= 5 * sum(a.shape.count(1) for a in arrays)
        if best is None or size > best[0]:
            best = size, xs, options
    return None if best is None else (best[1], best[2])


def _labels(label: Label, array: Any, grid: Grid) -> Layout | None:
    if not isinstance(label, Shard):
        return grid.uniform(label)
    shape = np.shape(array)
    return resolve({_AXIS: label}, V, shape, grid, None) if label.dim < len(shape) else None


def _views(op: Any, xs: list[Any], options: Any) -> list[Any]:
    """What inference is asked about: the operation, or each of several outputs by itself."""
    return op.views(xs, options) if isinstance(op, Several) else [op]


def _layouts(op: Primitive, xs: list[Any], options: Any) -> dict[str, str | None]:
    """What every combination of labels of the operands gives; None where it is refused.

    Where several outputs get different labels, all of them, in order.
    """
    grid = Grid.of((_AXIS,), (1,), (0,))
    shapes = [tuple(np.shape(x)) for x in xs]
    real = [getattr(x, "dtype", np.dtype(float)).kind in "fc" for x in xs]
    dims = max((len(s) for s in shapes), default=0)
    choice: tuple[Label, ...] = (*_LABELS, *(Shard(d) for d in range(dims)))
    several = len(xs) > 2
    found: dict[str, str | None] = {}
    for labels in itertools.product(choice, repeat=1 if several else len(xs)):
        labels = labels * len(xs) if several else labels
        layouts = [_labels(R if label is P and letter == "S" else label, x, grid)  # what has no cotangent is never P
                   for label, letter, x in zip(labels, op.letters(len(xs)), xs, strict=True)]  # fmt: skip
        if any(layout is None for layout in layouts):
            continue
        try:
            given = [x for x in layouts if x is not None]
            outs = [repr(infer(v, given, shapes, real, options, xs).labels[0]) for v in _views(op, xs, options)]
            found[" ".join(map(repr, labels))] = outs[0] if len(set(outs)) == 1 else ", ".join(outs)
        except RingtapeError:
            found[" ".join(map(repr, labels))] = None
    return found


def _dims(op: Primitive, call: tuple[list[Any], Any] | None) -> Any:
    """How dimensions travel: "broadcast", or for an example's shapes where each dimension of each operand goes.

    Of an operation of several outputs: to the first.
    """
    if op.dims is broadcast:
        return "broadcast"
    if op.dims is None or call is None:
        return "none" if op.dims is None else "of its options"
    shapes = [tuple(np.shape(x)) for x in call[0]]
    said = []
    (first, *_) = _views(op, *call)
    for shape, entries in zip(shapes, first.dims(shapes, call[1]), strict=True):
        said.append({"shape": list(shape), "to": [_entry(e) for e in entries]})
    return said


def _entry(e: Any) -> Any:
    if e is Mix:
        return "mix"
    if isinstance(e, Sum):
        return "sum"
    return e if isinstance(e, int) else [int(e[0]), str(e[1])]
