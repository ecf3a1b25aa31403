"""Stages may sweep the tapes of their microbatches in any order, because messages have numbers."""

from __future__ import annotations

import time
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from collectives import V
from collectives.inspect.recorder import Calls
from collectives.transports.protocol import Request

from ..launch import launch
from .pipeline_cases import faults, transfer


@pytest.mark.parametrize("nonblocking", [False, True])
@pytest.mark.parametrize("stages", [2, 3])
def test_stages_sweep_in_different_orders(stages: int, nonblocking: bool) -> None:
    """They were exchanged silently: messages were matched by their order alone."""
    assert cc.run(lambda: faults(nonblocking), stages) == [[]] * stages


@pytest.mark.parametrize("on", ["here", "openmpi"])
def test_over_mpi(on: str) -> None:
    outcome = launch("pipeline_program.py", 3, limit_s=120, on=on, OPENBLAS_NUM_THREADS="1")
    assert outcome.code == 0 and not outcome.is_late, outcome
    assert "PIPELINES blocking: 0 faults" in outcome.out and "PIPELINES nonblocking: 0 faults" in outcome.out, outcome


def test_a_forward_message_between_two_sweeps() -> None:
    """Rank 1 sends a value forwards before it sweeps; rank 0 sweeps before it receives the value."""
    def program() -> Any:
        with cc.Mesh(pp=2) as mesh:
            rank = int(mesh.axis("pp").rank)
            w = ag.Parameter(numpy.arange(128.0), {"pp": V})  # its cotangent is as long as a header
            with ag.Tape() as tape:
                y = cc.recv("pp", 0) if rank else cc.send(w * 2.0, "pp", 1)
            z = ag.tensor(numpy.ones(1))
            if rank:
                cc.send(z, "pp", 0)
                tape.backward(y, numpy.arange(128.0))
                return None
            tape.backward()
            return cc.recv("pp", 1).numpy().tolist(), (w.grad.numpy() == 2.0 * numpy.arange(128.0)).all()

    assert cc.run(program, 2)[0] == ([1.0], True)


def test_orders_that_wait_for_each_other() -> None:
    """Each rank waits for the cotangent that the other one sends afterwards: an error that names both messages."""
    def program() -> None:
        with cc.Mesh(pp=2) as mesh:
            rank = int(mesh.axis("pp").rank)
            w = ag.Parameter([1.0], {"pp": V})
            with ag.Tape() as there:
                y = cc.recv("pp", 0) if rank else cc.send(w, "pp", 1)
            with ag.Tape() as back:
                z = cc.send(w, "pp", 0) if rank else cc.recv("pp", 1)
            for tape, value in [(there, y), (back, z)][:: -1 if rank else 1]:
                tape.backward(*(() if value is None else (value, [1.0])))

    with pytest.raises(cc.DeadlockError) as caught:
        cc.run(program, 2)
    text = str(caught.value)
    for source, target in ((0, 1), (1, 0)):
        assert f"the cotangent of message 1 to rank {target}, sent at test_pipelines.py:" in text, text
        assert f"rank {source} waits in recv from rank {target} on 'pp@0/sweeps'" in text, text


# -- messages that nobody receives -------------------------------------------------------------------------------------


def two_steps(what: str, nonblocking: bool = False) -> None:
    """Two steps of two stages, on threads: the program `unreceived.py`."""
    send, recv = transfer(nonblocking)
    with cc.Mesh(pp=2) as mesh:
        is_first = mesh.axis("pp").rank == 0
        w = ag.Parameter([1.0, 2.0], {"pp": V})
        for _ in range(2):
            with ag.Tape() as tape:
                if is_first:
                    send(w * 2.0, "pp", 1)
                elif what != "value":
                    y = recv("pp", 0)
            if what == "cotangent" and not is_first:
                tape.backward(y, [1.0, 1.0])
            if what == "wait" and is_first:
                tape.backward()


REPORTS = {
    "value": (
        "2 messages were sent and never received",
        "from rank 0 to rank 1: message 1 to rank 1, sent at {file}:",
        "fix: a recv for every send",
    ),
    "cotangent": (
        "2 messages were sent and never received",
        "from rank 1 to rank 0: the cotangent of message 2 from rank 0, received at {file}:",
        "fix: tape.backward(...) on both ranks of a message",
    ),
    "wait": ("deadlock", "the cotangent of message 1 to rank 1, sent at {file}:"),
}


@pytest.mark.parametrize("nonblocking", [False, True])
@pytest.mark.parametrize("what", REPORTS)
def test_unreceived_messages_are_reported(what: str, nonblocking: bool) -> None:
    """A missing recv or backward: it used to be silent, but for the deadlock, which did not say for which message."""
    file = "pipeline_cases.py" if nonblocking else "test_pipelines.py"
    with pytest.raises(cc.DeadlockError if what == "wait" else cc.CollectiveMismatch) as caught:
        cc.run(two_steps, 2, what, nonblocking)
    for words in REPORTS[what]:
        assert words.format(file=file) in str(caught.value), caught.value
    cc.run(two_steps, 2, "nothing is wrong", nonblocking)


@pytest.mark.parametrize(("what", "on"), [("value", "here"), ("cotangent", "here"), ("wait", "here"),
                                          ("cotangent", "openmpi")])  # fmt: skip
def test_unreceived_messages_are_reported_over_mpi(what: str, on: str) -> None:
    outcome = launch("unreceived.py", 2, what, limit_s=60, on=on, OPENBLAS_NUM_THREADS="1")
    assert outcome.code != 0 and not outcome.is_late, outcome
    for words in REPORTS[what]:
        assert words.format(file="unreceived.py") in outcome.err, outcome.err


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_numbers_of_messages() -> None:
    """Of messages with numbers, each recv gets the one that it names; of those with one number, in their order."""
    def program() -> Any:
        group = cc.world().lane("numbers")
        if group.rank == 0:
            for value, number in ((1.0, 7), (2.0, 3), (3.0, 7)):
                group.run(Request("send", numpy.array([value]), peer=1, options=(number, "")))
            return None
        asked = [group.start(Request("recv", out=numpy.empty(1), peer=0, options=(n, ""))) for n in (3, 7, 7)]
        return [float(pending.wait()[0]) for pending in asked]

    assert cc.run(program, 2)[1] == [2.0, 1.0, 3.0]


def test_lanes_have_different_tags() -> None:
    mpi = pytest.importorskip("collectives.transports.mpi.communicator")
    ends = ["", "/sweeps", "/tangents", "/sweeps/sweeps", "/tangents/sweeps", "/sweeps/tangents", "/tangents/tangents"]
    paths = ["headers", *(f"messages{end}".strip("/") for end in ends), *(end.strip("/") for end in ends if end)]
    tags = [mpi._lane_tag(f"0123456789abcdef/{path}") for path in paths]
    assert len(set(tags)) == len(tags) and max(tags) < mpi._LANES


def test_a_timeline_matches_messages_by_their_numbers() -> None:
    """Rank 0 receives messages 1 and 2 in this order, and rank 1 sends them in the other one."""
    def program() -> Any:
        rank, calls = int(cc.world().rank), Calls(time.monotonic_ns, lambda call: None)
        found = {}
        for number in (2, 1) if rank else (1, 2):
            request = Request("send" if rank else "recv", numpy.ones(1), peer=1 - rank, options=(number, ""))
            call = calls._new(cc.world(), request, True)
            found[number] = call.channel, call.number
        return found

    first, second = cc.run(program, 2)
    assert first == second and first[1] != first[2]
