"""What ranks are told under ``ranks`` mode beyond the mismatch programs: copies, call sites, endless waits."""

from __future__ import annotations

import math
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import Tensor
from collectives import I, R, V
from collectives.checks import modes, sanitizer
from collectives.job.verdict import RankState, WaitState, deadlocked, verdict_text

from ...on_mesh import on_mesh
from ..launch import Outcome, launch

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("ranks_mode")]


def told(kind: type, body: Callable[[Any], Any], **sizes: int) -> list[str]:
    """The texts of the errors that the ranks got; "" for a rank that got none."""

    def caught(mesh: Any) -> str:
        try:
            body(mesh)
        except kind as error:
            return str(error)
        return ""

    return on_mesh(caught, **sizes)


def line(offset: int = 0) -> str:
    """The caller's line, as errors show it."""
    return f"test_sanitizer.py:{sys._getframe(1).f_lineno + offset}"


# -- copies --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("odd", range(3))
def test_a_constant_that_differs(odd: int) -> None:
    place = []

    def body(mesh: Any) -> None:
        place.append(line(1))
        ag.constant(np.ones(3) + (mesh.ranks.rank == odd) * 1e-15)
        cc.all_reduce(ag.tensor([1.0]), "a")

    for text in told(cc.ReplicaMismatch, body, a=3):
        assert f"the constants of rank {odd} differ" in text
        assert f"constant at {place[0]}" in text
        assert "constant(x: f64[3] {a: C})" in text


@pytest.mark.parametrize("label", [R, I])
def test_a_declared_tensor_that_differs(label: Any) -> None:
    def body(mesh: Any) -> None:
        ag.tensor(np.full(2, mesh.ranks.rank // 2), {"a": label}, name="mask")
        cc.all_reduce(ag.tensor([1.0]), "a")

    for text in told(cc.ReplicaMismatch, body, a=3):
        assert "the copies of rank 2 differ from those of ranks 0, 1" in text
        assert "tensor(mask: i64[2]" in text


def test_an_operand_that_differs_along_another_axis_than_the_calls() -> None:
    """Found at the next call along that axis, where the ranks that differ meet."""

    def body(mesh: Any) -> str:
        x = Tensor(np.ones(2) * (1 + mesh.ranks.rank // 2), mesh.grid.layout([I, V]))  # a: I, b: V
        cc.all_reduce(x, "b")
        try:
            cc.all_reduce(ag.tensor([1.0]), "a")
        except cc.ReplicaMismatch as error:
            return str(error)
        return ""

    for text in on_mesh(body, a=2, b=2):
        assert "all_reduce(x: f64[2] {a: I, b: V})" in text
        assert "along 'a@" in text


def test_copies_with_other_shapes_dtypes_or_signs_of_zero_differ() -> None:
    zeros = np.zeros(4)
    arrays = [zeros, zeros.reshape(2, 2), zeros.astype("f4"), -zeros, np.zeros(4, "i8")]
    assert len({sanitizer.digest_of(x) for x in arrays}) == len(arrays)
    turned = np.arange(6.0).reshape(2, 3).T
    assert sanitizer.digest_of(turned) == sanitizer.digest_of(turned.copy("C"))
    assert sanitizer.digest_of(np.float64(2.0)) == sanitizer.digest_of(np.array(2.0))
    sanitizer.digest_of(np.zeros((0, 3)))


def test_a_line_that_ranks_pass_a_different_number_of_times_is_no_mismatch() -> None:
    def body(mesh: Any) -> float:
        for turn in range(1 + mesh.ranks.rank):
            ag.constant(np.full(2, float(turn)))
        if mesh.ranks.rank == 1:
            ag.constant([5.0])
        return float(cc.all_reduce(ag.tensor(1.0), "a"))

    assert on_mesh(body, a=3) == [3.0] * 3


def test_what_goes_in_without_calls_along_the_axis_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer, "MOST", 20)

    def body(mesh: Any) -> int:
        for _ in range(sanitizer.MOST + 10):
            ag.constant(1.0)
        return len(mesh.axis("a").group.checks.copies)

    assert on_mesh(body, a=2) == [sanitizer.MOST] * 2


# -- call sites ----------------------------------------------------------------------------------------------------
def two_lines(mesh: Any) -> None:
    x = ag.tensor(np.ones(2))
    if mesh.ranks.rank == 0:
        cc.all_reduce(x, "a")
    else:
        cc.all_reduce(x, "a")


def test_the_same_call_at_two_lines() -> None:
    start = two_lines.__code__.co_firstlineno
    for text in told(cc.CollectiveMismatch, two_lines, a=3):
        assert "rank 0 did not make the same call at the line of the other ranks" in text
        assert f"at test_sanitizer.py:{start + 3}" in text
        assert f"at test_sanitizer.py:{start + 5}" in text
        assert "sites=False" in text
    cc.check("ranks", sites=False)
    assert told(cc.CollectiveMismatch, two_lines, a=3) == [""] * 3


def sync(x: Any) -> Any:
    return cc.all_reduce(x, "a")


def through_a_helper(mesh: Any) -> None:
    first, second = ag.tensor(np.ones(2)), ag.tensor(np.full(2, 7.0))
    if mesh.ranks.rank == 0:
        sync(first)
        sync(second)
    else:
        sync(second)
        sync(first)


def test_two_quantities_that_are_exchanged_by_one_helper() -> None:
    start, inner = through_a_helper.__code__.co_firstlineno, sync.__code__.co_firstlineno + 1
    for text in told(cc.CollectiveMismatch, through_a_helper, a=3):
        assert "rank 0 did not make the same call at the line of the other ranks" in text
        for line_called in (start + 3, start + 6):
            assert f"at test_sanitizer.py:{inner}, called from test_sanitizer.py:{line_called}, " in text
        assert ".py:" in text and "threading.py" not in text and "_pytest" not in text and "world.py" not in text
    cc.check("ranks", sites=False)
    assert told(cc.CollectiveMismatch, through_a_helper, a=3) == [""] * 3
    cc.check("first")
    assert told(cc.CollectiveMismatch, through_a_helper, a=3) == [""] * 3


def test_roots_may_stand_at_a_line_of_their_own() -> None:
    def body(mesh: Any) -> list[float]:
        if mesh.ranks.rank == 0:
            return cc.broadcast(ag.tensor([7.0]), "a").numpy().tolist()
        return cc.broadcast(None, "a").numpy().tolist()

    assert on_mesh(body, a=3) == [[7.0]] * 3


def test_a_mismatch_in_a_backward_sweep_names_the_line_of_backward() -> None:
    def body(mesh: Any) -> None:
        w = ag.Parameter(np.ones(2))
        with ag.Tape() as tape:
            loss = cc.cast((cc.cast(w, "a", to=R) ** 2).sum(), "a", to=I)
        if mesh.ranks.rank == 1:
            cc.all_reduce(ag.tensor([1.0]), "a")
        tape.backward(loss)

    start = body.__code__.co_firstlineno
    for text in told(cc.CollectiveMismatch, body, a=2):
        assert f"start of backward (axis='a')\n    at test_sanitizer.py:{start + 6}" in text
        assert f"not recorded\n    at test_sanitizer.py:{start + 5}" in text


@pytest.mark.parametrize("mode", ["first", "always"])
def test_sites_are_told_in_the_other_modes_too(mode: str) -> None:
    cc.check(mode)

    def body(mesh: Any) -> None:
        cc.all_reduce(ag.tensor(np.ones(2 + mesh.ranks.rank)), "a")

    for text in told(cc.CollectiveMismatch, body, a=2):
        assert text.count(f"at test_sanitizer.py:{body.__code__.co_firstlineno + 1}") == 2
    assert told(cc.CollectiveMismatch, two_lines, a=3) == [""] * 3


def test_off_compares_nothing_but_what_the_transport_must() -> None:
    cc.check("off")

    def body(mesh: Any) -> None:
        cc.all_reduce(ag.tensor(np.ones((2, 3))), "a") if mesh.ranks.rank else cc.all_reduce(ag.tensor(np.ones(6)), "a")

    assert told(cc.CollectiveMismatch, body, a=2) == [""] * 2


def test_a_rank_in_another_mode_compares_what_both_know() -> None:
    full = sanitizer.Statement("f(x)", "{a: V}", "a.py:1", 3, (), True, True)
    assert sanitizer.compare("g", [0, 1], [full, sanitizer.Statement("f(x)")]) is None
    assert isinstance(sanitizer.compare("g", [0, 1], [full, sanitizer.Statement("g(x)")]), cc.CollectiveMismatch)
    other = sanitizer.Statement.decode(full._replace(number=4).encode())
    assert "as call #4" in str(sanitizer.compare("g", [0, 1], [full, other]))


# -- waits without an end --------------------------------------------------------------------------------------------
def test_a_rank_that_computes_for_ever_on_threads() -> None:
    cc.check("ranks", timeout_s=0.2)
    go_on = threading.Event()

    def body(mesh: Any) -> str:
        if mesh.ranks.rank == 1:
            go_on.wait(20)
            return ""
        try:
            cc.all_reduce(ag.tensor([1.0]), "a")
        except cc.DeadlockError as error:
            go_on.set()
            return str(error)
        return "nothing"

    def program() -> str:
        mesh = cc.Mesh(a=3)
        mesh.__enter__()  # its end would compare again, and rank 1 has not made the first call
        return body(mesh)

    start = body.__code__.co_firstlineno
    for text in cc.run(program, 3)[::2]:
        assert text.startswith("a rank has waited for 0.2 s (timeout_s= of cc.check)\n  rank 0 ")
        assert f"rank 1 computes at test_sanitizer.py:{start + 2}" in text or "rank 1 computes at threading.py:" in text
        for rank in (0, 2):
            assert re.search(rf"rank {rank} waits in all_reduce #1 on 'a@0', which is all_reduce\(axis='a' .*, for "
                             rf"rank 1 at test_sanitizer.py:{start + 5}", text)  # fmt: skip


def test_limits_of_time() -> None:
    cc.check("first")
    assert modes.time_limit_s() == modes._environment_s
    cc.check("ranks", timeout_s=7)
    assert modes.time_limit_s() == 7
    for wrong in (0, -1.0):
        with pytest.raises(ValueError, match="positive"):
            cc.check("ranks", timeout_s=wrong)


def answer(waits: list[WaitState], calls: dict[str, int], **more: Any) -> RankState:
    return RankState(waits, 0.0, None, "computes at a.py:1", 0.0, calls, {}, {})._replace(**more)


def in_call(key: str, number: int, ranks: list[int]) -> WaitState:
    return WaitState(1, key, "all_reduce", number, None, f"all_reduce #{number} on '{key}'", "a.py:5", ranks, 1.0, 0)


def test_who_is_deadlocked() -> None:
    on_a, on_b = in_call("a", 2, [0, 1, 2]), in_call("b", 1, [0, 1])
    crossed = {0: answer([on_a], {"a": 2}), 1: answer([on_b], {"a": 1, "b": 1}), 2: answer([on_a], {"a": 2})}
    assert deadlocked(crossed, crossed) == {0, 1, 2}
    computes = {**crossed, 1: answer([], {"a": 1})}
    assert deadlocked(computes, computes) == set()  # it may still come
    assert deadlocked(computes, crossed) == deadlocked(crossed, computes) == set()  # not in the same wait all the time
    moves = {**crossed, 1: answer([in_call("b", 2, [0, 1])], {"a": 1, "b": 2})}
    assert deadlocked(crossed, moves) == set()
    arrived = {**crossed, 1: answer([on_a], {"a": 2})}  # all have come: the call is under way
    assert deadlocked(arrived, arrived) == set()
    left = {**computes, 1: answer([], {"a": 1}, left="exited early")}
    assert deadlocked(left, left) == set()  # its departure ends their waits
    half = {**crossed, 1: answer([on_b], {"a": 1, "b": 1}, patience_s=math.inf)}  # another thread of it goes on
    assert deadlocked(half, half) == set()
    watched = {**crossed, 1: crossed[1]._replace(patience_s=10.0)}  # a progress bar's thread may not save it for long
    assert deadlocked(watched, watched) == set()
    late = {**crossed, 1: answer([on_b._replace(lasts_s=11.0)], {"a": 1, "b": 1}, patience_s=10.0)}
    assert deadlocked(late, late) == {0, 1, 2}
    recv = WaitState(1, "a", "recv", 1, 1, "recv #1 on 'a' from rank 1", "a.py:7", [0, 1], 1.0, 0)
    both = {0: answer([recv], {}), 1: answer([recv._replace(peer=0)], {})}
    assert deadlocked(both, both) == {0, 1}
    tested = {**both, 1: both[1]._replace(waits=[*both[1].waits, on_a._replace(thread=-1)])}
    assert deadlocked(tested, tested) == {0, 1}  # what was only tested keeps nobody from waiting for something else
    on_its_way = {**both, 1: both[1]._replace(sent={"a": {0: 1}})}
    assert deadlocked(on_its_way, on_its_way) == set()
    text = verdict_text("deadlock: no rank can continue", computes, range(4))
    assert "rank 0 waits in all_reduce #2 on 'a' for rank 1 at a.py:5, for 1 s" in text
    assert "rank 1 computes at a.py:1" in text
    assert "rank 3 does not reply" in text


def test_who_is_deadlocked_where_some_ranks_suffice() -> None:
    two_of_three, elsewhere = in_call("a", 3, [0, 1, 2])._replace(needs=2), in_call("b", 1, [0, 1, 2])
    arrived = answer([two_of_three], {"a": 3})
    late = answer([two_of_three], {"a": 2})  # it waits until the others have done something without it
    stuck, computes = answer([elsewhere], {"a": 2, "b": 1}), answer([], {"a": 2})

    def found(*replies: Any) -> set[int]:
        states = dict(enumerate(replies))
        return deadlocked(states, states)

    assert found(arrived, arrived, late) == set()  # two have arrived
    assert found(arrived, computes, stuck) == set()  # one suffices, and one computes
    assert found(arrived, stuck, stuck) == {0, 1, 2}
    assert found(arrived, late, late) == {0, 1, 2}  # nobody is left who could arrive
    assert found(late, late, computes) == {0, 1}  # one is too few for those that wait for two others
    assert found(late, computes, computes) == set()


def waits_in_vain(how: str, mode: str, limit: str) -> Outcome:
    outcome = launch("waits_in_vain.py", 3, how, mode, limit, limit_s=50)
    assert not outcome.is_late, f"hung\n{outcome.out}\n{outcome.err}"
    return outcome


def test_ranks_that_wait_for_each_other_over_mpi_are_told_without_a_time_limit() -> None:
    outcome = waits_in_vain("cross", "ranks", "none")
    for rank in range(3):
        assert re.search(rf"RANK {rank} after .*: .deadlock: no rank can continue\\n", outcome.out), outcome.out
        assert f"RANK {rank} went on" in outcome.out
    for words in (r"rank 0 waits in .*? on 'one' for rank 1 at waits_in_vain.py:\d+",
                  r"rank 1 waits in .*? on 'two' for ranks 0, 2 at waits_in_vain.py:\d+"):  # fmt: skip
        assert len(re.findall(words, outcome.out)) == 3
    assert outcome.code == 0, outcome.err


def test_ranks_blocked_inside_mpi_end_the_job() -> None:
    outcome = waits_in_vain("receives", "first", "none")
    assert outcome.code != 0
    waits = (
        r"^ringtape: deadlock: no rank can continue\n"
        r"  rank 0 waits in recv #1 on 'a@0' from rank 1 at waits_in_vain.py:\d+"
    )
    assert re.search(waits, outcome.err, re.MULTILINE), outcome.err


def test_ranks_that_all_send_without_a_copy_end_the_job() -> None:
    outcome = waits_in_vain("lends", "first", "none")
    assert outcome.code != 0
    waits = (r"^ringtape: deadlock: no rank can continue\n"
             r"  rank 0 waits in lend #1 on 'world' to rank 1 at waits_in_vain.py:\d+")  # fmt: skip
    assert re.search(waits, outcome.err, re.MULTILINE), outcome.err


@pytest.mark.slow
def test_a_rank_that_computes_for_ever_over_mpi() -> None:
    outcome = waits_in_vain("computes", "ranks", "1")
    for rank in (0, 2):
        said = r".rank [02] has waited for 1 s \(timeout_s= of cc.check\)"
        assert re.search(rf"RANK {rank} after .*: {said}", outcome.out)
    assert len(re.findall(r"rank 1 computes at waits_in_vain.py:\d+", outcome.out)) == 3  # rank 1 too
    assert re.search(r"RANK 1 after .*: .rank [02] has waited for 1 s", outcome.out)  # told when it came at last


@pytest.mark.slow
def test_slow_ranks_and_ranks_with_other_threads_are_no_deadlock() -> None:
    outcome = waits_in_vain("slow", "ranks", "none")
    assert outcome.out.count(": 'nothing'") == 3, outcome.out
    assert outcome.code == 0, outcome.err
