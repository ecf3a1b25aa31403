"""Real bugs of distributed gradients that labels cannot see: ranks that call differently, copies that are none.

As in `test_bugs`, each program that was wrong in a public project stands beside the one that is right. Under
``cc.check("ranks")`` the wrong one is refused on every rank, with the axis, the ranks and the lines of the program; the
mended one has the gradient of the serial program. The last one is a bug inside a library: its mutant is planted.
"""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn, optim
from collectives import I, R, V
from collectives.ops.parts import ALL_GATHER, REDUCE_SCATTER
from parallel import DataParallel

from ..proofs.cases import prove_exact, prove_refused
from .test_bugs import Bug, draw, grads, mine, whole

pytestmark = pytest.mark.usefixtures("ranks_mode")
RANKS = 3
BUGS: dict[str, Bug] = {}


def row(kind: type[Bug]) -> type[Bug]:
    BUGS[kind.__name__.lower()] = kind()
    return kind


def regression(mesh: cc.Mesh, w: Any) -> Any:
    """This rank's addend of a loss."""
    return (np.tanh(draw("x", 7, 4)[mine(mesh, "dp", 7)] @ w) ** 3).sum()


def serial_regression() -> Any:
    x = draw("x", 7, 4)
    return grads(lambda w: (np.tanh(x @ w) ** 3).sum(), draw("w", 4))[0]


@row
class Row36(Bug):
    """Lightning#19106. Every rank sums the metrics that it has logged, and the ranks have logged different ones."""

    axes = {"dp": RANKS}
    error = cc.CollectiveMismatch
    says = ["rank 1 did not make the call of the other ranks of 'dp@0'", "ranks 0, 2: all_reduce(axis='dp' shape=[]",
            "rank 1: all_reduce(axis='dp' shape=[4]", "test_bugs_collective.py:"]  # fmt: skip

    def logs(self, mesh: cc.Mesh) -> dict[str, Any]:
        logged = {"loss": ag.tensor(draw("loss")), "histogram": ag.tensor(draw("histogram", 4))}
        if mesh.axis("dp").rank == 1:  # it had no batch that counts for the loss
            del logged["loss"]
        return logged

    def train(self, mesh: cc.Mesh) -> Any:
        w = ag.Parameter(draw("w", 4), name="w")
        with ag.Tape() as tape:
            loss = cc.all_reduce(regression(mesh, cc.cast(w, "dp", to=R)), "dp", to=I)
        tape.backward(loss)
        return whole(w, names="w")

    def wrong(self, mesh: cc.Mesh) -> None:
        self.train(mesh)
        for value in self.logs(mesh).values():
            cc.all_reduce(value, "dp")

    def right(self, mesh: cc.Mesh) -> Any:
        found = self.train(mesh)
        logs = self.logs(mesh)
        for name, shape in (("histogram", 4), ("loss", ())):  # the same names everywhere, zeros where there is none
            total = cc.all_reduce(logs.get(name, ag.tensor(numpy.zeros(shape))), "dp")
            expected = RANKS * draw("histogram", 4) if name == "histogram" else (RANKS - 1) * draw("loss")
            numpy.testing.assert_allclose(total.numpy(), expected)
        return found

    def serial(self) -> Any:
        return {"w": serial_regression()}


@row
class Row37(Bug):
    """torchrec#4149. Some ranks exchange first and sum then, the others the other way round."""

    axes = {"ep": RANKS}
    error = cc.CollectiveMismatch
    says = ["rank 2 did not make the call of the other ranks of 'ep@0'", "ranks 0, 1: all_to_all(axis='ep'",
            "rank 2: all_reduce(axis='ep' shape=[4]", "test_bugs_collective.py:"]  # fmt: skip

    def data(self, mesh: cc.Mesh) -> tuple[Any, Any]:
        rank = int(mesh.axis("ep").rank)
        tables = ag.tensor(draw("A", RANKS, 3, 2)[rank], requires_grad=True)
        return tables, ag.tensor(draw("B", RANKS, 4)[rank], requires_grad=True)

    @staticmethod
    def loss(a: Any, b: Any, axis: str) -> Any:
        return cc.all_reduce((a * a * a).sum(), axis, to=I) + cc.cast((b * b * b).sum(), axis, to=I)

    def wrong(self, mesh: cc.Mesh) -> None:
        a, b = self.data(mesh)
        with ag.Tape():
            if mesh.axis("ep").rank < 2:
                cc.all_to_all(a, "ep")
                cc.all_reduce(b, "ep")
            else:
                cc.all_reduce(b, "ep")
                cc.all_to_all(a, "ep")

    def right(self, mesh: cc.Mesh) -> Any:
        a, b = self.data(mesh)
        with ag.Tape() as tape:
            rows = cc.all_to_all(a, "ep")
            total = cc.all_reduce(b, "ep")
            loss = self.loss(rows, total, "ep")
        tape.backward(loss)
        rank = int(mesh.axis("ep").rank)
        return {"a": (a.grad.numpy(), rank), "b": (b.grad.numpy(), rank)}

    def serial(self) -> Any:
        a, b = draw("A", RANKS, 3, 2), draw("B", RANKS, 4)
        ga, gb = grads(lambda a, b: (a**3).sum() + (b.sum(axis=0) ** 3).sum(), a, b)
        return {"a": ga, "b": gb}


@row
class Row39(Bug):
    """horovod#832. Every rank loops over its own batches, and the ranks have different numbers of them."""

    axes = {"dp": RANKS}
    error = cc.CollectiveMismatch
    says = ["rank 0 did not make the call of the other ranks of 'dp@0'", "ranks 1, 2: all_reduce(axis='dp' shape=[]",
            "rank 0: cast I->R(axis='dp' shape=[4]", "test_bugs_collective.py:"]  # fmt: skip

    def batches(self, mesh: cc.Mesh) -> list[Any]:
        share = draw("x", 7, 4)[mine(mesh, "dp", 7)]
        return [share[i : i + 1] for i in range(len(share))]  # 3, 2 and 2 batches

    def step(self, batch: Any, w: Any) -> None:
        with ag.Tape() as tape:
            loss = cc.all_reduce((np.tanh(batch @ cc.cast(w, "dp", to=R)) ** 3).sum(), "dp", to=I)
        tape.backward(loss)

    def wrong(self, mesh: cc.Mesh) -> None:
        w = ag.Parameter(draw("w", 4), name="w")
        for batch in self.batches(mesh):
            self.step(batch, w)
        cc.all_reduce(ag.tensor(1.0), "dp")  # the end of the epoch

    def right(self, mesh: cc.Mesh) -> Any:
        w = ag.Parameter(draw("w", 4), name="w")
        batches = self.batches(mesh)
        counts = cc.all_gather(ag.tensor([len(batches)]), "dp").numpy()
        for turn in range(int(counts.max())):
            self.step(batches[turn] if turn < len(batches) else numpy.zeros((0, 4)), w)
        return whole(w, names="w")

    def serial(self) -> Any:
        return {"w": serial_regression()}


@row
class Row41(Bug):
    """pytorch#28883. A parameter is used on one rank only; another one nowhere, and its gradient must stay None."""

    axes = {"dp": RANKS}
    error = cc.CollectiveMismatch
    says = ["rank 1 did not make the call of the other ranks of 'dp@0'", "rank 1: cast I->R(axis='dp' shape=[4]",
            "ranks 0, 2: all_reduce(axis='dp' shape=[]", "test_bugs_collective.py:"]  # fmt: skip

    def wrong(self, mesh: cc.Mesh) -> None:
        w, extra = ag.Parameter(draw("w", 4), name="w"), ag.Parameter(draw("extra", 4), name="extra")
        with ag.Tape():
            loss = regression(mesh, cc.cast(w, "dp", to=R))
            if mesh.axis("dp").rank == 1:
                loss = loss + (cc.cast(extra, "dp", to=R) ** 3).sum()
            cc.all_reduce(loss, "dp", to=I)

    def right(self, mesh: cc.Mesh) -> Any:
        rank = mesh.axis("dp").rank

        class Model(nn.Module):
            def __init__(self) -> None:
                self.w, self.extra = ag.Parameter(draw("w", 4), name="w"), ag.Parameter(draw("extra", 4), name="extra")
                self.idle = ag.Parameter(draw("idle", 4), name="idle")

            def forward(self) -> Any:
                loss = regression(mesh, self.w)
                return loss + (self.extra**3).sum() if rank == 1 else loss

        model = DataParallel(Model(), "dp")
        optimizer = optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        with ag.Tape() as tape:
            loss = cc.all_reduce(model(), "dp", to=I)
        tape.backward(loss)
        inner = model.module
        found = whole(inner.w, inner.extra, names="w extra")
        found = {name: (g.copy(), place) for name, (g, place) in found.items()}
        assert inner.idle.grad is None
        optimizer.step()
        numpy.testing.assert_array_equal(inner.idle.numpy(), draw("idle", 4))  # momentum has not moved it
        return found

    def serial(self) -> Any:
        return {"w": serial_regression(), "extra": grads(lambda e: (e**3).sum(), draw("extra", 4))[0]}


@row
class Row31(Bug):
    """torchtitan#166. A seed per rank, declared Invariant. Under the sanitizer it is found where the weight enters."""

    axes = {"dp": RANKS}
    error = cc.ReplicaMismatch
    says = ["the copies of ranks 1, 2 differ from those of rank 0", "equal along 'dp@0'", "w: f64[4] {dp: I}",
            "cast I->R", "at test_bugs_collective.py:", "fix: ", "same seed", "broadcast it from one rank"]  # fmt: skip

    def entered(self, mesh: cc.Mesh, w: Any) -> Any:
        with ag.Tape() as tape:
            loss = cc.all_reduce(regression(mesh, cc.cast(w, "dp", to=R)), "dp", to=I)
        tape.backward(loss)
        return whole(w, names="w")

    def wrong(self, mesh: cc.Mesh) -> None:
        seed = int(mesh.axis("dp").rank)
        w = ag.Parameter(numpy.random.default_rng(seed).standard_normal(4), name="w")
        cc.cast(w, "dp", to=R)

    def right(self, mesh: cc.Mesh) -> Any:
        return self.entered(mesh, ag.Parameter(draw("w", 4), name="w"))

    def serial(self) -> Any:
        return {"w": serial_regression()}


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_is_refused_on_every_rank(name: str) -> None:
    for text in prove_refused(BUGS[name].case()):
        assert text.count("test_bugs_collective.py:") >= 2, text


@pytest.mark.parametrize("name", BUGS)
def test_the_mended_program_has_the_serial_gradient(name: str) -> None:
    names = set(BUGS[name].serial())
    assert all(found == names for found in prove_exact(BUGS[name].case()))


# -- row 47: DeepSpeed#7672, the backward of reduce-scatter on a subgroup takes world ranks for places in the group ----


def gradients_on_rows(mesh: cc.Mesh) -> tuple[Any, Any]:
    """Gradients of a weight and of this rank's data, through a reduce-scatter along the rows of a 2 x 3 mesh."""
    data = ag.tensor(draw("data", 6, 7)[mesh.ranks.rank], requires_grad=True)
    w = ag.Parameter(draw("weight", 7), name="w")
    with ag.Tape() as tape:
        part = cc.reduce_scatter(data * cc.cast(w, ("row", "column"), to=R), "column")  # 3, 2 and 2 of 7 elements
        loss = cc.all_reduce((part * part * part).sum(), ("row", "column"), to=I)
    tape.backward(loss)
    return data.grad.numpy().copy(), w.grad.numpy().copy()


def on_rows() -> list[tuple[Any, Any]]:
    def program() -> Any:
        with cc.Mesh(row=2, column=3) as mesh:
            assert mesh.axis("column").group.ranks == ((0, 1, 2) if mesh.ranks.rank < 3 else (3, 4, 5))
            return gradients_on_rows(mesh)

    return cc.run(program, 6)


def serial_on_rows() -> tuple[Any, Any]:
    def loss(data: Any, w: Any) -> Any:
        return sum((((data[3 * r : 3 * r + 3] * w).sum(axis=0)) ** 3).sum() for r in range(2))

    return grads(loss, draw("data", 6, 7), draw("weight", 7))


def off(found: Any, wanted: Any) -> float:
    return float(numpy.linalg.norm(found - wanted) / numpy.linalg.norm(wanted))


def test_row47_the_gradient_of_a_reduce_scatter_on_the_second_row() -> None:
    of_data, of_weight = serial_on_rows()
    for rank, (g, gw) in enumerate(on_rows()):
        assert off(g, of_data[rank]) < 1e-12
        assert off(gw, of_weight) < 1e-12


def by_world_rank(ct: Any, call: Any) -> Any:
    """The mutant: each part goes to the place that the rank's number in the world would have."""
    whole = numpy.array(ALL_GATHER(ct, call, source=V, to=R))
    starts = numpy.cumsum([0, *call.extents[:-1]])
    wrong = numpy.zeros_like(whole)
    for place, world_rank in enumerate(call.group.ranks):
        part = whole[starts[place] : starts[place] + call.extents[place]]
        at = (int(starts[world_rank]) if world_rank < len(starts) else sum(call.extents) + world_rank) % len(whole)
        wrong[numpy.arange(at, at + len(part)) % len(whole)] = part
    return wrong


def test_row47_the_mutant_that_takes_world_ranks_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REDUCE_SCATTER, "_adjoint", by_world_rank)
    of_data, _ = serial_on_rows()
    for rank, (g, _) in enumerate(on_rows()):
        if rank < 3:  # on the first row the two numbers are the same: two ranks in one row would prove nothing
            assert off(g, of_data[rank]) < 1e-12
        else:
            assert off(g, of_data[rank]) > 0.1


def test_all_rows_are_here() -> None:
    assert sorted(BUGS) == ["row31", "row36", "row37", "row39", "row41"]
    assert all(type(bug).__doc__ and "#" in type(bug).__doc__ for bug in BUGS.values())
