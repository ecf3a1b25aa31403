"""A rank that raises, exits early or is killed ends the job on all ranks within seconds, and is named."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from collectives.checks import modes
from collectives.checks.reports import MadeCall, mismatch_text

from ..launch import Outcome, launch
from .endings import LEFT, LEFT_WITH_0, SIGKILL, ended_by

LIMIT_S = 15.0  # from the fault to the end of mpiexec, on a busy machine; a quiet one takes one
START_S = 40.0  # for the processes to start, on a busy machine

TIMES = re.compile(
    rf"rank (\d) of \d \(pid \d+\) on host \w+ {ended_by(rf'was killed by signal [^)]*[)]|{LEFT}|{LEFT_WITH_0}')} "
    r"([\d.]+) s after .*"
)
EARLY = ("sys.exit 0", "sys.exit 3", "return")
KILLED = {"os._exit 0": ended_by(LEFT_WITH_0), "os._exit 3": ended_by(LEFT), "kill": ended_by(SIGKILL)}
WAITS = ("all_reduce", "recv", "barrier")


def check(outcome: Outcome, text: str) -> None:
    ended = time.time()
    assert not outcome.is_late, f"the job hung\n{outcome.out}\n{outcome.err}"
    assert outcome.code != 0
    assert re.search(rf"^ringtape: rank 1 of \d.*{text}", outcome.err, re.MULTILINE), outcome.err
    # Before MPI is initialised, hosts say that they cannot tell; later, each says when its first rank died.
    blamed = re.sub(r"^.*unless its launcher ended it after a failure on another host.*$", "", outcome.err, flags=re.M)
    if times := TIMES.findall(blamed):
        assert min(times, key=lambda found: float(found[1]))[0] == "1", outcome.err
        blamed = TIMES.sub("", blamed)
    assert not re.search(r"rank [023] of \d .*(raised|exited|killed|left by)", blamed), "another rank was blamed"
    assert "WENT ON" not in outcome.out
    fault = re.search(r"FAULT ([\d.]+)", outcome.out)
    assert fault is not None
    assert ended - float(fault[1]) < LIMIT_S


def fails(how: str, where: str, has_world: str = "world", ranks: int = 3, on: str = "here") -> Outcome:
    is_early = has_world == "none"  # in its first moments, a killed fork would not look like a killed process
    return launch("fails.py", ranks, how, where, has_world, limit_s=START_S, on=on, forked=not is_early)


@pytest.mark.parametrize("where", WAITS)
def test_raise(where: str) -> None:
    outcome = fails("raise", where)
    check(outcome, "raised ValueError: planted")
    assert "[rank 1] Traceback" in outcome.err and "fails.py" in outcome.err


def test_escape_codes_of_an_error_do_not_reach_the_terminal() -> None:
    outcome = fails("raise escapes", "all_reduce")
    check(outcome, r"raised ValueError: planted \\x1b\[2J\\x07; the job ends")
    assert "\\x9b31m" in outcome.err and all(c.isprintable() or c in "\n\t" for c in outcome.err), outcome.err


@pytest.mark.parametrize(("how", "where"), [*zip(EARLY, WAITS, strict=True)])
def test_exit_early(how: str, where: str) -> None:
    outcome = fails(how, where)
    check(outcome, rf"exited early .* while rank [02] waits for it in {where} #\d.*fails.py:\d+")


@pytest.mark.parametrize(("how", "where"), [*zip(KILLED, WAITS[1:] + WAITS[:1], strict=True)])
def test_killed(how: str, where: str) -> None:
    check(fails(how, where), KILLED[how])


@pytest.mark.slow
@pytest.mark.parametrize("where", WAITS)
@pytest.mark.parametrize("how", [*EARLY, *KILLED])
def test_every_end_in_every_wait(how: str, where: str) -> None:
    (test_exit_early if how in EARLY else test_killed)(how, where)


def test_killed_tells_what_the_others_waited_for() -> None:
    outcome = fails("kill late", "recv")
    check(outcome, "was killed")
    for rank in (0, 2):
        assert re.search(rf"  rank {rank} was waiting in recv #1 from rank 1 on 'world', fails.py:\d+", outcome.err)


@pytest.mark.parametrize("where", ["start", "test", "subgroup"])
def test_exit_early_while_others_wait_otherwise(where: str) -> None:
    check(fails("return", where), "exited early")


@pytest.mark.parametrize("how", ["raise in thread", "interrupt", "replace the hook"])
def test_raise_otherwise(how: str) -> None:
    check(fails(how, "barrier"), "raised")


def test_finalize_early() -> None:
    check(fails("finalize", "barrier"), "exited early")


@pytest.mark.parametrize("how", [
    pytest.param(how, marks=pytest.mark.slow if how.endswith("3") else ()) for how in ("raise", *EARLY, *KILLED)
])  # fmt: skip
def test_before_the_world_exists(how: str) -> None:
    outcome = fails(how, "all_reduce", "none")
    if how in KILLED:  # other ranks, which are not watched yet and which the launcher has killed, are named beside it
        assert outcome.code != 0
        assert not outcome.is_late
        assert re.search(rf"^ringtape: .*rank 1 of 3.* {KILLED[how]}", outcome.err, re.MULTILINE)
    else:
        check(outcome, "raised" if how == "raise" else "exited early")


ELSEWHERE = [("openmpi", 3), ("hosts", 4)]
TEXTS = {
    "raise": "raised ValueError: planted",
    **dict.fromkeys(EARLY, r"exited early .* while rank [023] waits for it"),
    **{how: rf"{text}( [\d.]+ s after the world was made)?; the job ends" for how, text in KILLED.items()},
}


@pytest.mark.parametrize(("on", "ranks"), ELSEWHERE)
@pytest.mark.parametrize(("how", "where"), [("return", "all_reduce"), ("os._exit 0", "recv")])
def test_elsewhere(how: str, where: str, on: str, ranks: int) -> None:
    """On Open MPI and on two hosts. Other hosts may print when the launcher ended their ranks, if one was killed."""
    outcome = fails(how, where, ranks=ranks, on=on)
    check(outcome, TEXTS[how])
    assert "unless its launcher" not in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize(("on", "ranks"), ELSEWHERE)
@pytest.mark.parametrize("where", WAITS)
@pytest.mark.parametrize("how", ["raise", *EARLY, *KILLED])
def test_all_elsewhere(how: str, where: str, on: str, ranks: int) -> None:
    test_elsewhere(how, where, on, ranks)


@pytest.mark.slow
@pytest.mark.parametrize(("on", "ranks"), ELSEWHERE)
@pytest.mark.parametrize("how", ["raise", *EARLY, *KILLED])
def test_before_the_world_exists_elsewhere(how: str, on: str, ranks: int) -> None:
    """Without MPI the supervisors of two hosts say that they cannot tell, and one of them names rank 1."""
    outcome = fails(how, "all_reduce", "none", ranks=ranks, on=on)
    assert outcome.code != 0
    assert not outcome.is_late
    assert re.search(rf"^ringtape: .*rank 1 of \d.* {TEXTS[how]}", outcome.err, re.MULTILINE), outcome.err


@pytest.mark.parametrize(("on", "ranks"), [("openmpi", 3), pytest.param("hosts", 4, marks=pytest.mark.slow)])
def test_slow_rank_is_no_failure_elsewhere(on: str, ranks: int) -> None:
    outcome = launch("ends_unevenly.py", ranks, limit_s=START_S, on=on)
    assert (outcome.code, outcome.err) == (0, "")
    assert len(re.findall(r"rank \d ends", outcome.out)) == ranks


def test_two_ranks() -> None:
    check(fails("return", "recv", ranks=2), "exited early")


def test_exit_early_before_a_lent_array_arrives() -> None:
    check(fails("return", "lend", ranks=2), r"exited early .* after 0 receives from rank 0 .* in a send, #1 to rank 1")


def test_slow_rank_is_no_failure() -> None:
    outcome = launch("ends_unevenly.py", 3, limit_s=START_S)
    assert (outcome.code, outcome.err) == (0, "")
    # the lines of ranks that print at the same time may run into each other
    assert sorted(re.findall(r"rank \d ends", outcome.out)) == ["rank 0 ends", "rank 1 ends", "rank 2 ends"]


def test_no_world_is_no_failure() -> None:
    outcome = launch("makes_no_world.py", 3, limit_s=START_S)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.count("child of rank") == 3


def test_mismatch() -> None:
    cases = {"always 51": True, "first 49": True, "first 50": False, "off 0": False}
    outcome = launch("disagrees.py", 3, *cases, limit_s=100)
    assert outcome.code == 0, outcome.err
    for case, is_told in cases.items():
        told = [line for line in outcome.out.splitlines() if line.startswith(f"{case}: ")]
        assert len(told) == 3
        for rank in range(3):
            assert any(f"RANK {rank} {'TOLD' if is_told else 'UNAWARE'}" in line for line in told)
        if is_told:
            for line in told:
                assert f"rank 1 did not make the call of the other ranks of 'world/{case}'" in line
                assert "ranks 0, 2: all_reduce(f32[3])" in line
                assert "rank 1: broadcast(f32[2])" in line
                assert "needed: the same call" in line


def test_the_fix_where_a_rank_has_fewer_steps() -> None:
    end = "the end of the block of Mesh(dp=2) (axis='dp')"
    text = mismatch_text("dp", {0: MadeCall("all_reduce(axis='dp')"), 1: MadeCall(end)})
    assert "fix: as many steps on all ranks: data.DataLoader(dataset, rows, axis=...)" in text
    assert "fix" not in mismatch_text("dp", {0: MadeCall(end), 1: MadeCall(end)})


def test_mismatch_text_of_a_tie() -> None:
    text = mismatch_text("dp", {4: MadeCall("a"), 7: MadeCall("b")})
    assert text.startswith("the 2 ranks of 'dp' made 2 different calls\n  rank 4: a\n  rank 7: b\n")


def test_set_check_refuses_other_modes() -> None:
    with pytest.raises(ValueError, match="sometimes"):
        modes.set_check("sometimes")


def test_an_error_that_ends_the_process_inside_mpi() -> None:
    """MPICH ends a process whose message is truncated, without an error in Python. Its shared memory is removed."""
    outcome = launch("truncates.py", 3, limit_s=60)
    assert outcome.code != 0 and not outcome.is_late, outcome
    assert re.search(r"^ringtape: CollectiveMismatch: .* of 'world/raw'", outcome.err, re.MULTILINE), outcome
    for length in (4, 8):
        assert re.search(rf"all_reduce\(float64\[{length}\]\)\n    at truncates.py:\d+\n", outcome.err), outcome
    assert "was killed" not in outcome.err, outcome
    files = {Path(name) for name in re.findall(r"<(\S+)>", outcome.out)}
    end = time.monotonic() + 10.0
    while any(file.exists() for file in files):  # the supervisor may end a moment after the launcher
        assert time.monotonic() < end, files
        time.sleep(0.05)
