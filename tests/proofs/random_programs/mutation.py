"""Mutation testing: change one collective or cast of a correct program, and report which check detects the change.

=========  =======================================================================================================
kind       change
=========  =======================================================================================================
delete     a collective or cast is left out, and its operand is used in place of its result
double     it is applied again to its own result
move       it runs along another axis of the mesh
retype     it asks for another label, or is replaced by a collective that gives the operand another label
scale      its result is multiplied by the size of the axis, as one all-reduce too many would do
declare    a parameter's label on an axis is R instead of I, so that its cast no longer does anything
unequal    a parameter's copies along an axis differ, although its label says that they are equal
=========  =======================================================================================================

delete, move and retype are counted together. Labels do not know about scale, so double and scale are reported
separately. So are declare and unequal, which change a parameter: the optimizer and the digests must detect them.

Each mutant goes through these layers of checks in order, until one detects ("kills") it:

===============  =================================================================================================
layer            detects
===============  =================================================================================================
labels           a LayoutError on one process, under a mesh whose axes have size 1, in forward or backward
shapes           any other error there: array shapes that do not match, an axis or rank that does not exist
boundary         in the optimizer's step on one process, a gradient whose layout is not its parameter's
rank labels      a LayoutError that only several ranks raise, for example about the extents of shards
fingerprint      on several ranks: different calls (`CollectiveMismatch`), a deadlock, shapes that do not match
digest           on several ranks: copies that should be equal and are not, of any value or updated parameter
serial           a gradient that differs from the serial reference
===============  =================================================================================================

A mutant *changes a gradient* if the gradient of some parameter would be wrong. If ringtape refuses to run the mutant,
`random_programs.unlabelled` runs it without labels to find out; a mutant that cannot run there either has no gradient.
A mutant that changes no gradient (and usually not the objective either) need not be detected.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from autograd import optim
from autograd.errors import LayoutError, ReplicaMismatch, RingtapeError
from autograd.layouts.layout import I, Label, P, R, V
from collectives.mesh import Mesh
from collectives.world import run

from .execute import Seen, execute, gradient_faults
from .form import Program, Statement
from .rules import kinds
from .serial import Answer, dense
from .unlabelled import unlabelled

__all__ = [
    "KINDS", "LAYERS", "Fate", "Mutant", "Report", "false_alarm", "fate", "meant_labels", "mutants", "mutation_run",
]  # fmt: skip

KINDS = ("delete", "double", "move", "retype", "scale", "declare", "unequal")
LAYERS = ("labels", "shapes", "boundary", "rank labels", "fingerprint", "digest", "serial")
_COUNTED = ("delete", "move", "retype")


class Mutant(NamedTuple):
    """A program with one change.

    Attributes
    ----------
    program : Program
        The changed program.
    kind : one of `KINDS`
    operation : str
        The collective or cast that was changed; "leaf" for a parameter.
    what : str
        The statement before and after the change.
    rank : int or None
        The only rank that runs the changed program while all others run the correct one; None if all ranks run it.
    leaf : str
        The parameter that was changed, if any.
    """

    program: Program
    kind: str
    operation: str
    what: str
    rank: int | None = None
    leaf: str = ""


def mutants(program: Program, rank: int | None = None) -> list[Mutant]:
    """All mutants of the collectives and casts of a program, and without `rank` those of its parameters too.

    Examples
    --------
    >>> from tests.proofs.random_programs.shapes import SHAPES
    >>> for m in mutants(SHAPES["data parallel"])[:3]:
    ...     print(m.kind, "|", m.what)
    delete | u = cc.cast(w, "dp", to=R)  ->  u = w
    double | u = cc.cast(w, "dp", to=R)  ->  u_ = cc.cast(w, "dp", to=R); u = cc.cast(u_, "dp", to=R)
    move | u = cc.cast(w, "dp", to=R)  ->  u = cc.cast(w, "tp", to=R)
    """
    found = []
    for i, s in enumerate(program.statements):
        if s.communicates:
            for kind, lines in _changed_statements(s, program):
                text = f"{s}  ->  " + "; ".join(map(str, lines))
                changed = program._replace(statements=(*program.statements[:i], *lines, *program.statements[i + 1 :]))
                found.append(Mutant(changed, kind, s.operation, text, rank))
    if rank is None:
        found += [m for i, x in enumerate(program.leaves) if x.role == "parameter" for m in _leaf_mutants(program, i)]
    return found


def _leaf_mutants(program: Program, i: int) -> Iterable[Mutant]:
    x = program.leaves[i]
    for k, axis in enumerate(program.axes):
        if x.labels[k] is I and program.sizes[k] > 1:
            for kind, other in (
                ("declare", x._replace(labels=(*x.labels[:k], R, *x.labels[k + 1 :]))),
                ("unequal", x._replace(unequal=(axis,))),
            ):
                changed = program._replace(leaves=(*program.leaves[:i], other, *program.leaves[i + 1 :]))
                yield Mutant(changed, kind, "leaf", f"parameter {x.name}, axis {axis!r}: {kind}", leaf=x.name)


def _changed_statements(s: Statement, program: Program) -> Iterable[tuple[str, list[Statement]]]:
    yield "delete", [Statement(s.name, "keep", s.operands)]
    first = s._replace(name=s.name + "_")
    yield "double", [first, s._replace(operands=(first.name,))]
    size = dict(zip(program.axes, program.sizes, strict=True))
    if len(s.axes) == 1:
        for axis in program.axes:
            if axis not in s.axes:
                yield "move", [_fitted(s._replace(axes=(axis,)), size[axis])]
    else:
        for axis in s.axes:  # leave out one of the flattened axes
            rest = tuple(a for a in s.axes if a != axis)
            yield "move", [_fitted(s._replace(axes=rest), math.prod(size[a] for a in rest))]
    for other in _retyped(s):
        yield "retype", [other]
    n = math.prod(size[a] for a in s.axes)
    yield "scale", [first, Statement(s.name, "scale", (first.name,), number=float(n))]


def _fitted(s: Statement, size: int) -> Statement:
    """Replace roots and pairs that an axis of this size does not have."""
    pairs = tuple((i, j) for i, j in s.pairs if i < size and j < size)
    if s.operation == "hand_over" and not pairs:
        pairs = ((0, size - 1),)
    return s._replace(root=s.root % size, pairs=pairs)


def _retyped(s: Statement) -> list[Statement]:
    """Statements that give the same operand another label."""
    dim = s.dim or 0
    others: dict[str, list[dict[str, Any]]] = {
        "reduce_scatter": [{"operation": "all_reduce", "to": R}, {"operation": "all_reduce", "to": I}],
        "shard": [{"operation": "cast", "to": to} for to in (R, I, V)],
        "reduce": [{"operation": "all_reduce", "to": R}, {"operation": "all_reduce", "to": I}],
        "gather": [{"operation": "all_gather", "to": R}, {"operation": "all_gather", "to": I}],
        "scatter": [{"operation": "broadcast", "to": R}, {"operation": "broadcast", "to": I}],
        "all_to_all": [{"operation": "all_gather", "to": R, "dim": s.dim2}, {"operation": "cast", "to": V}],
        "declare_partial": [{"operation": "all_reduce", "to": R}, {"operation": "cast", "to": R}],
        "permute": [{"operation": "broadcast", "to": R}, {"operation": "declare_partial"}],
        "hand_over": [{"operation": "broadcast", "to": R, "root": s.pairs[0][0] if s.pairs else 0}],
        "all_reduce": [{"operation": "reduce_scatter"}, {"operation": "declare_partial"}],
        "all_gather": [{"operation": "cast", "to": V}],
        "broadcast": [{"operation": "scatter"}],
    }  # fmt: skip
    found = [s._replace(**{"dim": dim, **change}) for change in others.get(s.operation, [])]
    if s.operation in ("all_reduce", "mean", "all_gather", "broadcast"):
        found.insert(0, s._replace(to=I if s.to is R else R))
    if s.operation == "cast":
        found += [s._replace(to=to) for to in (R, I, P, V) if to is not s.to]
    return found


def meant_labels(program: Program) -> dict[str, Label]:
    """The label of each collective's operand in the correct program, by the name of the statement."""
    known = kinds(program)
    return {s.name: known[s.operands[0]].labels[program.axes.index(s.axes[0])]
            for s in program.statements if s.communicates}  # fmt: skip


# -- the layers ----------------------------------------------------------------------------------------------------


class Fate(NamedTuple):
    """Which layer detected a mutant, and whether the mutant changes a gradient.

    Attributes
    ----------
    program : str
        The name of the correct program.
    kind, operation, what : str
        As in `Mutant`.
    layer : str or None
        One of `LAYERS`; None if no layer detected the mutant.
    changes : bool or None
        Whether it changes a gradient; None if it cannot run without labels either.
    says : str
        The first line of the error message.
    """

    program: str
    kind: str
    operation: str
    what: str
    layer: str | None
    changes: bool | None
    says: str = ""


def fate(name: str, program: Program, mutant: Mutant, answer: Answer | None = None) -> Fate:
    """Run one mutant through the layers; `answer` is the serial reference of the correct program."""
    answer = dense(program) if answer is None else answer
    layer, says, ranks = _killed(program, mutant)
    if ranks is not None:
        changes: bool | None = bool(_wrong(program, answer, ranks))
    else:
        changes = None if mutant.rank is not None else _would_change(program, mutant, answer)
    if layer is None and changes and ranks is not None:
        layer, says = "serial", _wrong(program, answer, ranks)[0]
    kind = mutant.kind if mutant.rank is None else f"{mutant.kind}, one rank"
    return Fate(name, kind, mutant.operation, mutant.what, layer, changes, says.splitlines()[0] if says else "")


def _wrong(program: Program, answer: Answer, ranks: Sequence[Seen]) -> list[str]:
    return gradient_faults(program, answer, ranks, roles=("parameter",))


def _would_change(program: Program, mutant: Mutant, answer: Answer) -> bool | None:
    meant = meant_labels(program)
    meant |= {f"{name}_": label for name, label in meant.items()}
    if mutant.kind == "declare":
        meant |= {s.name: R for s in program.statements if s.communicates and mutant.leaf in s.operands}
    try:
        return bool(_wrong(program, answer, unlabelled(mutant.program, meant)))
    except Exception:  # NumPy raises several kinds of error when shapes do not match
        return None


def _killed(program: Program, mutant: Mutant) -> tuple[str | None, str, list[Seen] | None]:
    """The layer that detected a mutant and the message; and what the ranks saw, if all of them ran to the end."""
    try:
        run(lambda: _train(mutant.program.alone(), None), 1)
    except _OptimizerRefusal as error:
        return "boundary", str(error), None
    except LayoutError as error:
        return "labels", str(error), None
    except Exception as error:
        return "shapes", f"{type(error).__name__}: {error}", None
    try:
        ranks = run(lambda: _train(program if mutant.rank is not None else mutant.program, mutant), program.ranks)
    except LayoutError as error:
        return "rank labels", str(error), None
    except ReplicaMismatch as error:
        return "digest", str(error), None
    except Exception as error:
        return "fingerprint", f"{type(error).__name__}: {error}", None
    said = next((text for text, _ in ranks if text), "")
    return ("digest" if said else None), said, [seen for _, seen in ranks]


def false_alarm(program: Program) -> str | None:
    """Run a correct program through the layers: the layer that refuses it with its message, or None, as expected.

    Examples
    --------
    >>> from tests.proofs.random_programs import generate
    >>> false_alarm(generate(seed=2, trained=True))
    """
    found = fate("", program, Mutant(program, "none", "", ""))
    return None if found.layer is None else f"{found.layer}: {found.says}"


class _OptimizerRefusal(RingtapeError):
    """The LayoutError of an optimizer's step."""


def _train(program: Program, mutant: Mutant | None) -> tuple[str, Seen]:
    """One training step on this rank: the message of the digest check ("" if it passed), and what the rank saw."""
    with Mesh(**dict(zip(program.axes, program.sizes, strict=True))) as mesh:
        is_changed = mutant is not None and mutant.rank in (None, mesh.ranks.rank)
        statements = mutant.program.statements if mutant is not None and is_changed else None
        seen = execute(program, mesh, statements)
        parameters = [seen.leaves[x.name] for x in program.leaves if x.role == "parameter"]
        if parameters:
            try:
                optim.SGD(parameters, lr=0.5, digest_every=0).step()
            except LayoutError as error:
                raise _OptimizerRefusal(str(error)) from None
        try:
            if mutant is None or mutant.rank is None:
                mesh.check_replicas(seen.values.values())
            mesh.check_replicas(parameters)
        except ReplicaMismatch as error:
            return str(error), seen
        return "", seen


# -- the report ----------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """The results of many mutants: ``print(report)`` shows them as a table, `json` returns them as JSON."""

    fates: list[Fate] = field(default_factory=list)

    def changing(self, kinds_of: Sequence[str] = _COUNTED) -> list[Fate]:
        """The mutants of some kinds that change a gradient; by default of delete, move and retype."""
        return [f for f in self.fates if f.changes and f.kind.split(",")[0] in kinds_of]

    def share_without_serial(self, kinds_of: Sequence[str] = _COUNTED) -> float:
        """The share of these mutants that a layer before the serial comparison detects."""
        found = self.changing(kinds_of)
        return sum(f.layer not in (None, "serial") for f in found) / len(found) if found else 1.0

    @property
    def survivors(self) -> list[Fate]:
        """Mutants that change a gradient and that no layer detects; there must be none."""
        return [f for f in self.fates if f.layer is None and f.changes is not False]

    @property
    def only_serial(self) -> list[Fate]:
        """Mutants that only the serial comparison detects."""
        return [f for f in self.fates if f.layer == "serial"]

    @property
    def harmless(self) -> list[Fate]:
        """Undetected mutants that change no gradient."""
        return [f for f in self.fates if f.layer is None and f.changes is False]

    def table(self) -> list[tuple[str, Counter[str]]]:
        """The number of mutants of each kind, of those that change a gradient, and of those that each layer detects."""
        rows = []
        for kind in dict.fromkeys(f.kind for f in self.fates):
            row: Counter[str] = Counter()
            for f in self.fates:
                if f.kind == kind:
                    row["mutants"] += 1
                    row["changing"] += f.changes is True
                    row["cannot run"] += f.changes is None
                    row[f.layer or "undetected"] += 1
            rows.append((kind, row))
        return rows

    def __str__(self) -> str:
        columns = ["mutants", "changing", "cannot run", *LAYERS, "undetected"]
        lines = [f"{'kind':20}" + "".join(f"{c:>12}" for c in columns)]
        total: Counter[str] = Counter()
        for kind, row in self.table():
            total.update(row)
            lines.append(f"{kind:20}" + "".join(f"{row[c]:12}" for c in columns))
        lines.append(f"{'all':20}" + "".join(f"{total[c]:12}" for c in columns))
        for some in (_COUNTED, ("double",), ("scale",), ("declare", "unequal")):
            n = len(self.changing(some))
            share = f"{self.share_without_serial(some):.1%} of them are detected before the serial layer" if n else ""
            lines.append(f"{', '.join(some)}: {n} mutants change a gradient; {share}")
        lines.append(f"change a gradient and are not detected: {len(self.survivors)}")
        lines += [f"  {f.program}: {f.kind}: {f.what}" for f in self.survivors]
        lines.append(f"detected by the serial layer alone: {len(self.only_serial)}")
        lines += [f"  {f.program}: {f.kind}: {f.what}" for f in self.only_serial if f.kind != "scale"]
        return "\n".join(lines)

    def json(self) -> str:
        """The report as one JSON object."""
        return json.dumps({
            "kinds": {kind: dict(row) for kind, row in self.table()},
            "share_without_serial": self.share_without_serial(),
            "share_without_serial_of_double": self.share_without_serial(("double",)),
            "share_without_serial_of_scale": self.share_without_serial(("scale",)),
            "survivors": [f._asdict() for f in self.survivors],
            "killed_by_serial_alone": [f._asdict() for f in self.only_serial],
            "harmless": [f._asdict() for f in self.harmless],
        }, indent=2)  # fmt: skip


def mutation_run(
    programs: Mapping[str, Program], kinds_of: Sequence[str] = KINDS, one_rank: bool = False
) -> Report:
    """Run all mutants of some correct programs through all layers.

    Parameters
    ----------
    programs : mapping from name to Program
        Correct programs whose gradients an optimizer accepts, such as those of `random_programs.shapes` and
        of ``generate(trained=True)``.
    kinds_of : sequence of str
        The kinds of mutants, a subset of `KINDS`.
    one_rank : bool
        Whether to add mutants that change the program of the last rank only, so that ranks make different calls.

    Examples
    --------
    >>> from tests.proofs.random_programs.shapes import SHAPES
    >>> report = mutation_run({"data parallel": SHAPES["data parallel"]}, ["delete"])
    >>> report.share_without_serial(), report.survivors
    (1.0, [])
    """
    report = Report()
    for name, program in programs.items():
        answer = dense(program)
        found = mutants(program)
        if one_rank:
            found += mutants(program, program.ranks - 1)
        for m in found:
            if m.kind in kinds_of and not (m.rank is not None and m.kind == "scale"):
                report.fates.append(fate(name, program, m, answer))
    return report
