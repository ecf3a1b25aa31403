"""A program as data: leaves with layouts, and a list of statements, the last of which gives the objective.

`Program.source` writes the program as Python. `execute` compiles the same lines, so the printed text is what runs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from autograd.layouts.layout import Label, Rooted

__all__ = ["COMMUNICATION", "LOCAL", "LeafForm", "Program", "Statement", "expression"]


class LeafForm(NamedTuple):
    """A leaf of a program.

    Attributes
    ----------
    name : str
    shape : tuple of int
        Of the whole value.
    labels : tuple of Label
        One per mesh axis.
    role : "parameter", "watched" or "data"
        A parameter belongs to an optimizer; a watched leaf has a gradient too, in any layout; data has none.
    unequal : tuple of str
        Axes along which the copies differ although the label says that they are equal. Only mutants have any.
    """

    name: str
    shape: tuple[int, ...]
    labels: tuple[Label, ...]
    role: str = "parameter"
    unequal: tuple[str, ...] = ()


class Statement(NamedTuple):
    """One statement: a local operation, or a collective or cast on some axes.

    Attributes
    ----------
    name : str
        The name of the result.
    operation : str
        A key of `LOCAL` or `COMMUNICATION`.
    operands : tuple of str
        Names of leaves or earlier results.
    axes : tuple of str
        The mesh axes of a collective, in the mesh's order.
    to : Label or None
        The requested label of the result.
    dim, dim2 : int or None
        The dimension (for a sum, None means all), and the dimension that all_to_all concatenates.
    root, pairs
        As in the call of the collective; for hand_over, pairs is ((source, target),).
    number : float
        The factor of scale.
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
        """Whether the statement is a collective or a cast."""
        return self.operation in COMMUNICATION

    def __str__(self) -> str:
        return f"{self.name} = {expression(self)}"


class Program(NamedTuple):
    """A program on a mesh. The values of its leaves are determined by `seed` and their names.

    Examples
    --------
    >>> from collectives import I, P, R, Shard
    >>> from tests.proofs.random_programs import LeafForm, Program, Statement
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
        """The number of ranks that it runs on."""
        return math.prod(self.sizes)

    @property
    def objective(self) -> str:
        """The name of the last statement's result."""
        return self.statements[-1].name

    def alone(self) -> Program:
        """The same program on one process: all axes of size 1, all roots 0, and send and recv replaced by permute."""
        return self._replace(sizes=(1,) * len(self.sizes), statements=tuple(map(alone, self.statements)),
                             leaves=tuple(x._replace(labels=tuple(map(_label_alone, x.labels)))
                                          for x in self.leaves))  # fmt: skip

    def source(self) -> str:
        """The program as Python that can be pasted and run."""
        mesh = ", ".join(f"{a}={n}" for a, n in zip(self.axes, self.sizes, strict=True))
        lines = [
            "import autograd as ag",
            "import autograd.numpy as np",
            "import collectives as cc",
            "from collectives import I, P, R, Rooted, Shard, V",
            "from tests.proofs.random_programs import draw, hand_over",
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
    """The statement on a mesh whose axes have size 1."""
    if s.operation == "hand_over":
        s = s._replace(operation="permute")
    to = None if s.to is None else _label_alone(s.to)
    return s._replace(root=0, to=to, pairs=((0, 0),) if s.operation == "permute" else ())


def _label_alone(label: Label) -> Label:
    return Rooted(0) if isinstance(label, Rooted) else label


# -- the text of every operation ------------------------------------------------------------------------------------


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
"""Local operations, and their text as Python."""

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
"""Collectives and casts, and their text as Python. ``hand_over`` is one send and one recv."""

_MUTANTS = {
    "keep": "{0}",  # replaces a statement that a mutant leaves out
    "times the size": "{0} * cc.current_mesh().axis({axes}).size",
    "by the size": "{0} / cc.current_mesh().axis({axes}).size",
}


def expression(s: Statement) -> str:
    """The right-hand side of a statement, as Python."""
    template = {**LOCAL, **COMMUNICATION, **_MUTANTS}[s.operation]
    fields: dict[str, Any] = {"axes": _axes(s), "to": s.to, "dim": "" if s.dim is None else s.dim, "dim2": s.dim2,
                              "root": s.root, "pairs": list(s.pairs), "number": s.number}  # fmt: skip
    if s.pairs:
        fields["source"], fields["target"] = s.pairs[0]
    return template.format(*s.operands, **fields)
