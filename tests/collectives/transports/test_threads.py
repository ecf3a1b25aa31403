"""The transport of threads beside what all transports share: mismatches, deadlocks, ranks that fail; sequences."""

from __future__ import annotations

import inspect
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autograd.errors import CollectiveMismatch, DeadlockError, MeshError, RankFailed
from collectives.transports.protocol import Request
from collectives.world import in_order, run, world

from . import conformance

pytestmark = pytest.mark.timeout(30)

SIZES = [1, 2, 3, 4, 5, 8]


def test_a_meeting_keeps_no_reference_to_a_result():
    def program():
        pending = world().start(Request("all_reduce", np.ones(1)))
        held = weakref.ref(pending.wait())
        del pending
        gone = held() is None
        world().barrier()
        late = world().start(Request("all_reduce", np.ones(1)))
        if world().rank == 0:
            held = weakref.ref(late.wait())
            del late  # while the other rank still has its pending
            gone = gone and held() is None
        world().barrier()
        return gone

    assert run(program, 2) == [True, True]


def test_start_does_not_block_and_test_tells_when():
    def program():
        group = world()
        if group.rank == 0:
            pending = group.start(Request("all_gather", np.ones(1), counts=[1, 1]))
            early = pending.test()
            group.send(np.empty(0), 1)
            group.recv(np.empty(0), 1)
            return early, pending.test(), pending.wait().tolist()
        group.recv(np.empty(0), 0)
        x = group.all_gather(np.zeros(1), [1, 1])
        group.send(np.empty(0), 0)
        return x.tolist()

    assert run(program, 2) == [(False, True, [1, 0]), [1, 0]]


STEP = st.tuples(
    st.one_of(st.integers(0, 60), st.sampled_from(["agree", "ring"])),
    st.sampled_from("fdq?D"),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from(["world", "even or odd"]),
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SIZES), st.lists(STEP, min_size=1, max_size=12), st.integers(0, 2**32 - 1))
def test_random_sequences(size, steps, seed):
    """Any sequence of calls, some started and waited for much later in an order of each rank's own."""

    def program():
        everyone = world()
        group = everyone.subgroup(range(everyone.rank % 2, size, 2), "even or odd")
        rng = np.random.default_rng((seed, everyone.rank))
        open_ones = []
        for key, (call, dtype, counts, blocking, where) in enumerate(steps):
            on = everyone if where == "world" else group
            if call == "agree":
                on.agree(f"step {key}")
                continue
            if call == "ring":
                on.send(conformance.values(dtype, key, on.rank), (on.rank + 1) % on.size)
                left = (on.rank - 1) % on.size
                case = conformance.Case(
                    lambda key=key, dtype=dtype, left=left: Request("recv", out=np.zeros(key, dtype), peer=left),
                    conformance.values(dtype, key, left),
                )
            else:
                known = list(conformance.cases(on.rank, on.size, dtype, conformance.all_counts(on.size)[counts], key))
                case = known[call % len(known)]
            if blocking:
                conformance.blocking(on, case)
            else:
                open_ones.append((on, case, *conformance.started(on, case)))
        for nth in rng.permutation(len(open_ones)):
            conformance.finished(*open_ones[nth])

    run(program, size)


def test_sums_are_bitwise_equal_on_all_ranks_and_in_order():
    parts = [np.array([x], "float32") for x in (1e8, 1.0, -1e8, 1.0)]
    for _ in range(20):
        results = run(lambda: world().all_reduce(parts[world().rank]), 4)
        assert [x[0] for x in results] == [np.float32(1.0)] * 4


# -- mismatches ----------------------------------------------------------------------------------------------------
def everyones_error(program, size, kind):
    """Run a program that raises on all ranks; the texts that the ranks got."""

    def caught():
        with pytest.raises(kind) as error:
            program(world())
        return str(error.value)

    return run(caught, size)


def line_of(words):
    """Where the calling test has these words, as errors show it: file:line of their first line."""
    test = sys._getframe(1).f_code
    lines, start = inspect.getsourcelines(test)
    nth = next(nth for nth, line in enumerate(lines) if words in line and "line_of" not in line)
    return f"{Path(test.co_filename).name}:{start + nth}"


def other_on_rank_1(usual, unusual):
    def program(group):
        call, *args = unusual if group.rank == 1 else usual
        return getattr(group, call)(*args)

    return program


ONES = np.ones(4)
MISMATCHES = {
    "name": (("all_reduce", ONES), ("barrier",), ["all_reduce(dtype float64, count 4)", "barrier()", "same order"]),
    "count": (("all_reduce", ONES), ("all_reduce", ONES[:3]), ["count 4", "count 3", "the same count on all"]),
    "dtype": (("all_reduce", ONES), ("all_reduce", ONES.astype("f4")), ["float32", "the same dtype on all"]),
    "dtype and count": (("all_reduce", ONES), ("all_reduce", np.ones(5, "f4")), ["the same dtype and count on all"]),
    "root": (("broadcast", np.ones(4), 0), ("broadcast", np.ones(4), 1), ["root 0", "root 1", "the same root on all"]),
    "root of reduce": (("reduce", ONES, 2), ("reduce", ONES, 1), ["root 2", "root 1"]),
    "counts": (
        ("reduce_scatter", ONES, [2, 1, 1]),
        ("reduce_scatter", ONES, [1, 2, 1]),
        ["counts (2, 1, 1)", "counts (1, 2, 1)", "the same counts on all"],
    ),
    "scatter dtype": (
        ("scatter", np.ones(3), [1, 1, 1], 0, "f8"),
        ("scatter", None, [1, 1, 1], 0, "f4"),
        ["float64", "float32", "the same dtype"],
    ),
    "pairs": (
        ("all_to_all", np.ones(3), [1, 1, 1], [1, 1, 1]),
        ("all_to_all", np.ones(4), [1, 1, 2], [1, 1, 1]),
        ["rank 1 sends 2 elements to rank 2, which receives 1", "needed"],
    ),
    "agree": (("agree", "matmul at a.py:3"), ("agree", "matmul at a.py:4"), ["a.py:3", "a.py:4", "the same call"]),
    "agree and a call": (("agree", "matmul"), ("barrier",), ["matmul", "barrier()"]),
}


@pytest.mark.parametrize("which", MISMATCHES)
def test_mismatch_is_raised_on_every_rank(which):
    usual, unusual, words = MISMATCHES[which]
    texts = everyones_error(other_on_rank_1(usual, unusual), 3, CollectiveMismatch)
    assert len(set(texts)) == 1
    for word in ["#1 on 'world'", *words]:
        assert word in texts[0]
    if which != "pairs":
        assert "ranks 0, 2: " in texts[0]
        assert "rank 1: " in texts[0]


def test_mismatch_text_and_what_follows():
    def program():
        group = world()
        pending = group.start(Request("all_reduce", np.ones(2 if group.rank == 2 else 3)))
        with pytest.raises(CollectiveMismatch) as error:
            pending.wait()
        with pytest.raises(CollectiveMismatch):
            pending.wait()
        return str(error.value), group.all_reduce(np.ones(1))[0]

    text = (
        "call #1 on 'world' is not the same on all ranks\n"
        f"  ranks 0, 1: all_reduce(dtype float64, count 3)\n    at {line_of('start(')}\n"
        f"  rank 2: all_reduce(dtype float64, count 2)\n    at {line_of('start(')}\n"
        "  needed: the same count on all of ranks 0, 1, 2"
    )
    assert run(program, 3) == [(text, 3)] * 3


def test_run_raises_the_mismatch_of_the_lowest_rank():
    program = other_on_rank_1(("barrier",), ("exchange", b""))
    for _ in range(5):
        with pytest.raises(CollectiveMismatch) as error:
            run(lambda: program(world()), 3)
        assert error.value.__notes__ == ["raised on ranks 0-2 of 3"]


@pytest.mark.parametrize("buffer", [np.empty(3), np.empty(2, "f4")])
def test_recv_into_another_buffer(buffer):
    def program():
        group = world()
        if group.rank == 1:
            group.send(np.ones(2), 0)
            return ""
        with pytest.raises(CollectiveMismatch) as error:
            group.recv(buffer, 1)
        return str(error.value)

    text = run(program, 2)[0]
    assert f"rank 0 has a buffer of {buffer.size} {buffer.dtype}, rank 1 sent 2 float64" in text


# -- deadlocks -----------------------------------------------------------------------------------------------------
def test_crossed_receives():
    def program(group):
        group.recv(np.empty(1), 1 - group.rank)

    at = f"at {line_of('group.recv(')}"
    waits = f"rank 0 waits in recv from rank 1 on 'world' {at}\n  rank 1 waits in recv from rank 0 on 'world' {at}"
    fix = "one rank sends before it receives, or permute, with which all ranks send and receive at once"
    text = f"deadlock: no rank can continue\n  {waits}\n  fix: {fix}"
    assert everyones_error(program, 2, DeadlockError) == [text] * 2


def test_two_subgroups_in_different_order():
    def program(group):
        a, b = group.subgroup([0, 1], "a"), group.subgroup([1, 0], "b")
        for each in (a, b) if group.rank == 0 else (b, a):
            each.all_reduce(np.ones(1))

    at = f"at {line_of('each.all_reduce(')}"
    waits = [f"rank {r} waits in all_reduce #1 on '{'ab'[r]}' for rank {1 - r} {at}" for r in range(2)]
    assert everyones_error(program, 2, DeadlockError) == ["\n  ".join(["deadlock: no rank can continue", *waits])] * 2


def test_the_report_names_each_rank():
    def program():
        group = world()
        pair = group.subgroup([0, 2], "tp") if group.rank != 1 else None
        for _ in range(2):
            group.barrier()
        if group.rank == 0:
            group.all_reduce(np.ones(1))
        if group.rank == 2:
            pair.recv(np.ones(1), 0)

    with pytest.raises(DeadlockError) as error:
        run(program, 3)
    assert str(error.value) == (
        "deadlock: no rank can continue\n"
        f"  rank 0 waits in all_reduce #3 on 'world' for ranks 1, 2 at {line_of('group.all_reduce(')}\n"
        f"  rank 1 has finished\n  rank 2 waits in recv from rank 0 on 'tp' at {line_of('pair.recv(')}"
    )
    assert error.value.__notes__ == ["raised on ranks 0, 2 of 3"]


@pytest.mark.parametrize("late", [False, True])
def test_a_rank_that_has_finished(late):
    def program():
        group = world()
        if group.rank == 3:
            time.sleep(0.05 * late)
            return
        time.sleep(0.05 * (not late))
        group.exchange(b"")

    waits = r"exchange #1 on 'world' for rank 3 at \S+:\d+\n(.|\n)*rank 3 has finished"
    with pytest.raises(DeadlockError, match=waits):
        run(program, 4)


def test_a_missing_rank_that_waits_elsewhere_and_pendings():
    def program(group):
        if group.rank == 2:
            group.recv(np.empty(0), 0)
        group.start(Request("barrier")).wait()

    for text in everyones_error(program, 3, DeadlockError):
        assert f"rank 1 waits in barrier #1 on 'world' for rank 2 at {line_of('.wait()')}\n  rank 2 waits in" in text
        assert f"rank 2 waits in recv from rank 0 on 'world' at {line_of('group.recv(')}" in text


@pytest.mark.parametrize("size", [1, 2])
def test_a_receive_from_oneself_that_was_never_sent(size):
    texts = everyones_error(lambda group: group.recv(np.empty(0), group.rank), size, DeadlockError)
    assert "rank 0 waits in recv from rank 0 on 'world'" in texts[0]


def test_a_deadlock_that_was_caught_leaves_a_world_that_works():
    def program():
        group = world()
        pending = group.start(Request("recv", out=np.empty(1), peer=1 - group.rank))
        for _ in range(2):
            with pytest.raises(DeadlockError):
                pending.wait()
            group.barrier()
        group.send(np.full(1, 5.0 + group.rank), 1 - group.rank)
        return pending.wait()[0]

    assert run(program, 2) == [6, 5]


def test_no_false_alarm_under_load():
    """Ranks that wait for the one rank which computes are no deadlock, however they come to block."""

    def program():
        group = world()
        for nth in range(300):
            left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
            if nth % group.size == group.rank:
                time.sleep(0.0002)
            pending = group.start(Request("all_reduce", np.ones(1)))
            group.send(np.full(1, nth), right)
            assert group.recv(np.empty(1, int), left)[0] == nth
            assert pending.wait()[0] == group.size

    run(program, 8)


# -- ranks that fail -----------------------------------------------------------------------------------------------
def test_a_rank_that_raises_ends_all():
    seen = {}
    boom = ValueError("boom")

    def program():
        group = world()
        if group.rank == 2:
            raise boom
        try:
            if group.rank == 3:
                time.sleep(0.05)  # comes to block after the failure
            group.barrier()
        except RankFailed as error:
            seen[group.rank] = str(error)
            raise

    with pytest.raises(ValueError, match="boom") as error:
        run(program, 4)
    assert error.value is boom
    assert boom.__notes__ == ["raised on rank 2 of 4"]
    assert sorted(seen) == [0, 1, 3]
    for rank, text in seen.items():
        assert "rank 2 of 4 raised ValueError: boom" in text
        assert "test_threads.py:" in text
        assert f"rank {rank} waited in barrier #1 on 'world' for rank" in text


def test_what_a_failed_rank_had_sent_still_arrives():
    def program():
        group = world()
        if group.rank == 0:
            group.send(np.ones(1), 1)
            raise KeyError("gone")
        time.sleep(0.05)
        assert group.recv(np.empty(1), 0)[0] == 1
        pending = group.start(Request("recv", out=np.empty(1), peer=0))
        while not pending.test():  # true at once: the wait would raise
            time.sleep(0.001)
        with pytest.raises(RankFailed, match="gone"):
            pending.wait()
        came_to_its_end.append(True)

    came_to_its_end = []
    with pytest.raises(KeyError):
        run(program, 2)
    assert came_to_its_end


def test_the_first_failure_wins_over_what_it_caused():
    def program():
        group = world()
        if group.rank == 1:
            raise ValueError("cause")
        try:
            group.barrier()
        except RankFailed:
            raise RuntimeError("consequence") from None

    with pytest.raises(ValueError, match="cause"):
        run(program, 3)


@pytest.mark.parametrize("code", [0, 3])
def test_a_rank_that_exits_early(code):
    def program():
        if world().rank == 1:
            sys.exit(code)
        world().barrier()

    with pytest.raises(RankFailed, match=f"rank 1 of 2 exited early, with code {code}"):
        run(program, 2)


def test_a_rank_that_computes_on_does_not_hold_up_the_failure(monkeypatch):
    monkeypatch.setattr(sys.modules["collectives.transports.threads.job"], "_GRACE_S", 0.1)
    go_on = threading.Event()
    left_behind = []

    def program():
        if world().rank == 0:
            left_behind.append(threading.current_thread())
            go_on.wait(20)
        raise ValueError("boom")

    before = time.monotonic()
    with pytest.raises(ValueError, match="boom") as error:
        run(program, 2)
    assert error.value.__notes__ == ["raised on rank 1 of 2"]
    assert time.monotonic() - before < 5
    go_on.set()
    left_behind[0].join()  # it ends without a complaint of its own


def test_an_interrupt_of_the_main_thread_ends_the_ranks(monkeypatch):
    ended = threading.Event()

    def program():
        if world().rank == 1:
            go_on.wait(20)
        with pytest.raises(RankFailed, match="the main thread raised KeyboardInterrupt"):
            world().barrier()
        ended.set()

    def interrupted(threads, local):
        raise KeyboardInterrupt

    go_on = threading.Event()
    monkeypatch.setattr(sys.modules["collectives.transports.threads.job"], "_join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(program, 2)
    go_on.set()
    assert ended.wait(20)


# -- worlds --------------------------------------------------------------------------------------------------------
def test_world_is_this_threads():
    alone = world()
    assert alone is world()
    assert (alone.rank, alone.size, alone.ranks, alone.name) == (0, 1, (0,), "world")

    def program(*args):
        inner = run(lambda: (world().rank, world().size), 2)
        assert world() is world()
        return world().rank, world().size, inner, args

    assert run(program, 3, "a", 1) == [(rank, 3, [(0, 2), (1, 2)], ("a", 1)) for rank in range(3)]
    assert world() is alone


@pytest.mark.parametrize("ranks", [0, -1])
def test_no_ranks(ranks):
    with pytest.raises(MeshError):
        run(world, ranks)


def test_in_order(capsys):
    run(lambda: in_order(f"hello\nfrom {world().rank}"), 3)
    in_order("alone")
    expected = [f"[rank {rank}] {text}" for rank in range(3) for text in ("hello", f"from {rank}")]
    assert capsys.readouterr().out.splitlines() == [*expected, "[rank 0] alone"]
