"""A program as data: leaves with layouts, and statements in order, the last of which is the objective.

What is printed is what runs: `Program.source` writes the Python text, and the interpreter compiles its statements.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from autograd.layouts.layout import Label, Rooted

__all__ = ["COMMUNICATION", "LOCAL", "LeafForm", "Program", "Statement", "expression"]


class LeafForm(NamedTuple):
    """A leaf: its name, the whole value's shape, one label per mesh axis, and what it is for.

    Attributes
    ----------
    role : "parameter", "watched" or "data"
        An optimizer owns a parameter; a watched leaf has a gradient too, in any layout; data has none.
    unequal : tuple of str
        Axes along which the copies differ although the label says that they are equal: a mutant's fault.
    """

    name: str
    shape: tuple[int, ...]
    labels: tuple[Label, ...]
    role: str = "parameter"
    unequal: tuple[str, ...] = ()


class Statement(NamedTuple):
    """One line: a local operation, or a collective or cast on some axes.

    Attributes
    ----------
    name : what the result is called
    operation : one of `LOCAL` or `COMMUNICATION`
    operands : names of leaves or earlier results
    axes : the mesh axes of a collective, in the mesh's order
    to : the label asked for
    dim, dim2 : the dimension (of a sum, None for all), and the one that all_to_all joins
    root, pairs : as in the collective's own call; of hand_over, pairs is ((source, target),)
    number : a factor
    """

    name: str
    operation: str
    operands: tuple[str, ...]
    axes: tuple[str, ...] = ()
    to: Label | None = None
    dim: int | None = None
    dim2: int | None = None
    root: int = 0
    pairs: tuple[tuple[int, int], ...] = ()
    number: float = 1.0

    @property
    def communicates(self) -> bool:
        """Whether it is a collective or a cast."""
        return self.operation in COMMUNICATION

    def __str__(self) -> str:
        return f"{self.name} = {expression(self)}"


class Program(NamedTuple):
    """A whole program on a mesh. Its leaves' values follow from `seed` and their names.

    Examples
    --------
    >>> from collectives import I, P, R, Shard
    >>> from collectives.testing.random_programs import LeafForm, Program, Statement
    >>> program = Program(
    ...     ("dp",), (3,),
    ...     (LeafForm("x", (4, 2), (Shard(0),), "data"), LeafForm("w", (2,), (I,))),
    ...     (Statement("u", "cast", ("w",), ("dp",), to=R), Statement("y", "multiply", ("x", "u")),
    ...      Statement("s", "sum", ("y",)), Statement("loss", "all_reduce", ("s",), ("dp",), to=I)),
    ... )
    >>> print("\\n".join(map(str, program.statements)))
    u = cc.cast(w, "dp", to=R)
    y = x * u
    s = y.sum()
    loss = cc.all_reduce(s, "dp", to=I)
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    leaves: tuple[LeafForm, ...]
    statements: tuple[Statement, ...]
    seed: int = 0

    @property
    def ranks(self) -> int:
        """How many ranks it runs on."""
        return math.prod(self.sizes)

    @property
    def objective(self) -> str:
        """The name of the last statement's result."""
        return self.statements[-1].name

    def alone(self) -> Program:
        """The same program on one process: every axis of size 1, roots at 0, nobody to send to."""
        return self._replace(sizes=(1,) * len(self.sizes), statements=tuple(map(alone, self.statements)),
                             leaves=tuple(x._replace(labels=tuple(map(_label_alone, x.labels)))
                                          for x in self.leaves))  # fmt: skip

    def source(self) -> str:
        """The program as Python, to paste and run."""
        mesh = ", ".join(f"{a}={n}" for a, n in zip(self.axes, self.sizes, strict=True))
        lines = [
            "import autograd as ag",
            "import autograd.numpy as np",
            "import collectives as cc",
            "from collectives import I, P, R, Rooted, Shard, V",
            "from collectives.testing.random_programs import draw, hand_over",
            "",
            "",
            "def program():",
            f"    with cc.Mesh({mesh}) as mesh:",
            *(f"        {line}" for line in self.leaf_lines()),
            "        with ag.Tape() as tape:",
            *(f"            {s}" for s in self.statements),
            f"        tape.backward({self.objective})",
            "        return {" + ", ".join(f'"{x.name}": {x.name}.grad' for x in self.leaves if x.role != "data") + "}",
            "",
            "",
            f"print(cc.run(program, ranks={self.ranks}))",
        ]
        return "\n".join(lines) + "\n"

    def leaf_lines(self) -> list[str]:
        """The lines that make the leaves, inside ``with mesh:``."""
        return [
            f"{x.name} = draw({x.name!r}, {x.shape}, "
            + "{" + ", ".join(f"{a!r}: {k!r}" for a, k in zip(self.axes, x.labels, strict=True)) + "}"
            + f", role={x.role!r}, seed={self.seed}" + (f", unequal={x.unequal})" if x.unequal else ")")
            for x in self.leaves
        ]  # fmt: skip

    def __str__(self) -> str:
        return self.source()


def alone(s: Statement) -> Statement:
    """A statement as it is where every axis has size 1."""
    if s.operation == "hand_over":
        s = s._replace(operation="permute")
    to = None if s.to is None else _label_alone(s.to)
    return s._replace(root=0, to=to, pairs=((0, 0),) if s.operation == "permute" else ())


def _label_alone(label: Label) -> Label:
    return Rooted(0) if isinstance(label, Rooted) else label


# -- how every operation is written -------------------------------------------------------------------------------


def _axes(s: Statement) -> str:
    if len(s.axes) == 1:
        return f'"{s.axes[0]}"'
    return "(" + ", ".join(f'"{a}"' for a in s.axes) + ")"


LOCAL: dict[str, str] = {
    "negative": "-{0}",
    "scale": "{0} * {number}",
    "tanh": "np.tanh({0})",
    "sin": "np.sin({0})",
    "softmax": "ag.ops.softmax({0})",
    "transpose": "{0}.T",
    "flatten": "{0}.reshape(-1)",
    "sum": "{0}.sum({dim})",
    "add": "{0} + {1}",
    "subtract": "{0} - {1}",
    "multiply": "{0} * {1}",
    "matmul": "{0} @ {1}",
    "concatenate": "np.concatenate([{0}, {1}], axis={dim})",
    "head": "{0}[:1]",
}
"""Local operations, and how they are written."""

COMMUNICATION: dict[str, str] = {
    "all_reduce": "cc.all_reduce({0}, {axes}, to={to})",
    "mean": "cc.mean({0}, {axes}, to={to})",
    "all_gather": "cc.all_gather({0}, {axes}, dim={dim}, to={to})",
    "reduce_scatter": "cc.reduce_scatter({0}, {axes}, dim={dim})",
    "shard": "cc.shard({0}, {axes}, dim={dim})",
    "all_to_all": "cc.all_to_all({0}, {axes}, split_dim={dim}, concat_dim={dim2})",
    "permute": "cc.permute({0}, {axes}, {pairs})",
    "hand_over": "hand_over({0}, {axes}, {source}, {target})",
    "broadcast": "cc.broadcast({0}, {axes}, root={root}, to={to})",
    "reduce": "cc.reduce({0}, {axes}, root={root})",
    "scatter": "cc.scatter({0}, {axes}, root={root}, dim={dim})",
    "gather": "cc.gather({0}, {axes}, root={root}, dim={dim})",
    "declare_partial": "cc.declare_partial({0}, {axes})",
    "cast": "cc.cast({0}, {axes}, to={to})",
}
"""Collectives and casts, and how they are written. ``hand_over`` is one send and one recv."""

_NOTHING = {"keep": "{0}"}  # what a mutant has where a statement was deleted


def expression(s: Statement) -> str:
    """The right-hand side of a statement, as Python."""
    template = {**LOCAL, **COMMUNICATION, **_NOTHING}[s.operation]
    fields: dict[str, Any] = {"axes": _axes(s), "to": s.to, "dim": "" if s.dim is None else s.dim, "dim2": s.dim2,
                              "root": s.root, "pairs": list(s.pairs), "number": s.number}  # fmt: skip
    if s.pairs:
        fields["source"], fields["target"] = s.pairs[0]
    return template.format(*s.operands, **fields)
