"""`cc.show` and ``python -m collectives show``, on threads and under mpiexec, also when a rank fails."""

from __future__ import annotations

import itertools
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import autograd as ag
import collectives as cc
from autograd.errors import ArgumentError, LayoutError, MeshError, RankFailed
from collectives import I, R
from collectives.__main__ import main
from collectives.page.show import _Threads

from ..launch import launch, program_path
from .test_data import content

PROGRAM = program_path("show_program.py")


def step() -> float:
    """A loss of all ranks, and its backward pass."""
    w = ag.Parameter([1.0, 2.0], name="w")
    rank = cc.current_mesh().axis("dp").rank
    with ag.Tape() as tape:
        loss = cc.all_reduce((cc.cast(w, "dp", to=R) * (1 + rank)).sum(), "dp", to=I)
    tape.backward(loss)
    return loss.item()


def shown(path: Path, ranks: int, part: Callable[[], Any], **options: Any) -> list[cc.Show]:
    def program() -> cc.Show:
        with cc.Mesh(dp=-1):
            with cc.show(path, **options) as made:
                part()
        return made

    return cc.run(program, ranks)


def names(data: Any, r: int) -> list[str]:
    return [data["texts"][name] for name in data["records"]["name"][r]]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_all_ranks_are_on_the_page(ranks: int, tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    made = shown(path, ranks, step)
    data = content(path.read_text())
    assert data["ranks"] == list(range(ranks)) and data["title"] == "out.html"
    assert {tuple(names(data, r)) for r in range(ranks)} == {tuple(names(data, 0))}
    assert {"parameter w", "cast I->R", "multiply", "sum", "all_reduce"} <= set(names(data, 0))
    assert made[0].page is not None and made[0].page.html == path.read_text()
    assert all(each.page is None for each in made[1:])
    assert made[0]._repr_html_().startswith("<iframe srcdoc=")
    assert [each.name for each in tmp_path.iterdir()] == ["out.html"] and not _Threads.running


def test_the_sides_of_the_pairing_are_equal(tmp_path: Path) -> None:
    shown(tmp_path / "out.html", 3, step)
    found = content((tmp_path / "out.html").read_text())["pairings"]
    assert len(found) == 4  # cast, multiply, sum, all_reduce
    for _, _, left, sides in found:
        assert [right for _, right in sides] == [pytest.approx(left)] and left == pytest.approx(18.0)


def test_options(tmp_path: Path) -> None:
    shown(tmp_path / "out.html", 4, step, only=[1, 3], values=False, title="mine")
    data = content((tmp_path / "out.html").read_text())
    assert data["ranks"] == [1, 3] and not data["has_values"] and data["title"] == "mine"
    assert data["summaries"]["values"] == [None] * len(data["summaries"]["values"])


def test_a_rank_that_raises_leaves_a_page(tmp_path: Path) -> None:
    """Rank 1 raises while the others wait in a collective, whose call is on the page."""

    def part() -> None:
        step()
        if int(cc.world().rank) == 1:
            raise ValueError("stop here")
        step()

    with pytest.raises(ValueError, match="stop here"):
        shown(tmp_path / "out.html", 3, part)
    data = content((tmp_path / "out.html").read_text())
    assert data["ranks"] == [0, 1, 2] and data["ends"][1] == "stop here" and not _Threads.running
    assert len(names(data, 0)) > len(names(data, 1)) > 0
    assert ["end", [1], len(names(data, 1)) - 1] in data["problems"]
    assert [each.name for each in tmp_path.iterdir()] == ["out.html"]


def test_a_layout_error_is_on_the_page_with_its_fix(tmp_path: Path) -> None:
    def part() -> None:
        x = cc.shard(ag.tensor([[1.0, 2.0]] * 3, layout={"dp": R}), "dp")
        with ag.Tape():
            x @ ag.Parameter([1.0, 2.0], name="w")

    with pytest.raises(LayoutError):
        shown(tmp_path / "out.html", 3, part)
    data = content((tmp_path / "out.html").read_text())
    ((kind, rows, k),) = data["problems"]
    assert (kind, rows, names(data, 0)[k]) == ("error", [0, 1, 2], "matmul")
    assert "fix: cast(w, 'dp', to=R)" in data["errors"][0][2]


def test_a_deadlock_is_on_the_page(tmp_path: Path) -> None:
    def part() -> None:
        rank = int(cc.world().rank)
        x = ag.tensor([1.0])
        cc.recv(src=(rank + 1) % 3, axis="dp", like=x)

    with pytest.raises(cc.DeadlockError):
        shown(tmp_path / "out.html", 3, part)
    data = content((tmp_path / "out.html").read_text())
    assert [row[-1] & 4 for row in data["records"]["flags"]] == [4, 4, 4]
    line = part.__code__.co_firstlineno + 3  # that of the receive, whose header has not come
    assert [data["sites"][row[-1]][1] for row in data["records"]["site"]] == [line] * 3
    assert data["problems"][0][1] == [0, 1, 2]


def test_a_failure_elsewhere_is_no_silence(tmp_path: Path) -> None:
    """A rank that has left the block in order waits for one that failed in it."""

    def part() -> None:
        if int(cc.world().rank) == 2:
            raise OSError("no data")

    with pytest.raises(OSError, match="no data"):
        shown(tmp_path / "out.html", 3, part)
    assert content((tmp_path / "out.html").read_text())["ends"][2] == "no data"


@pytest.mark.parametrize("options, error, says", [
    ({"only": [0, 7]}, ArgumentError, r"only=\[0, 7\]\) was given; needed: ranks from 0 to 1"),
    ({"only": []}, ArgumentError, "needed: a list of ranks"),
    ({"steps": (2, 1)}, ArgumentError, "needed: the first step, and the step after the last"),
    ({"steps": (4, 5)}, ArgumentError, "4:5 were given; rank 0 has marked 0 steps"),
])  # fmt: skip
def test_refusals(options: dict[str, Any], error: type[Exception], says: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=says):
        shown(tmp_path / "out.html", 2, step, **options)
    assert (tmp_path / "out.html").exists() == ("marked" in says)  # what was recorded is not lost


def times(data: Any) -> list[list[int]]:
    """By rank: when each record began."""
    return [list(itertools.accumulate(row)) for row in data["records"]["begin"]]


def shifted_clock(rank: int) -> Callable[[], int]:
    """A clock that is off by a thousand seconds for each rank, and fast by a thousandth."""
    origin = time.perf_counter_ns()
    return lambda: round((time.perf_counter_ns() - origin) * (1 + rank / 1000)) + origin + rank * 10**12


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("is_corrected", [True, False])
def test_clocks_that_differ_are_corrected(
    fails: bool, is_corrected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a failed program, of which the offsets at its end are not known."""
    if not is_corrected:  # the check can fail
        monkeypatch.setattr("collectives.page.show.correct_records", lambda *_: None)

    def program() -> None:
        with cc.show(tmp_path / "out.html", clock=shifted_clock(int(cc.world().rank))), cc.Mesh(dp=-1):
            step()
            if fails:
                raise ValueError("stop")

    with pytest.raises(ValueError, match="stop") if fails else nullcontext():
        cc.run(program, 3)
    found = times(content((tmp_path / "out.html").read_text()))
    assert (max(map(max, found)) - min(map(min, found)) < 500e9) == is_corrected


def test_predicted_times_of_a_machine(tmp_path: Path) -> None:
    """With links of a day everything that is seen is communication."""
    slow = cc.Link(latency_s=86400.0, bytes_per_s=1e12)
    shown(tmp_path / "out.html", 4, step, predicted=cc.Topology(4, slow, slow))
    data = content((tmp_path / "out.html").read_text())
    for r, row in enumerate(data["predicted"]):
        ends = {name: (begin + length) / 86400e9 for name, (begin, length) in zip(names(data, r), row, strict=True)}
        last = max(begin + length for begin, length in row) / 86400e9
        assert ends["sum"] < 6 and round(last) in (4, 6, 8, 12)  # two all-reduces, by tree, doubling or ring


def test_a_prediction_needs_a_machine(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"predicted=3\) was given; needed: a machine\n  fix: "):
        cc.show(predicted=3)  # type: ignore[arg-type]  # the error


def test_a_dry_world_has_no_values() -> None:
    with pytest.raises(MeshError, match="dry run"):
        with cc.dry(2):
            with cc.show():
                pass


def test_a_block_is_entered_once() -> None:
    made = cc.show()
    with made:
        pass
    with pytest.raises(MeshError, match="recorded before"):
        made.__enter__()


def test_a_page_that_cannot_be_written_does_not_hide_the_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stop") as caught:
        with cc.show(tmp_path / "no folder" / "out.html"):
            raise ValueError("stop")
    assert "was not written" in "".join(caught.value.__notes__)


# -- the command -------------------------------------------------------------------------------------------------------


def run_command(path: Path, *arguments: str) -> int:
    return main(["show", PROGRAM, "-o", str(path), *arguments])


@pytest.mark.parametrize("ranks", ["1", "3", ""])
def test_the_command_runs_a_program(ranks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.argv[:], sys.path[:]
    assert run_command(tmp_path / "a.html", *(["--ranks", ranks] if ranks else []), "--", "hello", "--there") == 0
    said = capsys.readouterr()
    assert said.out.count("arguments: ['hello', '--there']") == 1
    assert re.search(r"^show: .*a\.html, [\d,]+ bytes$", said.err, re.MULTILINE)
    data = content((tmp_path / "a.html").read_text())
    assert data["ranks"] == list(range(int(ranks or 1))) and data["title"] == "show_program.py"
    assert (sys.argv, sys.path) == before


@pytest.mark.parametrize("name", ["01_adjoints", "03_tensor_parallel", "16_ring_and_tree"])
def test_the_command_shows_the_examples(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also those that set the handler of a signal, which Python allows in the main thread alone."""
    path, before = Path(__file__).parents[3] / "examples" / f"{name}.py", signal.signal
    assert main(["show", str(path), "-o", str(tmp_path / "a.html"), "--ranks", "2"]) == 0
    assert signal.signal is before and len(content((tmp_path / "a.html").read_text())["ranks"]) == 2


def test_the_command_shows_some_steps_and_ranks(tmp_path: Path) -> None:
    assert run_command(tmp_path / "all.html", "--ranks", "3") == 0
    assert run_command(tmp_path / "part.html", "--ranks", "3", "--steps", "1:2", "--only", "0,2", "--no-values") == 0
    whole, part = (content((tmp_path / name).read_text()) for name in ("all.html", "part.html"))
    assert part["ranks"] == [0, 2] and not part["has_values"]
    steps = [names(data, 0).count("SGD w") for data in (whole, part)]
    assert steps == [3, 1]


def test_the_command_shows_a_program_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((ValueError, RankFailed), match="stop"):
        run_command(tmp_path / "a.html", "--ranks", "2", "--", "fail")
    assert "the page of the failed program is" in capsys.readouterr().err
    assert content((tmp_path / "a.html").read_text())["ends"][1] == "stop"


@pytest.mark.parametrize("arguments, says", [
    (["--ranks", "0"], "--ranks 0 was given; needed: at least 1"),
    (["--ranks", "2", "--only", "0,2"], "--only 0,2 was given; the ranks are 0 to 1"),
])  # fmt: skip
def test_the_command_refuses(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(tmp_path / "a.html", *arguments) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "a.html").exists()


@pytest.mark.parametrize("arguments", [["--steps", "3:1"], ["--only", "x"], ["--steps", "a"]])
def test_the_command_refuses_what_it_cannot_read(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        run_command(tmp_path / "a.html", *arguments)


def test_other_commands_have_no_arguments_of_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--", "x"])
    assert "check takes no arguments after --; given: x" in capsys.readouterr().err


def test_a_program_that_runs_its_ranks_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each `cc.run` has a page; its results are the program's."""
    (tmp_path / "own.py").write_text("""
import numpy
import collectives as cc

def program():
    return cc.world().all_reduce(cc.world().rank * numpy.ones(1))[0]

assert cc.run(program, 2) == [1] * 2
assert cc.run(program, 3) == [3] * 3
""")
    assert main(["show", str(tmp_path / "own.py"), "-o", str(tmp_path / "a.html"), "--only", "1"]) == 0
    assert cc.World.wrappers == []
    for name in ("a.html", "a-2.html"):
        data = content((tmp_path / name).read_text())
        assert data["ranks"] == [1] and names(data, 0) == ["all_reduce"]
        assert f"show: {tmp_path / name}, " in capsys.readouterr().err or name == "a-2.html"
    (tmp_path / "own.py").write_text("raise ValueError('stop')")
    with pytest.raises(ValueError, match="stop"):
        main(["show", str(tmp_path / "own.py"), "-o", str(tmp_path / "b.html")])
    assert content((tmp_path / "b.html").read_text())["ends"] == ["stop"]


# -- under mpiexec -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["", "fail", "deadlock"])
def test_under_mpiexec(what: str, tmp_path: Path) -> None:
    """Ranks that are processes; one raises, or all wait for each other, and the page has what is known of all."""
    path = tmp_path / "a.html"
    done = launch("show_program.py", 3, str(path), what, limit_s=60)
    assert (done.code == 0) == (what == ""), done.err
    data = content(path.read_text())
    assert data["ranks"] == [0, 1, 2]
    assert all(names(data, r).count("SGD w") == 3 for r in range(3))
    if what == "fail":
        assert data["ends"][1] == "stop"
    if what == "deadlock":
        assert any("deadlock" in end for end in data["ends"]) and len(data["problems"]) > 0
    assert [each.name for each in tmp_path.iterdir()] == ["a.html"]
