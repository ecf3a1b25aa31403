"""Buckets of a captured step: each starts once its last gradient is written, and is waited for at the entry's place."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim
from autograd.compiler.plan import reads_of
from autograd.compiler.trace import owner_of
from autograd.layouts.layout import I
from collectives.inspect.observing import observing
from parallel import DataParallel

from ..tables import some
from .test_capture import batch

CALLS = 14
START, WAIT = "start of a bucket", "sums of buckets"


def network() -> nn.Module:
    ag.random.seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)
    )


class Training:
    def __init__(self, zero: int, **options: Any):
        self.model = DataParallel(network(), "dp", zero=zero, **options)
        self.optimizer = optim.SGD(self.model.parameters(), 0.1, 0.9)

    def step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = nn.cross_entropy(self.model(ag.tensor(x)), ag.tensor(y), reduction="sum")
            loss = cc.all_reduce(loss, "dp", to=I) / 24
        tape.backward(loss)
        self.optimizer.step()
        return loss


def groups_of(zero: int, **options: Any) -> Any:
    """The captured step of each rank, and its groups of nodes in order."""

    def program() -> Any:
        with cc.Mesh(dp=cc.world().size) as mesh:
            t = Training(zero, **options)
            do = ag.capture(t.step)
            random = numpy.random.default_rng(int(mesh.axis("dp").rank))
            for _ in range(CALLS):
                do(*batch(random))
            assert do.replays == CALLS - 4
            program = do._last.program.program
            flats = [place.flat for entry in t.model._entries for kept in entry._plan.call.runs._kept for place in kept]
            return program, program.plan.groups, flats, do._last.program.step.rows

    return cc.run(program, ranks=2)


def name_of(group: Any) -> str:
    return group.nodes[0].function if group.kind == "python" and isinstance(group.nodes[0].function, str) else ""


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_a_bucket_starts_once_its_last_gradient_is_written(zero: int) -> None:
    for _, groups, _, rows in groups_of(zero, bucket_bytes=0):
        names = [name_of(group) for group in groups]
        starts, wait = [i for i, name in enumerate(names) if name == START], names.index(WAIT)
        assert len(starts) == 8 and starts[-1] < wait and WAIT not in names[wait + 1 :]
        compute = [i for i, group in enumerate(groups) if group.kind != "python"]
        assert sum(starts[0] < i < wait for i in compute) >= 8  # the products of three layers, and more
        for at in starts:
            (node,) = groups[at].nodes
            read = {id(x.buffer) for x in reads_of(node)}
            written = max(i for i in compute if i < at and any(id(x.buffer) in read for x in outs_of(groups[i])))
            between = {groups[i].nodes[0].row for i in compute if written < i < at}
            assert len(between) < 2  # the other cotangent of the same linear layer
            assert all(rows[i].name == "linear, backward" for i in between)
        # What reads the sums comes after the wait.
        (node,) = groups[wait].nodes
        sums = {id(x.buffer) for x in node.outs}
        assert sums
        readers = [i for i, group in enumerate(groups) for n in group.nodes
                   if sums & {id(x.buffer) for x in reads_of(n)}]  # fmt: skip
        assert readers and min(readers) > wait


def outs_of(group: Any) -> list[Any]:
    return [x for node in group.nodes for x in node.outs]


def test_a_bucket_in_flight_lies_in_no_memory_of_the_program() -> None:
    for program, _, flats, _ in groups_of(0, bucket_bytes=0):
        assert flats
        assert not any(numpy.may_share_memory(owner_of(flat), program.memory.arena) for flat in flats)


# -- the order of events on all ranks ---------------------------------------------------------------------------------
def events_of(zero: int, captures: bool, change: Callable[[int, int, Any, Any], Any], bucket_bytes: int) -> Any:
    """What this rank starts and waits for on each channel, in order, and the parameters."""
    found: list[tuple[str, ...]] = []

    def observer(group: Any, request: Any, started: bool, run: Callable[[], Any]) -> Any:
        n = len(found)
        found.append(("start" if started else "run", group.name, request.call, str(getattr(request.x, "size", ""))))
        result = run()
        if started:
            wait, told = result.wait, []

            class Told(type(result)):  # type: ignore[misc]
                __slots__ = ()

                def wait(self) -> Any:
                    if not told:
                        told.append(found.append(("wait", group.name, str(n))))
                    return wait()

            result.__class__ = Told
        return result

    with cc.Mesh(dp=cc.world().size) as mesh:
        t = Training(zero, bucket_bytes=bucket_bytes)
        do = ag.capture(t.step, verify=False) if captures else t.step
        rank = int(mesh.axis("dp").rank)
        random = numpy.random.default_rng(rank)
        for k in range(CALLS):
            if k == CALLS - 1:
                with observing(observer):
                    do(*change(k, rank, *batch(random)))
            else:
                do(*change(k, rank, *batch(random)))
        return found, [p.array.tobytes() for p in t.model.parameters()]


ONE_DEPARTS = {
    "all replay": lambda k, rank, x, y: (x, y),
    "one departs": lambda k, rank, x, y: (x, numpy.where(numpy.arange(6) == 2, -100, y) if k > 9 and rank else y),
    "one records": lambda k, rank, x, y: (x[:5], y[:5]) if k == CALLS - 1 and rank == 1 else (x, y),
}


CROSSED = sorted(
    itertools.product(range(len(ONE_DEPARTS)), range(4), range(3)), key=lambda place: sum(place) % 3
)  # first a third of them, which has each pair of two options


@pytest.mark.parametrize(
    ("name", "zero", "bucket_bytes"),
    some([([*ONE_DEPARTS][i], zero, [0, 600, 10_000][k]) for i, zero, k in CROSSED], len(CROSSED) // 3),
)
def test_the_order_of_communications_is_that_of_the_step_itself_on_all_ranks(
    name: str, zero: int, bucket_bytes: int
) -> None:
    expected = cc.run(lambda: events_of(zero, False, ONE_DEPARTS[name], bucket_bytes), ranks=3)
    found = cc.run(lambda: events_of(zero, True, ONE_DEPARTS[name], bucket_bytes), ranks=3)
    by_channel = [sent(events) for events, _ in found]
    assert by_channel == [by_channel[0]] * 3 == [sent(events) for events, _ in expected]
    assert [bits for _, bits in found] == [bits for _, bits in expected]
    if zero < 3 and bucket_bytes < 10_000:  # several start before the first is waited for
        for events, _ in found:
            kinds = [event[0] for event in events if event[1].endswith("/gradients")]
            assert kinds.index("wait") > 1
    if zero == 3:  # the gather of the next layer starts before that of this one's gradients
        for events, _ in found:
            assert max(in_flight(events)) > 0


def sent(events: Any) -> dict[str, list[Any]]:
    """The requests of each channel, in order."""
    found: dict[str, list[Any]] = {}
    for event in events:
        if event[0] != "wait" and event[2] != "agree":
            found.setdefault(event[1], []).append(event)
    return found


def in_flight(events: Any) -> list[int]:
    """The gathers in flight at each start of a sum of gradients."""
    open_gathers, found = 0, [0]
    for event in events:
        if event[1].endswith("/parameters"):
            open_gathers += 1 if event[0] == "start" else -1
        elif event[0] == "start":
            found.append(open_gathers)
    return found
