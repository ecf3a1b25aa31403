"""Random correct programs: local operations and collectives that the rules allow, ending in a scalar objective.

All choices are made by the two methods of a `Chooser`. `strategies` passes one that asks Hypothesis, which can
then shrink a program that fails.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from autograd.layouts.layout import I, Label, P, R, Rooted, Shard, V

from .form import COMMUNICATION, LOCAL, LeafForm, Program, Statement, alone
from .rules import Illegal, Kind, result

__all__ = ["ALL", "Chooser", "build", "generate", "meshes"]

Choose = Callable[[Sequence[Any]], Any]
AXES = ("a", "b", "c")
ALL = (*COMMUNICATION, *LOCAL, *reversed(COMMUNICATION))
"""All operations. Communication is listed twice, so that it is chosen twice as often, and at both ends of the list,
which Hypothesis tries first."""


class Chooser:
    """Choices by a random number generator."""

    def __init__(self, seed: Any):
        self.random = np.random.default_rng(seed)

    def one(self, options: Sequence[Any]) -> Any:
        """Choose one of the options."""
        return options[int(self.random.integers(len(options)))]

    def number(self, low: int, high: int) -> int:
        """Choose an integer from low to high, both included."""
        return int(self.random.integers(low, high + 1))


def generate(
    seed: int = 0, *, ranks: tuple[int, int] = (1, 8), axes: tuple[int, int] = (1, 3), statements: int = 10,
    trained: bool = False, operations: Sequence[str] = ALL, labelled: bool = False,
) -> Program:  # fmt: skip
    """Generate a random correct program.

    Parameters
    ----------
    seed : int
        The same seed gives the same program.
    ranks, axes : (int, int)
        The smallest and the largest number of ranks, and of mesh axes.
    statements : int
        The largest number of statements, not counting those that reduce the results to a scalar.
    trained : bool
        Whether every leaf with a gradient has a layout that an optimizer accepts, and no shape depends on the number
        of ranks, so that the program also runs on one process.
    operations : sequence of str
        The operations to choose from; one that is listed twice is chosen twice as often.
    labelled : bool
        Whether no value is V.

    Examples
    --------
    >>> from tests.proofs.random_programs import generate
    >>> print(generate(seed=3, ranks=(2, 2), axes=(1, 1), statements=2).sizes)
    (2,)
    """
    return build(Chooser(seed), meshes(ranks, axes), statements, trained, seed, operations, labelled)


def meshes(ranks: tuple[int, int] = (1, 8), axes: tuple[int, int] = (1, 3)) -> list[tuple[int, ...]]:
    """All mesh shapes, those with few ranks first. A shape has at most one axis of size 1."""
    shapes = [s for n in range(axes[0], axes[1] + 1) for s in itertools.product(range(1, ranks[1] + 1), repeat=n)
              if ranks[0] <= math.prod(s) <= ranks[1] and s.count(1) <= 1]  # fmt: skip
    return sorted(shapes, key=lambda s: (math.prod(s), len(s), s))


def build(
    choose: Any, shapes: Sequence[tuple[int, ...]], most: int, trained: bool, seed: int,
    operations: Sequence[str] = ALL, labelled: bool = False,
) -> Program:  # fmt: skip
    """Build a program from the choices of `choose`, an object with the methods of `Chooser`."""
    sizes = choose.one(shapes)
    return _Builder(choose, AXES[: len(sizes)], sizes, trained, operations, labelled).program(most, seed)


class _Builder:
    """A program under construction."""

    def __init__(
        self, choose: Any, axes: tuple[str, ...], sizes: tuple[int, ...], trained: bool, operations: Sequence[str],
        labelled: bool,
    ):  # fmt: skip
        self.operations, self.labelled = operations, labelled
        self.choose = choose
        self.axes = axes
        self.sizes = sizes
        self.trained = trained
        self.leaves: list[LeafForm] = []
        self.statements: list[Statement] = []
        self.known: dict[str, Kind] = {}
        self.used: set[str] = set()
        self.extents: list[int] = []
        self.ones = (1,) * len(sizes)

    def program(self, most: int, seed: int) -> Program:
        self.extents = [self.choose.number(1, 4), self.choose.number(1, 4)]  # few extents, so that shapes often match
        for i in range(self.choose.number(1, 3)):
            self.leaf("parameter" if self.trained else "watched", f"w{i}")
        for i in range(self.choose.number(0, 2)):
            self.leaf("data", f"x{i}")
        for _ in range(self.choose.number(1, most)):
            self.step()
        self.end()
        return Program(self.axes, self.sizes, tuple(self.leaves), tuple(self.statements), seed)

    # -- leaves --------------------------------------------------------------------------------------------------
    def leaf(self, role: str, name: str) -> LeafForm:
        shape = tuple(self.choose.one(self.extents) for _ in range(self.choose.number(1, 2)))
        labels = tuple(self.label(role, shape, n) for n in self.sizes)
        return self.add_leaf(LeafForm(name, shape, labels, role))

    def add_leaf(self, leaf: LeafForm) -> LeafForm:
        self.leaves.append(leaf)
        self.known[leaf.name] = Kind(leaf.shape, leaf.labels, leaf.role != "data")
        return leaf

    def label(self, role: str, shape: tuple[int, ...], size: int) -> Label:
        plain: list[Label] = [I, V] if role == "parameter" else [R, I, V, P]
        cut: list[Label] = [Shard(d) for d in range(len(shape))]
        if self.labelled:
            plain.remove(V)
        return self.choose.one([*plain, *cut, Rooted(self.choose.number(0, size - 1))])

    # -- statements ----------------------------------------------------------------------------------------------
    def step(self) -> None:
        operation = self.choose.one(self.operations)
        legal = list(self.legal(self.candidates(operation)))
        if legal:
            self.write(self.choose.one(legal))

    def write(self, s: Statement) -> str:
        s = s._replace(name=f"y{len(self.statements)}")
        self.known[s.name] = result(s, self.known, self.axes, self.sizes)
        self.statements.append(s)
        self.used.update(s.operands)
        return s.name

    def legal(self, candidates: Iterable[Statement]) -> Iterable[Statement]:
        for s in candidates:
            try:
                kind = result(s, self.known, self.axes, self.sizes)
                if self.trained and kind.shape != result(alone(s), self.known, self.axes, self.ones).shape:
                    continue  # the shape depends on the number of ranks, so one process would get another one
            except Illegal:
                continue
            if math.prod(kind.shape) <= 64 and not (self.labelled and V in kind.labels):
                yield s

    def candidates(self, operation: str) -> Iterable[Statement]:
        names = list(self.known)
        if operation in ("add", "subtract", "multiply", "matmul", "concatenate"):
            dims: list[int | None] = [0, 1] if operation == "concatenate" else [None]
            for x, y, d in itertools.product(names, names, dims):
                yield Statement("", operation, (x, y), dim=d)
        elif operation in LOCAL:
            dims = [0, 1, None] if operation == "sum" else [None]
            for x, d in itertools.product(names, dims):
                yield Statement("", operation, (x,), dim=d, number=0.5 if operation == "scale" else 1.0)
        else:
            n = self.choose.one([1, 1, 1, 2, 3][: 2 + len(self.axes)]) if len(self.axes) > 1 else 1
            axes = self.choose.one(list(itertools.combinations(self.axes, n)))
            options = list(self.options(operation, math.prod(self.sizes[self.axes.index(a)] for a in axes)))
            for x, option in itertools.product(names, options):
                yield Statement("", operation, (x,), axes, **option)

    def options(self, operation: str, size: int) -> Iterable[dict[str, Any]]:
        dims, labels = (0, 1), (R, I)
        if operation in ("all_reduce", "mean"):
            yield from ({"to": to} for to in labels)
        elif operation == "all_gather":
            yield from ({"dim": d, "to": to} for d in dims for to in labels)
        elif operation in ("reduce_scatter", "shard"):
            yield from ({"dim": d} for d in dims)
        elif operation == "all_to_all":
            yield from ({"dim": d, "dim2": 1 - d} for d in dims)
        elif operation == "permute":
            ring = tuple((i, (i + 1) % size) for i in range(size))
            yield {"pairs": ring}
            yield {"pairs": ring[: max(1, size - 1)]}
            yield {"pairs": tuple((i, size - 1 - i) for i in range(size))}
        elif operation == "hand_over":
            yield from ({"pairs": ((i, j),)} for i in range(size) for j in range(size) if i != j)
        elif operation in ("broadcast", "reduce", "scatter", "gather"):
            for root in range(size):
                if operation == "broadcast":
                    yield from ({"root": root, "to": to} for to in labels)
                elif operation == "reduce":
                    yield {"root": root}
                else:
                    yield from ({"root": root, "dim": d} for d in dims)
        elif operation == "declare_partial":
            yield {}
        else:
            yield from ({"to": to} for to in (R, I, P, V, Shard(0), Shard(1)))

    # -- the end: a scalar objective -------------------------------------------------------------------------------
    def end(self) -> None:
        """Add up the unused values, weighted and summed over the ranks."""
        names = [n for n in self.known if n not in self.used]
        kept = [n for n in names if self.known[n].depends]
        if not kept:
            kept = [next(n for n, kind in self.known.items() if kind.depends)]
        outputs = [n for n in kept if n.startswith("y")][-2:] or kept[-1:]
        losses = [self.number_of(n, alone=len(outputs) == 1) for n in outputs]
        while len(losses) > 1:
            losses.append(self.write(Statement("", "add", (losses.pop(0), losses.pop(0)))))
        if not self.statements or self.statements[-1].name != losses[0]:
            self.write(Statement("", "scale", (losses[0],), number=1.0))

    def number_of(self, name: str, alone: bool) -> str:
        """The weighted sum of a value; `alone` if it is the only term of the objective."""
        kind = self.known[name]
        if any(isinstance(x, Shard) and x.unit != 1 for x in kind.labels):  # no leaf, so no weight, has such shards
            squares = list(self.legal([Statement("", "multiply", (name, name)), Statement("", "negative", (name,))]))
            return self.total(self.write(squares[0]), alone)
        free = [R] if self.labelled else [R, V]
        labels = tuple(self.choose.one(free) if x is R else R if x in (P, V) or isinstance(x, Rooted) else x
                       for x in kind.labels)  # fmt: skip
        weight = self.add_leaf(LeafForm(f"c{len(self.leaves)}", kind.shape, labels, "data"))
        return self.total(self.write(Statement("", "multiply", (name, weight.name))), alone)

    def total(self, name: str, alone: bool) -> str:
        """The sum of a value over its elements and the ranks. The only term may remain Partial or Rooted."""
        name = self.write(Statement("", "sum", (name,)))
        for k, axis in enumerate(self.axes):
            label = self.known[name].labels[k]
            if label is R:
                name = self.write(Statement("", "cast", (name,), (axis,), to=I))
            elif label is V or (label is P and not (alone and self.choose.number(0, 2) == 2)):
                name = self.write(Statement("", "all_reduce", (name,), (axis,), to=I))
            elif isinstance(label, Rooted) and not (alone and self.choose.number(0, 2) == 2):
                name = self.write(Statement("", "broadcast", (name,), (axis,), to=I, root=label.root))
        return name
