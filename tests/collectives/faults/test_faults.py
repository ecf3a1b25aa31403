"""Each kind of fault at each kind of operation, on threads: which error the job ends with, and whom it names."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import optim
from autograd.errors import CollectiveMismatch, DeadlockError, MeshError, OptionError, RankFailed, ReplicaMismatch
from collectives.faults.injection import invert_bits
from collectives.faults.points import listeners
from collectives.testing import faults
from collectives.transports.protocol import Request, observers

RANKS = 3
FAULTY = 1  # the rank that fails

OPERATIONS = {
    "all_reduce": ("all_reduce", 2), "backward": ("all_reduce", 3), "started": ("all_reduce", 1), "wait": ("wait", 1),
    "send": ("send", 1), "recv": ("recv", 1), "barrier": ("barrier", 1), "get": ("get", 1),
    "broadcast": ("broadcast", 1), "window.add": ("window.add", 1), "window.get": ("window.get", 1),
    "window.locked": ("window.locked", 1), "clocks.set": ("clocks.set", 1), "clocks.wait": ("clocks.wait", 1),
    "point": ("step.begin", 1), "exchange": ("exchange", 1),
}  # fmt: skip
"""Kinds of operations, and which call of which name is one of them in `every_call`."""
BLOCKING = ("all_reduce", "backward", "started", "recv", "barrier", "get", "broadcast", "window.get")
"""Those that move data and have a result, or wait for the others."""


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = dict(observers)
    yield
    assert observers == before and not listeners.by_thread and not listeners.by_rank


def every_call() -> list[Any]:
    """Make each kind of operation, and return the results."""
    group = cc.world()
    right, left = (group.index + 1) % RANKS, (group.index - 1) % RANKS
    window, clocks = group.window(np.ones(4)), group.clocks()
    with cc.Mesh(dp=-1) as mesh:
        faults.point("step.begin")
        w = ag.Parameter(np.eye(2), name="w")
        optimizer = optim.SGD([w], lr=0.1)
        with ag.Tape() as tape:
            h = ag.tensor(np.full((3, 2), group.index + 1.0)) @ cc.cast(w, "dp", to=cc.R)
            started = cc.all_reduce_async(h, "dp", to=cc.I)
            loss = cc.all_reduce((h * h).sum(), "dp", to=cc.I) + (started * started).sum()
        tape.backward(loss)
        optimizer.step()
        group.send(np.full(2, 7.0), right)
        received = group.recv(np.empty(2), left)
        window.add(np.ones(4), right)
        with window.locked(left):
            pass
        group.barrier()
        taken = window.get(left)
        clocks.set(1)
        clocks.wait(1)
        part = cc.get(ag.tensor(np.arange(3.0)), "dp", source=left)
        copy = group.broadcast(np.arange(3.0), 0)
        cc.check_replicas([w], mesh)
    window.free()
    return [w.numpy().copy(), received, taken, part.numpy(), copy, loss.item()]


def run(*plan: Any) -> list[list[Any]]:
    with faults.injected(*plan):
        return cc.run(every_call, RANKS)


@pytest.fixture(scope="module")
def right() -> list[list[Any]]:
    return cc.run(every_call, RANKS)


def same(found: list[list[Any]], right: list[list[Any]]) -> bool:
    pairs = [zip(a, b, strict=True) for a, b in zip(found, right, strict=True)]
    return all(np.array_equal(a, b) for a, b in itertools.chain(*pairs))


# -- each kind at each operation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_killed_rank_is_named(operation: str) -> None:
    of, at = OPERATIONS[operation]
    with pytest.raises(RankFailed) as caught:
        run(faults.Kill(FAULTY, at, of=of))
    text = str(caught.value)
    assert text.startswith(f"rank 1 of 3 was killed by an injected fault: kill:1@{at},of={of}, at {of}")
    assert "at test_faults.py:" in text


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_stopped_rank_is_named(operation: str) -> None:
    of, at = OPERATIONS[operation]
    with pytest.raises(DeadlockError, match=r"rank 1 waits in recv from rank 1 on '.*faults': it was stopped by") as e:
        run(faults.Stop(FAULTY, at, of=of))
    assert f"(stop:1@{at},of={of})" in str(e.value)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_delay_changes_nothing(operation: str, right: list[list[Any]]) -> None:
    of, at = OPERATIONS[operation]
    assert same(run(faults.Delay(FAULTY, at, of=of, seconds=0.02)), right)


@pytest.mark.parametrize("operation", BLOCKING)
def test_a_dropped_part_is_named(operation: str) -> None:
    of, at = OPERATIONS[operation]
    with pytest.raises(DeadlockError, match=rf"rank 1 waits in .*: its {of} was dropped by .*\(drop:1@{at},of={of}\)"):
        run(faults.Drop(FAULTY, at, of=of))


def test_a_dropped_message_leaves_its_receiver_waiting() -> None:
    with pytest.raises(DeadlockError, match="rank 2 waits in recv from rank 1 on 'world' at test_faults.py") as caught:
        run(faults.Drop(FAULTY, 1, of="send"))
    assert any("drop:1@1,of=send, at send on 'world'" in note for note in caught.value.__notes__)


def test_a_dropped_addition_is_missing(right: list[list[Any]]) -> None:
    found = run(faults.Drop(FAULTY, 1, of="window.add"))
    taken = [results[2] for results in found]
    assert [x.tolist() for x in taken] == [[1.0] * 4 if rank == 0 else [2.0] * 4 for rank in range(3)]
    assert not same(found, right)


@pytest.mark.parametrize("operation", ["backward", "started"])
def test_digests_find_corrupted_gradients(operation: str) -> None:
    of, at = OPERATIONS[operation]
    with pytest.raises(ReplicaMismatch, match="rank 1"):
        run(faults.Corrupt(FAULTY, at, of=of))


@pytest.mark.parametrize(("operation", "place"), [("recv", 1), ("window.get", 2), ("get", 3), ("broadcast", 4)])
def test_bits_of_one_result_are_inverted(operation: str, place: int, right: list[list[Any]]) -> None:
    of, at = OPERATIONS[operation]
    found = run(faults.Corrupt(FAULTY, at, of=of, bits=3))
    inverted = np.bitwise_count(found[FAULTY][place].view(np.uint8) ^ right[FAULTY][place].view(np.uint8))
    assert inverted.sum() == 3
    again = run(faults.Corrupt(FAULTY, at, of=of, bits=3))
    assert np.array_equal(again[FAULTY][place].view(np.uint8), found[FAULTY][place].view(np.uint8))
    other = run(faults.Corrupt(FAULTY, at, of=of, bits=3, seed=1))
    assert not np.array_equal(other[FAULTY][place].view(np.uint8), found[FAULTY][place].view(np.uint8))
    found[FAULTY][place] = right[FAULTY][place]
    assert same(found, right)


def test_a_corrupted_message_is_that_of_its_receiver(right: list[list[Any]]) -> None:
    found = run(faults.Corrupt(FAULTY, 1, of="send"))
    assert not np.array_equal(found[2][1], right[2][1])
    found[2][1] = right[2][1]
    assert same(found, right)


@pytest.mark.parametrize(("kind", "error"), [("drop", DeadlockError), ("corrupt", ReplicaMismatch)])
def test_what_changes_a_call_waits_for_one(kind: str, error: type[Exception]) -> None:
    """The first operation is a point, and the wait is no call that moves data."""
    with faults.injected(f"{kind}:1@1") as injection, pytest.raises(error):
        cc.run(every_call, RANKS)
    assert f"{kind}:1@1, at all_reduce on 'dp" in injection.happened[0]


@pytest.mark.parametrize("seed", range(12))
def test_every_number_of_an_operation_can_fail(seed: int) -> None:
    with faults.injected() as injection:
        cc.run(every_call, RANKS)
    most = min(counts[""] for counts in injection.counts.values())
    plan = faults.plan(seed, RANKS, most, kinds=("kill", "stop"))
    ((kind, rank),) = [(fault.kind, fault.rank) for fault in plan]
    with faults.injected(plan) as injection, pytest.raises((RankFailed, DeadlockError), match=f"rank {rank}") as caught:
        cc.run(every_call, RANKS)
    assert type(caught.value) is (RankFailed if kind == "kill" else DeadlockError)
    assert len(injection.happened) == 1 and injection.happened[0].startswith(repr(plan))


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_header_names_its_sender(seed: int) -> None:
    def program() -> None:
        with cc.Mesh(pp=-1):
            for _ in range(3):
                if cc.world().index == 0:
                    cc.send(ag.tensor(np.ones((2, 3))), "pp", 1)
                else:
                    cc.recv("pp", 0)

    # a header goes before each message, so that the third one is that of the second message
    with faults.injected(faults.Corrupt(0, at=3, of="send", seed=seed)):
        with pytest.raises(CollectiveMismatch, match="the message from rank 0 in which the shape was expected"):
            cc.run(program, 2)


def test_nothing_takes_the_place_of_what_was_dropped() -> None:
    """Otherwise the second message, or sum, of the faulty rank would be taken for its first one."""

    def program(call: str) -> None:
        group, pending = cc.world(), []
        for step in range(2):
            if call == "send" and group.index == 1:
                group.send(np.full(2, float(step)), 0)
            elif call == "send" and group.index == 0:
                assert group.recv(np.empty(2), 1)[0] == step
            elif call == "started":
                pending.append(group.start(Request("all_reduce", np.full(2, float(step)))))
        for step, each in enumerate(pending):
            assert each.wait()[0] == step * group.size

    for call, says in (("send", "rank 0 waits in recv from rank 1"), ("started", "its all_reduce was dropped by")):
        with faults.injected("drop:1@1"), pytest.raises(DeadlockError, match=says):
            cc.run(program, 3, call)


# -- what a death is ---------------------------------------------------------------------------------------------------


def test_survivors_continue_without_a_killed_rank() -> None:
    def program() -> int:
        group = cc.world()
        try:
            for _ in range(3):
                group.barrier()
        except RankFailed as error:
            assert "rank 2 of 4 was killed by an injected fault: kill:2@2" in str(error)
            group = cc.World.current().survivors()
        return int(group.all_reduce(np.ones(1))[0])

    with faults.injected("kill:2@2"), cc.World("threads", 4, policy="raise") as world:
        assert world.run(program) == [3, 3, None, 3]
        assert list(world.failed) == [2] and "was killed by an injected fault" in world.failed[2]


def test_a_program_cannot_keep_its_death() -> None:
    reached = []

    def program() -> str:
        group = cc.world()
        for _ in range(3):
            try:
                group.barrier()
                reached.append(group.index)
            except BaseException as error:
                if group.index != 1:
                    raise
                assert type(error).__name__ == "Death"
        return "ends"

    with faults.injected("kill:1@2"), pytest.raises(RankFailed, match="rank 1 of 2 was killed"):
        cc.run(program, 2)
    assert sorted(reached) == [0, 1]


def test_a_killed_process_of_one_rank_raises_where_it_is_tested() -> None:
    with pytest.raises(RankFailed, match="rank 0 of 1 was killed by an injected fault: kill:0@2,of=part"):
        with faults.injected("kill:0@2,of=part"):
            for _ in range(3):
                faults.point("part")


# -- what counts -------------------------------------------------------------------------------------------------------


def test_the_number_of_operations_does_not_depend_on_checks() -> None:
    found = []
    for mode in ("off", "first", "always", "ranks"):

        def program(mode: Any = mode) -> None:
            cc.check(mode)
            every_call()

        with faults.injected() as injection:
            cc.run(program, RANKS)
        cc.check("first")
        found.append({rank: {name: n for name, n in counts.items() if name not in ("agree", "exchange")}
                      for rank, counts in injection.counts.items()})  # fmt: skip
    assert found[0] == found[1] == found[2] == found[3]
    assert found[0][0] == found[0][1] == found[0][2] and found[0][0][""] == sum(found[0][0].values()) / 2


def test_algorithms_and_messages_inside_a_call_do_not_count() -> None:
    def program() -> None:
        with cc.Mesh(dp=-1, algorithm="ring"):
            cc.all_reduce(np.ones(5), "dp")

    with faults.injected() as injection:
        cc.run(program, RANKS)
    assert {name for counts in injection.counts.values() for name in counts} - {"agree", "exchange"} == {
        "all_reduce", ""}  # fmt: skip


def test_counts_go_on_in_the_next_run_and_each_fault_happens_once() -> None:
    def program() -> int:
        for _ in range(4):
            cc.world().barrier()
        return cc.world().index

    with faults.injected("kill:1@6") as injection:
        assert cc.run(program, 2) == [0, 1]
        with pytest.raises(RankFailed, match="operation 6 of rank 1"):
            cc.run(program, 2)
        assert cc.run(program, 2) == [0, 1]
    assert len(injection.happened) == 1


def test_a_rank_injects_into_itself() -> None:
    def program() -> int:
        group = cc.world()
        group.barrier()
        with faults.injected("corrupt:1@1; kill:0@100") if group.index == 1 else faults.injected():
            return len({*group.all_reduce(np.ones(3)).tolist()})

    assert cc.run(program, 2) == [1, 2]


def test_points_of_other_threads_count_by_name() -> None:
    def program(with_rank: bool) -> None:
        rank = cc.world().index

        def write() -> None:
            for _ in range(3):
                faults.point("write", rank if with_rank else None)

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        cc.world().barrier()

    with faults.injected() as injection:
        cc.run(program, 2, False)
        assert injection.counts[1] == {"barrier": 1, "": 1}
        cc.run(program, 2, True)
        assert injection.counts[1] == {"barrier": 2, "": 2, "write": 3}


@pytest.mark.parametrize(
    ("plan", "error", "says"),
    [("kill:1@1,of=write", RankFailed, "rank 1 of 2 was killed .* at write"),
     ("stop:1@1,of=write", DeadlockError, "rank 1 waits in .* it was stopped .*stop:1@1,of=write")],
)  # fmt: skip
def test_a_fault_in_a_background_thread_is_that_of_its_rank(plan: str, error: type[Exception], says: str) -> None:
    def program() -> None:
        rank, ended = cc.world().index, []

        def write() -> None:
            try:
                faults.point("write", rank)
            except BaseException as death:
                ended.append(death)

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        assert len(ended) == (rank == 1 and error is RankFailed)
        cc.world().barrier()

    with faults.injected(plan), pytest.raises(error, match=says):
        cc.run(program, 2)


def test_a_timeline_sees_the_calls_inside_and_outside() -> None:
    def program() -> int:
        with cc.timeline() as outside:
            with faults.injected():
                cc.world().all_reduce(np.ones(3))
        with faults.injected() as injection, cc.timeline():
            cc.world().all_reduce(np.ones(3))
        assert injection.counts[cc.world().index]["all_reduce"] == 1
        assert outside.report is not None
        return sum(call.call == "all_reduce" for record in outside.report.records for call in record.calls)

    assert cc.run(program, 2)[0] == 2


def test_a_dry_world_has_no_faults() -> None:
    with pytest.warns(RuntimeWarning, match="rank 0 made 0 operations"), faults.injected("kill:0@1"):
        with cc.World("dry", 4):
            cc.world().barrier()


@pytest.mark.parametrize("dtype", ["?", "i1", "f4", "f8", "c16"])
def test_inverted_bits(dtype: str) -> None:
    x = np.zeros(5, dtype)
    invert_bits(x, 4, "seed")
    bits = np.unpackbits(x.view(np.uint8))
    assert bits.sum() == 4 and (dtype != "?" or x.view(np.uint8).max() == 1)
    invert_bits(x, 4, "seed")
    assert not x.any()
    invert_bits(x, 10_000, "all")
    assert np.unpackbits(x.view(np.uint8)).sum() == (5 if dtype == "?" else 8 * x.nbytes)


# -- reports -----------------------------------------------------------------------------------------------------------


def test_a_fault_that_was_not_reached_is_reported() -> None:
    def program() -> None:
        for _ in range(5):
            cc.world().barrier()

    with pytest.warns(RuntimeWarning) as told:
        with faults.injected("kill:1@6; drop:0@5,of=all_reduce; corrupt:0@1; delay:1@1"):
            cc.run(program, 2)
    assert [str(each.message) for each in told] == [
        "the fault kill:1@6 did not happen: rank 1 made 5 operations",
        "the fault drop:0@5,of=all_reduce did not happen: rank 0 made 5 operations, 0 of them of all_reduce",
        "the fault corrupt:0@1 did not happen: rank 0 made 5 operations, and no call that corrupt can change from the "
        "one on at which it was due",
    ]
    assert all(each.filename == __file__ for each in told)


@pytest.mark.filterwarnings("error")
def test_a_rank_that_a_failure_has_ended_owes_no_fault() -> None:
    with faults.injected("kill:1@2; delay:0@50; stop:1@3"), pytest.raises(RankFailed):
        cc.run(every_call, RANKS)


def test_refusals() -> None:
    with pytest.raises(MeshError, match="rank=3 was given; needed: a rank from 0 to 2 of a world of 3 ranks"):
        run("kill:3@1")
    with faults.injected(), pytest.raises(MeshError, match="a block of this thread is open; needed: one block"):
        with faults.injected():
            pass


@pytest.mark.parametrize("start, happens", [(None, True), ("1", True), ("2", False), ("3", True)])
def test_a_fault_of_a_start_of_the_job(start: str | None, happens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan in the environment used to fail each start of a job at the same operation, so it never came to an end."""
    monkeypatch.delenv("RINGTAPE_START", raising=False)
    if start is not None:
        monkeypatch.setenv("RINGTAPE_START", start)

    def program() -> float:
        return float(cc.world().all_reduce(np.ones(1))[0])

    with faults.injected("corrupt:1@1,start=1; corrupt:1@1,start=3") as injection:
        cc.run(program, ranks=2)
    assert (len(injection.happened) == 1) == happens


def test_starts_that_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("kill:1@1; kill:1@1,start=2", "kill:1@1,start=2; stop:1@1,start=2"):
        with pytest.raises(OptionError, match=r"are at one operation; .*\n  fix: "):
            faults.Plan(text)
    with pytest.raises(OptionError, match=r"Kill\(start=-1\)"):
        faults.Kill(1, 1, start=-1)
    plan = faults.Plan("kill:1@1,start=1; kill:1@1,start=2; delay:0@1")
    assert faults.Plan(repr(plan)) == plan
    monkeypatch.setenv("RINGTAPE_START", "0")
    with pytest.raises(OptionError, match="RINGTAPE_START='0': needed a whole number from 1 to"):
        with faults.injected(plan):
            pass
