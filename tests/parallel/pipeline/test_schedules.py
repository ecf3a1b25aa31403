"""Schedules as data, their texts, their communication, and the simulator against the formulas of the literature."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from autograd.errors import DeadlockError, OptionError
from parallel.pipeline import (
    SCHEDULES,
    Action,
    Costs,
    Schedule,
    gpipe,
    interleaved,
    one_f_one_b,
    simulate,
    zb_h1,
    zb_v,
)
from parallel.pipeline.schedules import make_schedule

SIZES = [(p, m) for p in (1, 2, 3, 4, 5) for m in (1, 2, 3, 4, 5, 6, 8, 10, 12)]


def times(p: int, m: int) -> tuple[int, int, int]:
    """Integers, so that sums are exact."""
    f, i, w = np.random.default_rng(100 * p + m).integers(1, 6, 3).tolist()
    return f, i, w


def all_schedules(p: int, m: int) -> list[Schedule]:
    return [gpipe(p, m), one_f_one_b(p, m), zb_h1(p, m), zb_v(p, m), *(interleaved(p, m, v) for v in (1, 2, 3))]


@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
def test_gpipe_and_1f1b(make: Any) -> None:
    for p, m in SIZES:
        f, i, w = times(p, m)
        found = simulate(make(p, m), Costs(f, i, w))
        assert found.makespan == (m + p - 1) * (f + i + w)
        assert found.bubble == (p - 1) * (f + i + w)
        assert found.bubble_fraction == pytest.approx((p - 1) / (m + p - 1))
        assert found.held == tuple(m if make is gpipe else min(m, p - r) for r in range(p))


@pytest.mark.parametrize("v", [1, 2, 3])
def test_interleaved(v: int) -> None:
    for p, m in SIZES:
        f, i, w = times(p, m)
        found = simulate(interleaved(p, m, v), Costs(f, i, w))  # times of one stage: a rank has v of them
        peaks = [min(v * m, v * p + p - 1 - 2 * r) for r in range(p)]
        if m % p == 0:
            assert found.makespan == (v * m + p - 1) * (f + i + w)
            assert found.bubble_fraction == pytest.approx((p - 1) / (v * m + p - 1))
            assert found.held == tuple(peaks)
            assert found.peak_activations == tuple(min(m, (v * p + p - 1 - 2 * r) / v) for r in range(p))
        else:
            assert found.makespan <= (v * (m + p - m % p) + p - 1) * (f + i + w)
            assert all(a <= b for a, b in zip(found.held, peaks, strict=True))


def test_zb_h1() -> None:
    """The usual formula of the bubble is (p-1) (F + I - W), with the floor F; if W > F, I is another floor.

    With p activations on the first rank it can compute p forward passes before the first I, which cannot begin before
    p F + (p-1) I. So the bubble is at least (p-1) I.
    """
    for p, m in SIZES:
        f, i, w = times(p, m)
        found, t = simulate(zb_h1(p, m), Costs(f, i, w)), f + i + w
        assert found.held == (min(m, p),) * p
        if m >= p:
            assert found.makespan == m * t + (p - 1) * max(f, i, f + i - w)
            if w <= f:
                assert found.bubble == (p - 1) * max(f, f + i - w)
        same = simulate(zb_h1(p, m))
        if m >= p:
            assert same.bubble_fraction == pytest.approx((p - 1) / (3 * m + p - 1))
        assert found.makespan <= simulate(one_f_one_b(p, m), Costs(f, i, w)).makespan


def test_zb_v() -> None:
    for p, m in SIZES:
        found = simulate(zb_v(p, m))  # of one stage: a rank has two, so F is 2
        assert max(found.held) <= 2 * p
        if m >= 2 * p:
            assert found.makespan == 6 * m + (p - 1)
            assert found.bubble == (p - 1) * 2 / 2
            assert found.peak_activations == (p,) * p
        assert found.makespan <= simulate(gpipe(p, m), Costs(2, 2, 2)).makespan


def test_zb_v_of_many_ranks() -> None:
    for p in (9, 13):
        found = simulate(zb_v(p, 2 * p))
        assert found.makespan <= 1.02 * (12 * p + p - 1) and max(found.held) <= 2 * p


@pytest.mark.parametrize("blocking", [False, True])
def test_no_schedule_deadlocks(blocking: bool) -> None:
    """Also where a send blocks until its receive has been started."""
    for p, m in SIZES:
        if p * m <= 16:
            for schedule in all_schedules(p, m):
                simulate(schedule, Costs(*times(p, m)), blocking=blocking)


def test_one_receive_ahead_is_too_few_for_blocking_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The receives are started early enough, and not earlier than needed."""
    monkeypatch.setattr("parallel.pipeline.schedules.AHEAD", 1)
    with pytest.raises(DeadlockError, match="has not started the receive"):
        for p, m in SIZES:
            simulate(zb_v(p, m), blocking=True)


def test_messages() -> None:
    """Every result that another rank needs is sent once, started once before it is waited for, and numbered."""
    for p, m in ((1, 3), (2, 3), (3, 5), (4, 4)):
        for schedule in all_schedules(p, m):
            sent, started, received = Counter[Any](), Counter[Any](), Counter[Any]()
            for r, tasks in enumerate(schedule.tasks):
                assert tuple(task.action for task in tasks[1:]) == schedule.actions[r] and tasks[0].action is None
                for task in tasks:
                    if task.receives is not None:
                        assert started[task.receives] == 1 and task.receives.target == r
                        received[task.receives] += 1
                    started.update(task.starts)
                    if task.sends is not None:
                        assert task.sends.source == r and task.action is not None
                        assert task.sends.kind == ("activation" if task.action.kind == "F" else "cotangent")
                        sent[task.sends] += 1
            assert sent == started == received and set(sent.values()) <= {1}
            for pair, n in schedule.messages.items():
                assert sorted(x.number for x in sent if (x.source, x.target) == pair) == list(range(n))
            edges = sum(a != b for a, b in zip(schedule.placement, schedule.placement[1:], strict=False))
            assert sum(sent.values()) == 2 * m * edges


def test_a_later_order_of_use_than_of_sending() -> None:
    """Receives are started in the order of the sends, also if they are used in another one."""
    schedule = Schedule.parse("0F0 0F1 0F2 0B2 0B1 0B0\n1F2 1F0 1F1 1B0 1B2 1B1")
    starts = [x.number for task in schedule.tasks[1] for x in task.starts]
    assert starts == sorted(starts)
    simulate(schedule, blocking=True)


def test_texts() -> None:
    for schedule in all_schedules(3, 4):
        assert Schedule.parse(str(schedule), schedule.name) == schedule
    own = Schedule.parse("""
        0F0 0F1   0B0 0B1   # the first rank
        1F0 1B0
        1F1 1B1
    """.replace("1B0\n        1F1", "1B0 1F1"))
    assert own == Schedule("own", one_f_one_b(2, 2).actions)
    assert make_schedule(str(own), 2, 2) == own


def test_placement() -> None:
    assert interleaved(3, 3, 2).placement == (0, 1, 2, 0, 1, 2)
    assert zb_v(3, 3).placement == (0, 1, 2, 2, 1, 0)
    assert zb_v(3, 3).stages_of(1) == (1, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0 0B0 0X1", "action '0X1'; needed: stage, one of F, B, I, W"),
        ("0F0 0F0 0B0", "0F0 is on rank 0 and again on rank 0"),
        ("0F0 0B0\n0F1 0B1", "stage 0 is on ranks 0 and 1"),
        ("0F0", "stage 0 has 0F0 for microbatch 0; needed: 0F0 and either 0B0, or 0I0 and 0W0"),
        ("0F0 0I0", "stage 0 has 0F0 and 0I0"),
        ("0F0 0B0 0I0 0W0", "stage 0 has 0F0 and 0B0 and 0I0 and 0W0"),
        ("0B0 0F0", "does not compute 0F0, 0B0 in this order"),
        ("0F0 0W0 0I0", "does not compute 0F0, 0I0, 0W0 in this order"),
        ("0F0 0B0 0F2 0B2", "stage 0 has no action for microbatch 1"),
        ("1F0 1B0", "stage 0 has no action"),
        ("", "it has no actions"),
    ],
)
def test_invalid_schedules(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Schedule.parse(text)


def test_a_rank_without_actions() -> None:
    with pytest.raises(OptionError, match="rank 1 has no actions"):
        Schedule("own", ((Action(0, "F", 0), Action(0, "B", 0)), ()))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("2f2b", 2, 4), "schedule='2f2b' was given; needed: one of gpipe, 1f1b, interleaved, zb-h1, zb-v"),
        (("1f1b", 2, 0), "microbatches=0 was given; needed: an int of at least 1"),
        (("1f1b", 2, True), "microbatches=True"),
        (("interleaved", 2, 4, 0), "chunks=0"),
        (("1f1b", 2, 4, 2), "chunks=2 was given with schedule='1f1b'"),
        ((one_f_one_b(3, 4), 2, 4), "is for 3 ranks; the pipeline has 2\n  fix: a schedule with 2 lines"),
        ((one_f_one_b(2, 3), 2, 4), "has 3 microbatches; the pipeline has microbatches=4\n  fix: microbatches=3"),
        ((17, 2, 4), "schedule=17 was given; needed: a name, or a Schedule"),
    ],
)
def test_wrong_choices(given: Any, message: str) -> None:
    with pytest.raises(OptionError) as error:
        make_schedule(*given)
    assert message in str(error.value)


def test_deadlocks_are_named() -> None:
    # 0B0 needs 1B0, which comes after 1F1, which needs 0F1
    schedule = Schedule.parse("0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1")
    with pytest.raises(DeadlockError) as error:
        simulate(schedule)
    text = str(error.value)
    assert "ranks 0, 1 wait for each other" in text
    assert "rank 0 waits in 0B0 for the result of 1B0 from rank 1" in text
    assert "rank 1 waits in 1F1 for the result of 0F1 from rank 0" in text and "fix:" in text


def test_a_deadlock_of_some_ranks_names_these_alone() -> None:
    schedule = Schedule.parse("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n2F0 2F1 2B0 2B1")
    with pytest.raises(DeadlockError) as error:
        simulate(schedule)
    assert "ranks 1, 2 wait" in str(error.value) and "rank 0" not in str(error.value)


def test_a_rank_that_waits_for_itself() -> None:
    schedule = Schedule.parse("0F0 1B0 1F0 0B0".replace("1B0 1F0", "1F0 1B0").replace("0F0 1F0", "1F0 0F0"))
    with pytest.raises(DeadlockError, match="rank 0 waits for itself\n  rank 0 waits in 1F0 for the result of 0F0"):
        simulate(schedule)


def test_transfers_take_time() -> None:
    found = simulate(one_f_one_b(2, 1), Costs(1, 1, 1, transfer=0.5))
    assert found.makespan == 6 + 2 * 0.5
    assert found.idle[1]["activations"] == 1.5 and found.idle[0]["adjoints"] == 0.5 + 3 + 0.5


def test_idle_time_adds_up() -> None:
    for p, m in ((2, 3), (4, 6), (5, 7)):
        for schedule in all_schedules(p, m):
            found = simulate(schedule, Costs(*times(p, m), transfer=0.25))
            for busy, idle in zip(found.busy, found.idle, strict=True):
                assert busy + sum(idle.values()) == pytest.approx(found.makespan)
                assert min(idle.values()) >= 0.0
    first, last = simulate(gpipe(3, 4)).idle[0], simulate(gpipe(3, 4)).idle[2]
    assert first["adjoints"] == 6 and first["activations"] == first["boundaries"] == 0
    assert last["activations"] == 2 and last["boundaries"] == 4


def test_costs_of_each_stage() -> None:
    found = simulate(gpipe(2, 2), Costs([1, 5], [1, 1], [0, 0]))
    assert found.makespan == 1 + 5 + 5 + 1 + 1 + 1
    with pytest.raises(OptionError, match="1 times were given; needed: one for each stage, also stage 1"):
        simulate(gpipe(2, 2), Costs([1.0]))


def test_the_table() -> None:
    text = str(simulate(zb_h1(2, 3)))
    assert "zb-h1: 2 ranks, 2 stages, 3 microbatches; makespan 10, bubble 10.0%" in text
    assert len(text.splitlines()) == 4


def test_names() -> None:
    assert [make_schedule(name, 2, 4).name for name in SCHEDULES] == list(SCHEDULES)
    assert make_schedule("ZB_H1", 2, 4).name == "zb-h1"
