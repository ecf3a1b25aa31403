"""The step report: phases, hidden and exposed communication, stragglers and their causes, shares by speed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import data, nn, optim
from autograd.engine import events
from autograd.errors import LayoutError, MeshError, OptionError, ReplicaMismatch
from autograd.layouts.partition import proportional_parts
from collectives.transports.protocol import Request
from parallel import DataParallel
from parallel.report import StepReport

from ..collectives.launch import launch
from .virtual_time import VirtualTime

ROW_NS, INPUT_NS, OPTIMIZER_NS, TRANSFER_NS = 10_000, 20_000, 30_000, 5_000


class Timed(nn.Module):
    """A linear layer whose forward and backward take virtual time for each row: 1 and 2 units."""

    def __init__(self, time: VirtualTime, factor: float):
        self.layer = nn.Linear(4, 3, dtype="float64")
        self.time, self.factor = time, factor

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        ns = len(x.local) * ROW_NS * self.factor
        y = self.layer(x)
        self.time.compute(ns)
        if (recording := ag.engine.state.state.recording) is not None:
            recording.whole().mark(lambda sweep: self.time.compute(2 * ns))
        return y


class TimedSGD(optim.SGD):
    time: VirtualTime

    def update_all(self, gradients: list[Any]) -> None:
        super().update_all(gradients)
        self.time.compute(OPTIMIZER_NS)


def batches(time: VirtualTime, rows: int, count: int, input_ns: float) -> Iterator[Any]:
    for i in range(count):
        time.compute(input_ns)
        yield numpy.random.default_rng([i, int(cc.world().rank)]).normal(size=(rows, 4))


def train(
    time: VirtualTime, *, rows: int = 4, count: int = 3, factor: float = 1.0, input_ns: float = INPUT_NS,
    other_ns: float = 0.0,
) -> StepReport:  # fmt: skip
    """Steps of a data-parallel model in virtual time; the arguments may differ between ranks."""
    report = StepReport(clock=time.clock)
    with cc.Mesh(dp=-1) as mesh, time.synchronised():
        mesh.ranks.barrier()
        with report:
            model = DataParallel(Timed(time, factor), "dp")
            optimizer = TimedSGD(model.parameters(), lr=0.1)
            optimizer.time = time
            for x in report.steps(batches(time, rows, count, input_ns)):
                optimizer.zero_grad()
                time.compute(other_ns)
                with ag.Tape() as tape:
                    y = model(cc.from_local(x, {"dp": cc.Shard(0)}))
                    loss = cc.all_reduce((y**2).sum() / y.global_shape[0], "dp", to=cc.I)
                tape.backward(loss)
                optimizer.step()
            mesh.ranks.barrier()
    return report


def reports(ranks: int, transfer: Any = lambda rank, request: TRANSFER_NS, **planted: Any) -> list[StepReport]:
    """Train with rank `slow` unlike the others: its arguments of `train` are in `planted`."""
    time = VirtualTime(ranks, transfer)
    slow = planted.pop("slow", None)
    return cc.run(lambda: train(time, **(planted if int(cc.world().rank) == slow else {})), ranks)


def test_the_phases_of_a_step_are_exact() -> None:
    for report in reports(3):
        assert [r.steps for r in report.ranks] == [3, 3, 3]
        for r in report.ranks:
            times = r.median
            assert times.input_s == pytest.approx(INPUT_NS / 1e9)
            assert times.forward_s == pytest.approx(4 * ROW_NS / 1e9)
            assert times.backward_s == pytest.approx(8 * ROW_NS / 1e9)
            assert times.optimizer_s == pytest.approx(OPTIMIZER_NS / 1e9)
            assert times.other_s == pytest.approx(0, abs=1e-12) and times.waiting_s == pytest.approx(0, abs=1e-12)
            assert times.transfer_s > 0 and times.rows == 4 and times.elements > 0
            parts = times.input_s + times.compute_s + times.exposed_s + times.optimizer_s + times.other_s
            assert times.step_s == pytest.approx(parts)
        assert report.straggler is None and "no rank stands out" in str(report)
    assert "medians of a step in ms" in str(report) and str(report).count("\n") == 9


PLANTED = {
    "compute": {"factor": 1.9},
    "input": {"input_ns": 20 * INPUT_NS},
    "uneven work": {"rows": 9},
    "other": {"other_ns": 200_000},
}


@pytest.mark.parametrize("slow", [0, 1, 2])
@pytest.mark.parametrize("cause", PLANTED)
def test_a_slow_rank_is_named_with_its_cause(cause: str, slow: int) -> None:
    """The planted slow ranks of issue 14, and of one that does other work in its steps."""
    first, *others = reports(3, slow=slow, **PLANTED[cause])
    found = first.straggler
    assert found is not None and (found.rank, found.cause) == (slow, cause), first
    assert found.share == pytest.approx(1) and found.waited_s > 0
    assert all(str(other) == str(first) for other in others), "the same on all ranks"
    assert f"rank {slow} is the slowest" in str(first) and f"likely cause: {cause}" in str(first)
    # the others wait for exactly what it has spent more, on each of the two of them
    assert found.waited_s == pytest.approx(2 * found.more_s[cause], rel=1e-6)
    assert all(s == pytest.approx(0, abs=1e-9) for name, s in found.more_s.items() if name != cause)


@pytest.mark.parametrize("slow", [0, 2])
def test_a_slow_network_is_named(slow: int) -> None:
    """Rank `slow` gets the results of collectives late, after all had entered them."""
    first, *_ = reports(3, lambda rank, request: TRANSFER_NS * (20 if rank == slow else 1))
    found = first.straggler
    assert found is not None and (found.rank, found.cause) == (slow, "network"), first
    assert found.work == 1 and found.more_s["compute"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("slow", [1, 2])
def test_a_sender_on_a_slow_link_is_named(slow: int) -> None:
    """Messages around a ring, those from and to one rank slow. The next rank gets its message last, and is waited for;
    that the rank before it is at more of the slow transfers shows in the reason."""
    time = VirtualTime(4, lambda rank, request: 2000)

    def transfer(rank: int, request: Request) -> int:
        is_of_ring = request.call == "recv" and request.out.size == 3  # not one that measures the clocks
        return 200_000 if is_of_ring and slow in (rank, (rank - 1) % 4) else 2000

    time.transfer = transfer

    def program() -> StepReport:
        report, everyone = StepReport(clock=time.clock), cc.world()
        with time.synchronised():
            everyone.barrier()
            with report:
                for _ in range(3):
                    with report.step(rows=1):
                        time.compute(25_000 if everyone.rank == slow else 10_000)
                        everyone.send(numpy.ones(3), (int(everyone.rank) + 1) % 4)
                        everyone.recv(numpy.empty(3), (int(everyone.rank) - 1) % 4)
                        everyone.barrier()
        return report

    (first, *_) = cc.run(program, 4)
    found = first.straggler
    assert found is not None and (found.rank, found.cause) == ((slow + 1) % 4, "network"), first
    assert max(found.network_s, key=lambda r: found.network_s[r]) == slow and f"Rank {slow} has the most" in str(first)


def test_a_rank_that_waits_itself_is_not_blamed() -> None:
    """Rank 1 waits for rank 0 along "tp"; ranks 2 and 3 wait along "dp" for both. All of it is rank 0's delay."""
    time = VirtualTime(4, lambda rank, request: 0)

    def program() -> StepReport:
        report = StepReport(clock=time.clock)
        with cc.Mesh(dp=2, tp=2) as mesh, time.synchronised():
            tp, dp = mesh.axis("tp"), mesh.axis("dp")
            mesh.ranks.barrier()
            with report:
                for _ in range(3):
                    with report.step(rows=2):
                        time.compute(100_000 if cc.world().rank == 0 else 10_000)
                        tp.group.all_reduce(numpy.ones(2))
                        dp.group.all_reduce(numpy.ones(2))
                mesh.ranks.barrier()
        return report

    (first, *_) = cc.run(program, 4)
    blamed = {r.rank: r.waited_for_s for r in first.ranks}
    assert blamed == {0: pytest.approx(3 * 3 * 90e-6), 1: 0, 2: 0, 3: 0}
    direct = first.timeline.report.waited_for if first.timeline.report else {}
    assert direct[1] > 0, "the last rank to enter the call along dp"


@pytest.mark.parametrize(("other_ns", "cause"), [(3_000, "unknown"), (9_000, "unknown"), (12_000, "other")])
def test_a_cause_that_explains_too_little_is_not_named(other_ns: int, cause: str) -> None:
    """Rank 1 comes 300 us late to its first step, for a reason outside of it, and does a little more in each step."""
    time = VirtualTime(3, lambda rank, request: 0)

    def program() -> StepReport:
        report, is_slow = StepReport(clock=time.clock), cc.world().rank == 1
        with time.synchronised():
            cc.world().barrier()
            with report:
                time.compute(300_000 if is_slow else 0)
                for _ in range(3):
                    with report.step():
                        time.compute(10_000 + is_slow * other_ns)
                        cc.world().barrier()
        return report

    (first, *_) = cc.run(program, 3)
    found = first.straggler
    assert found is not None and (found.rank, found.cause) == (1, cause)
    assert found.waited_s == pytest.approx(2 * (300e-6 + 3 * other_ns / 1e9))
    assert found.more_s["other"] == pytest.approx(3 * other_ns / 1e9)
    assert (cause == "unknown") == ("no phase explains 10% of what each of the others has waited" in str(first))


def test_all_times_have_one_unit() -> None:
    for planted in PLANTED.values():
        text = str(reports(3, slow=1, **planted)[0])
        assert " ms" in text and not re.search(r"\d (s|us|ns|seconds)\b", text), text


def test_many_ranks_with_even_waits_name_no_straggler() -> None:
    """Each rank is slow in one step of three."""
    time = VirtualTime(3)

    def program() -> StepReport:
        report = StepReport(clock=time.clock)
        with time.synchronised():
            cc.world().barrier()
            with report:
                for i in range(3):
                    with report.step():
                        time.compute(90_000 if cc.world().rank == i else 10_000)
                        cc.world().barrier()
        return report

    (first, *_) = cc.run(program, 3)
    assert first.straggler is None and "no rank stands out: the ranks waited 58.6%" in str(first)


# -- overlap -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, -1])
def test_hidden_exposed_and_predicted_communication(order: int) -> None:
    """Two calls start in a sweep of 80 us, at 30 us and 60 us, and take 20 us and 40 us: 20 us are exposed."""
    time = VirtualTime(2, lambda rank, request: {1: 20_000, 2: 40_000}.get(getattr(request.x, "size", 0), 0))

    def program() -> StepReport:
        report = StepReport(clock=time.clock)
        with time.synchronised():
            everyone, pending = cc.world(), []

            def start(size: int) -> None:
                pending.append(everyone.start(Request("all_reduce", numpy.ones(size))))

            steps = [
                lambda: time.compute(30_000), lambda: start(1), lambda: time.compute(30_000), lambda: start(2),
                lambda: time.compute(20_000), lambda: [p.wait() for p in pending[::order]],
            ]  # fmt: skip
            everyone.barrier()
            with report:
                for _ in range(3):
                    with report.step(rows=1):
                        w = ag.Parameter([1.0])
                        with ag.Tape() as tape:
                            for step in reversed(steps):
                                tape.mark(lambda sweep, step=step: step())
                            y = w * w
                        tape.backward(y)
                        pending.clear()
                everyone.barrier()
        return report

    for report in cc.run(program, 2):
        for r in report.ranks:
            assert r.median.backward_s == pytest.approx(80e-6) and r.median.transfer_s == pytest.approx(20e-6)
            assert r.median.hidden_s == pytest.approx(50e-6), "in flight from 30 to 80 us, and then exposed"
            if order == -1:
                continue
            transfer_s, hidden_s, exposed_s, best_s, limit_s = r.buckets
            assert hidden_s == pytest.approx(r.median.hidden_s), "one definition: all of it was started in backward"
            # the end of the first is noticed at 80 us, when the program waits: its transfer seems to take 50 us
            assert transfer_s == pytest.approx(70e-6) and exposed_s == pytest.approx(20e-6)
            assert best_s == pytest.approx(20e-6) and limit_s == 0
        lines = [line.split("hidden")[1] for line in str(report).splitlines() if "exposed" in line]
        # transfers of 70 us: 50 us pass during backward, in the prediction too; backward of 80 us could hide them all
        assert order == -1 or lines == [
            " 0.050 ms, exposed 0.020 ms", " 0.050 ms, exposed 0.020 ms", " 0.070 ms, exposed 0.000 ms"]


# -- shares --------------------------------------------------------------------------------------------------------

X, Y = numpy.random.default_rng(5).normal(size=(23, 4)), numpy.random.default_rng(6).normal(size=(23, 3))


def gradients(ranks: int, shares: Any, axes: Any = "dp", **sizes: int) -> Any:
    """The gradients of every batch of an epoch, the rows, and the indices in their order."""

    def program() -> Any:
        with cc.Mesh(**(sizes or {"dp": ranks})) as mesh:
            ag.random.seed(3)
            layer = DataParallel(nn.Linear(4, 3, dtype="float64"), axes)
            rows = data.TensorDataset(X, Y, numpy.arange(23))
            loader = data.DataLoader(rows, 7, shuffle=True, key=ag.random.Key(1, "train"), axis=axes, shares=shares)
            found = []
            for x, y, index in loader:
                for p in layer.parameters():
                    p.zero_grad()
                with ag.Tape() as tape:
                    loss = cc.all_reduce(((layer(x) - y) ** 2).sum() / y.global_shape[0], axes, to=cc.I)
                tape.backward(loss)
                found.append(([p.grad.numpy() for p in layer.parameters()], index.numpy().tolist()))
            assert mesh.ranks.size == ranks
        return found

    return cc.run(program, ranks)


@pytest.mark.parametrize("shares", [[1.0, 3.0], [0.0, 1.0], [1.0, 1.0, 1.0], [0.2, 0.5, 0.3], [0, 0, 1],
                                    [5, 0, 1, 2, 3]])  # fmt: skip
def test_gradients_do_not_depend_on_shares(shares: list[float]) -> None:
    (serial,) = gradients(1, None)
    ranks = gradients(len(shares), shares)
    for i, (expected, order) in enumerate(serial):
        assert [k for rank in ranks for k in rank[i][1]] == order, "the same global order"
        for rank in ranks:
            for g, e in zip(rank[i][0], expected, strict=True):
                assert numpy.linalg.norm(g - e) <= 1e-12 * numpy.linalg.norm(e)
    counts = [len(rank[0][1]) for rank in ranks]
    assert counts == list(proportional_parts(7, shares))


def test_shares_along_two_axes() -> None:
    (serial,) = gradients(1, None)
    ranks = gradients(4, [1, 2, 3, 0], ("a", "b"), a=2, b=2)
    for i, (expected, order) in enumerate(serial):
        assert [k for rank in ranks for k in rank[i][1]] == order
        for g, e in zip(ranks[3][i][0], expected, strict=True):
            assert numpy.linalg.norm(g - e) <= 1e-12 * numpy.linalg.norm(e)


def test_shares_that_change_in_mid_epoch_keep_the_order() -> None:
    def program() -> Any:
        with cc.Mesh(dp=2):
            rows = data.TensorDataset(numpy.arange(23))
            loader = data.DataLoader(rows, 5, shuffle=True, key=ag.random.Key(1, "train"), axis="dp", num_workers=1)
            found = []
            for (x,) in loader:
                found.append(x.numpy().tolist())
                if len(found) == 2:
                    break
            loader.shares = [1.0, 4.0]
            loader.load_state_dict(loader.state_dict())
            return found + [x.numpy().tolist() for (x,) in loader]

    first, second = cc.run(program, 2)
    order = ag.random.permutation(ag.random.Key(1, "train"), 23).tolist()
    assert [k for both in zip(first, second, strict=True) for part in both for k in part] == order
    assert [len(part) for part in first] == [3, 3, 1, 1, 1]


def test_wrong_shares_are_refused() -> None:
    def program(shares: Any, axis: Any = "dp") -> None:
        with cc.Mesh(dp=2) as mesh:
            given = shares(mesh) if callable(shares) else shares
            for (x,) in data.DataLoader(data.TensorDataset(X), 4, axis=axis, shares=given):
                cc.all_reduce(x.sum(), "dp")

    for wrong in ([1.0], [1.0, -1.0], [0, 0], [1.0, float("nan")], [1.0, float("inf")], []):
        with pytest.raises(OptionError, match="one for each rank along 'dp'"):
            cc.run(lambda wrong=wrong: program(wrong), 2)
    with pytest.raises(LayoutError, match="depends on the rank"):
        cc.run(lambda: program(lambda mesh: [1, mesh.axis("dp").rank + 1]), 2)
    with pytest.raises(OptionError, match="no axis along which"):
        cc.run(lambda: program([1.0, 1.0], ()), 2)
    with pytest.raises(ReplicaMismatch):
        cc.run(lambda: program(lambda mesh: [1.0, 1.0 + int(mesh.axis("dp").rank)]), 2)


def test_shares_follow_the_measured_speed() -> None:
    """Rank 1 takes twice as long for a row: 3 units of computation each, and the same input."""
    time = VirtualTime(3, lambda rank, request: 0)

    def program() -> Any:
        report = train(time, factor=2.0 if cc.world().rank == 1 else 1.0, input_ns=0)
        with cc.Mesh(dp=-1):
            plain, smooth = report.shares("dp"), report.shares("dp", [1, 1, 1], smoothing=0.5)
            for wrong in ([1, 1], [0, 0, 0], [1, 1, -1]):
                with pytest.raises(OptionError, match="previous="):
                    report.shares("dp", wrong)
            with pytest.raises(OptionError, match="smoothing"):
                report.shares("dp", smoothing=1)
        return plain, smooth

    found = cc.run(program, 3)
    assert found[0] == found[1] == found[2]
    assert found[0][0] == pytest.approx([0.4, 0.2, 0.4])
    assert found[0][1] == pytest.approx([(s + 1 / 3) / 2 for s in (0.4, 0.2, 0.4)])


# -- mistakes, and worlds of other kinds ------------------------------------------------------------------------------


def test_one_rank_and_no_mesh() -> None:
    report = StepReport()
    w = ag.Parameter([1.0, 2.0])
    optimizer = optim.SGD([w], lr=0.1)
    list(report.steps([1.0]))  # before the block: no effect
    with report:
        assert str(report) == "a step report whose block has not ended"
        for x in report.steps([numpy.ones(2), numpy.ones(2)]):
            with ag.Tape() as tape:
                loss = (w * x).sum()
            tape.backward(loss)
            optimizer.step()
    (mine,) = report.ranks
    assert mine.steps == 2 and mine.total.rows == 4 and report.straggler is None
    assert min(mine.median.forward_s, mine.median.backward_s, mine.median.optimizer_s) > 0
    assert "1 rank, 2 steps" in str(report) and not events.spans
    with pytest.raises(MeshError, match="entered before"), report:
        pass
    with pytest.raises(MeshError, match="no mesh"):
        report.shares("dp")
    with StepReport() as empty:
        pass
    assert "no steps" in str(empty)


def test_a_step_that_raises() -> None:
    report = StepReport()
    with report:
        for i in range(3):
            with contextlib.suppress(ZeroDivisionError), report.step(rows=1), ag.Tape():
                _ = 1 / (i - 1)
        with contextlib.suppress(ZeroDivisionError):
            for x in report.steps([1, 0, 1]):
                _ = 1 / x
    assert report.ranks[0].steps == 5 and report.ranks[0].total.rows == 3
    failed = StepReport()
    with pytest.raises(ZeroDivisionError), failed:
        _ = 1 / 0
    assert not failed.ranks and not events.spans and not events.listeners
    with cc.Mesh(dp=1), pytest.raises(MeshError, match="has not ended, or it has raised"):
        failed.shares("dp")


def test_ranks_with_different_numbers_of_steps() -> None:
    time = VirtualTime(3, lambda rank, request: 0)

    def program() -> StepReport:
        report = StepReport(clock=time.clock)
        with time.synchronised():
            cc.world().barrier()
            with report:
                for i in range(int(cc.world().rank) * 2):
                    with report.step(rows=1):
                        time.compute(1000)
                        if i == 3:
                            time.compute(10)
                cc.world().barrier()
        return report

    first, *_ = cc.run(program, 3)
    assert [r.steps for r in first.ranks] == [0, 2, 4] and "0 to 4 steps" in str(first) and first.straggler is None
    assert [r.total.other_s for r in first.ranks] == pytest.approx([0, 2e-6, 4.01e-6])


def test_a_timeline_inside_a_report_hides_nothing() -> None:
    def program() -> Any:
        with cc.Mesh(dp=2) as mesh, StepReport() as report:
            group = mesh.axis("dp").group
            with report.step():
                group.all_reduce(numpy.ones(2))
                with cc.timeline() as inner:
                    group.all_reduce(numpy.ones(2))
        return report, inner

    report, inner = cc.run(program, 2)[0]
    for found, calls in ((report.timeline.report, 2), (inner.report, 1)):
        assert [row.calls for row in found.rows if row.axis == "dp" and row.call == "all_reduce"] == [calls] * 2


def test_a_dry_world_is_refused() -> None:
    with cc.dry(4), pytest.raises(MeshError, match="predict_step predicts a step"), StepReport():
        pass


@pytest.mark.slow
@pytest.mark.parametrize("cause", ["compute", "input", "network", "uneven work"])
def test_on_processes(cause: str) -> None:
    """Rank 1 of three processes is slow, in real time."""
    outcome = launch("report_program.py", 3, cause, limit_s=100)
    assert outcome.code == 0 and not outcome.is_late, f"{outcome.out}\n{outcome.err}"
    assert f"FOUND 1 {cause}\n" in outcome.out, outcome.out
