"""The examples as a reader runs them: on one process, on threads, and under mpiexec."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ..collectives.launch import Outcome, launch_command
from ..forks import run_file

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WORLDS = [("process", 1), *(("threads", n) for n in (1, 2, 3, 4)), *(("mpiexec", n) for n in (1, 2, 3, 4))]
TRAINED = [w if w in [("process", 1), ("threads", 3)] else
           pytest.param(*w, marks=pytest.mark.slow) for w in WORLDS]  # fmt: skip
LIMIT_S = 100


def run_example(name: str, how: str, ranks: int, *options: str) -> Outcome:
    """Run an example to its end, or kill all of it.

    Compiled loops take longer to start than a short run takes; the command of the README runs with them.
    """
    file, variables = EXAMPLES / name, {"RINGTAPE_COMPILED": "0"}
    if how == "mpiexec":
        ended = launch_command([str(file), *options], ranks, limit_s=LIMIT_S, **variables)
    else:
        given = ["--ranks", str(ranks)] if how == "threads" else []
        done = run_file(file, *options, *given, limit_s=LIMIT_S, **variables)
        ended = Outcome(done.returncode, done.stdout, done.stderr, False)
    assert (ended.code, ended.is_late) == (0, False), ended.out + ended.err
    return ended


def ranks_of_lines(out: str) -> list[int]:
    return [int(rank) for rank in re.findall(r"^\[rank (\d+)\]", out, re.MULTILINE)]


# -- 00_core ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_core_computes_what_ringtape_computes(ranks: int) -> None:
    """Every line that the narrative asks its reader to check; the steps of gradient descent against plain NumPy."""
    ended = run_example("00_core.py", "threads", ranks)
    assert ended.err == ""
    parts = ended.out.split("\n\n")
    assert [part[:2] for part in parts] == [f"{n}." for n in range(1, 9)]
    slopes = re.findall(r"-?\d\.\d{6}", parts[2])
    assert slopes[0] == slopes[1]
    moves, cases = (part.splitlines()[1:] for part in parts[3:5])
    assert len(moves) == 9
    verdicts = {line.split("  ")[0].strip() or line.strip(): line.split("   ")[-1] for line in cases}
    assert len(verdicts) == len(moves) + 5
    assert all(verdict == "equal" or ranks > 1 and name.startswith("WRONG") for name, verdict in verdicts.items())
    assert [verdicts[name] for name in verdicts if name.startswith("WRONG")] == [
        "NOT EQUAL" if ranks > 1 else "equal"
    ] * 2

    rng = np.random.default_rng(5)
    rows, w = rng.standard_normal((7, 3)), np.zeros(3)
    targets, losses = np.tanh(rows @ [1.0, -2.0, 0.5]), []
    for _ in range(3):
        y = np.tanh(rows @ w)
        losses.append(np.mean((y - targets) ** 2))
        grad = rows.T @ (2 * (y - targets) * (1 - y * y)) / 7
        w = w - 0.5 * grad
    steps = parts[5].splitlines()[1:]
    assert len(steps) == 3 and len({line.partition(",")[2] for line in steps}) == 1
    shown = [float(x) for x in re.findall(r"-?\d+\.\d+", steps[0])]
    assert np.allclose(shown, [*losses, *grad], rtol=0, atol=1e-8)

    for error in (
        "missing_sum: LabelError: matmul: Shard(0) beside Invariant",
        "seeded_on_every_rank: LabelError: backward: the loss is R",
        *(["different_calls: RuntimeError: different calls: rank 0: all_reduce, rank 1: reduce_scatter"] * (ranks > 1)),
    ):
        assert error in parts[6]
    right, alone, often = (np.array(found.split(), float) for found in re.findall(r"\[(.*)\]", parts[6]))
    assert np.allclose(often, ranks * right, atol=1e-5) and np.allclose(alone, right) == (ranks == 1)
    assert [float(x) < 1e-14 for x in re.findall(r"difference (\S+)", parts[7])] == [True, True]
    assert "missing_sum: LayoutError: matmul" in parts[7]


def test_the_core_needs_numpy_alone_and_is_read_in_one_sitting() -> None:
    lines = (EXAMPLES / "00_core.py").read_text().splitlines()
    imports = [line.split()[1] for line in lines if re.match(r"(import|from) ", line)]
    first = next(n for n, line in enumerate(lines) if line.startswith("import autograd"))
    standard = {"__future__", "argparse", "signal", "threading", "collections.abc", "typing"}
    assert set(imports) == standard | {"numpy", "autograd", "autograd.numpy", "collectives"}
    assert any(line.startswith("# == 8. ") for line in lines[first - 5 : first])
    assert len([line for line in lines if line.strip()]) < 350


# -- 01_adjoints ------------------------------------------------------------------------------------------------------


@cache
def adjoints(how: str, ranks: int) -> Outcome:
    return run_example("01_adjoints.py", how, ranks)


@pytest.mark.parametrize(("how", "ranks"), [  # processes print what threads print: the next test
    w if w in [("process", 1), ("threads", 3), ("threads", 4)] else pytest.param(*w, marks=pytest.mark.slow)
    for w in WORLDS
])  # fmt: skip
def test_adjoints(how: str, ranks: int) -> None:
    ended = adjoints(how, ranks)
    assert ended.err == ""
    assert ended.out.startswith(f"ranks: {ranks}.")
    assert ("On one rank F and F* copy their operands" in ended.out) == (ranks == 1)
    tables = ended.out.split("\n\n")[1:]
    assert [t.split(",")[0] for t in tables] == [
        "broadcast", "reduce", "scatter", "gather", "all_gather", "reduce_scatter", "all_reduce(to=R)",
        "all_reduce(to=I)", "cast(to=R)",
    ]  # fmt: skip
    for table in tables:
        titles = re.split(r"\s{2,}", table.strip().splitlines()[2].strip())
        assert [title.partition(":")[0] for title in titles] == ["x", "F x", "y", "F* y"], table
        assert ranks_of_lines(table) == list(range(ranks))
        found = re.search(r"<F x, y> = (\S+), <x, F\* y> = (\S+): equal$", table.strip())
        assert found is not None, table
        assert float(found[1]) == float(found[2]) > 0
    assert "NOT EQUAL" not in ended.out


def test_adjoints_print_the_same_on_threads_and_processes() -> None:
    assert adjoints("threads", 3).out == adjoints("mpiexec", 3).out


def test_a_table_of_adjoints_is_what_numpy_says() -> None:
    """all_gather on three ranks, number for number: reduce_scatter of the cotangents comes back."""
    out = adjoints("threads", 3).out
    table = next(t for t in out.split("\n\n") if t.startswith("all_gather"))
    rows = [re.split(r"\s{2,}", line.split("] ")[1]) for line in table.splitlines() if line.startswith("[rank")]
    x, y, ct, back = ([[float(v) for v in row[k].split()] for row in rows] for k in range(4))
    assert x == [[1, 2], [3], [4]]
    assert y == [[1, 2, 3, 4]] * 3
    total = [sum(column) for column in zip(*ct, strict=True)]
    assert ct[0] != ct[1] != ct[2]
    assert back == [total[:2], total[2:3], total[3:]]


# -- 02_digits --------------------------------------------------------------------------------------------------------


@cache
def digits(how: str, ranks: int, folder: Path) -> tuple[Outcome, list[float]]:
    """Two short epochs in float64, with --verify: 90 steps, the last batch of an epoch does not divide by 2, 3 or 4."""
    file = folder / f"{how}{ranks}.json"
    ended = run_example("02_digits.py", how, ranks, "--verify", "--epochs", "2", "--losses", str(file))
    return ended, json.loads(file.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("digits")


@pytest.mark.parametrize(("how", "ranks"), TRAINED)
def test_digits_verify(how: str, ranks: int, folder: Path) -> None:
    ended, _ = digits(how, ranks, folder)
    found = re.search(r"largest relative difference (\S+), tolerance 1e-12: passed", ended.out)
    assert found is not None, ended.out
    assert 0 <= float(found[1]) < 1e-12
    norms = re.findall(r"^(\d\.(?:weight|bias)) +(\S+) +(\S+) +(\S+)$", ended.out, re.MULTILINE)
    assert [name for name, *_ in norms] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert all(float(norm) > 0.01 for _, norm, *_ in norms)


@pytest.mark.parametrize(("how", "ranks"), TRAINED[1:])
def test_digits_losses_do_not_depend_on_the_number_of_ranks(how: str, ranks: int, folder: Path) -> None:
    alone, ours = digits("process", 1, folder)[1], digits(how, ranks, folder)[1]
    assert len(alone) == len(ours) == 90
    assert alone[49] < 0.8 * alone[0]
    assert max(abs(a - b) for a, b in zip(alone[:50], ours[:50], strict=True)) < 1e-10
    assert all(abs(a - b) <= 1e-10 * abs(a) for a, b in zip(alone[:50], ours[:50], strict=True))


@pytest.mark.parametrize(("how", "ranks"), TRAINED)
def test_digits_prints_in_order_of_rank(how: str, ranks: int, folder: Path) -> None:
    ended, _ = digits(how, ranks, folder)
    assert ranks_of_lines(ended.out) == list(range(ranks))
    assert ended.out.count("test accuracy") == 1
    last = r"test accuracy: .*" + r"\n\d ranks, .*\nthe largest relative difference .* was (\S+)" * (ranks > 1)
    found = re.search(last + r"\n*\Z", ended.out)
    assert found is not None and (ranks == 1 or float(found[1]) < 1e-12)
    assert sum(int(n) for n in re.findall(r"\] (\d+) of 360 test images", ended.out)) == 360
    assert ended.err.count("| 0/2 [") == 1  # one progress bar, rank 0's
    assert "100%" in ended.err


@pytest.mark.timeout(LIMIT_S + 20)
def test_digits_learns_under_mpiexec_and_draws(tmp_path: Path) -> None:
    png = tmp_path / "loss.png"
    ended = run_example("02_digits.py", "mpiexec", 2, "--epochs", "10", "--plot", str(png))
    found = re.search(r"test accuracy: ([\d.]+)%", ended.out)
    assert found is not None
    assert float(found[1]) >= 97
    data = png.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width >= 800 and height >= 400
    assert len(data) > 20_000  # not an empty frame


@pytest.mark.slow
def test_digits_on_more_ranks_than_a_batch_has_rows(tmp_path: Path) -> None:
    options = "--batch", "4", "--lr", "0.02", "--epochs", "1", "--dtype", "float64", "--losses"
    files = [tmp_path / "alone.json", tmp_path / "five.json"]
    run_example("02_digits.py", "process", 1, *options, str(files[0]))
    run_example("02_digits.py", "threads", 5, *options, str(files[1]))
    alone, ours = (json.loads(file.read_text()) for file in files)
    assert len(alone) == len(ours) == 360
    assert max(abs(a - b) for a, b in zip(alone[:50], ours[:50], strict=True)) < 1e-10


def test_digits_default_dtype_is_float32() -> None:
    out = run_example("02_digits.py", "threads", 2, "--verify", "--epochs", "1", "--dtype", "float32").out
    found = re.search(r"largest relative difference (\S+), tolerance 1e-05: passed", out)
    assert found is not None
    assert 1e-9 < float(found[1]) < 1e-5


# -- 03_tensor_parallel -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "ranks"), [
    ("process", 1), ("threads", 3), pytest.param("threads", 6, marks=pytest.mark.slow),
    pytest.param("mpiexec", 2, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_layer_is_divided_both_ways(how: str, ranks: int) -> None:
    ended = run_example("03_tensor_parallel.py", how, ranks)
    assert ended.err == "" and ended.out.startswith(f"ranks: {ranks}.")
    columns, rows = ended.out.split("\n\n")[1:3]
    for way, weight, bias in ((columns, "Shard(1)", "Shard(0)"), (rows, "Shard(0)", "I")):
        forward, backward = (re.findall(rf"^  {direction} +(.*)$", way, re.MULTILINE)
                             for direction in ("forward", "backward"))  # fmt: skip
        assert len(forward) == len(backward) >= 2
        assert [line.split("the adjoint of ")[1] for line in backward] == forward[::-1]
        assert way.count(f"{weight}; its gradient is {weight}") >= ranks
        assert way.count(f"{bias}; its gradient is {bias}") >= ranks
        assert float(re.findall(r"all gradients: (\S+)$", way, re.MULTILINE)[0]) < 1e-14


# -- 06_experts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "ranks"), [("threads", 2), pytest.param("mpiexec", 3, marks=pytest.mark.slow)])
def test_experts_are_the_same_on_any_number_of_ranks(how: str, ranks: int, tmp_path: Path) -> None:
    options = "--steps", "6", "--batch", "96", "--experts", "5"
    alone = run_example("06_experts.py", "process", 1, *options)
    ours = run_example("06_experts.py", how, ranks, *options, "--plot", str(tmp_path / "experts.png"))
    found = []
    for out in (alone.out, ours.out):
        losses = [float(x) for x in re.findall(r"^balance loss \* \S+: loss (\S+)$", out, re.MULTILINE)]
        tokens = [int(x) for x in re.findall(r"^ +\d  +(\d+) +\S+%  +0  #*$", out, re.MULTILINE)]
        assert len(losses) == 2 and len(tokens) == 10 and sum(tokens) == 2 * 96
        found.append((losses, tokens))
    assert max(abs(a - b) for a, b in zip(found[0][0], found[1][0], strict=True)) < 0.002
    assert sum(abs(a - b) for a, b in zip(found[0][1], found[1][1], strict=True)) <= 4  # float32: a token at a tie
    assert f"on {ranks} ranks" in ours.out and (tmp_path / "experts.png").stat().st_size > 20_000


# -- runs for a first look ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["04_pipeline", "06_experts", "07_domain_decomposition", "10_compression",
                                  "11_asynchronous", "12_batch_size"])  # fmt: skip
def test_quick(name: str) -> None:
    assert run_example(f"{name}.py", "threads", 2, "--quick").out


def test_quick_takes_the_place_of_the_default() -> None:
    assert "step  20" in run_example("04_pipeline.py", "threads", 2, "--quick").out


# -- 16 to 19: single subjects -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("how", "ranks"), [("threads", 1), ("threads", 3), ("threads", 5), ("mpiexec", 4)])
def test_a_ring_and_a_tree_are_the_all_reduce(how: str, ranks: int) -> None:
    out = run_example("16_ring_and_tree.py", how, ranks).out
    assert out.count("  step ") == 2 * (ranks - 1)
    errors = re.findall(r"value (\S+), gradient (\S+); a rank sends at most (\S+) bytes forward, (\S+) backward", out)
    assert len(errors) == 2 and all(float(value) < 1e-14 and float(gradient) < 1e-14 for value, gradient, *_ in errors)
    parts = 12 * 8 * 2 * (ranks - 1)  # a ring of p parts of 12 numbers
    assert [float(n) for n in errors[0][2:]] == [parts, parts]
    everyone = "".join(map(str, range(ranks)))
    assert out.split("Tree: ")[0].rstrip().endswith("  ".join([everyone] * ranks))


def test_a_deadlock_names_all_ranks_and_the_order_that_ends_is_run() -> None:
    out = run_example("17_deadlock.py", "threads", 3).out
    assert "deadlock: no rank can continue" in out and out.count("waits in recv from rank") == 3
    for rank in range(3):
        back = (rank - 1) % 3 + 1
        assert f"[rank {rank}] sent [{rank + 1}. {rank + 1}.] to the right, received [{back}. {back}.]" in out
    assert "3 ranks, 21 operations, 4 communications" in out


def test_masks_are_those_of_one_rank() -> None:
    out = run_example("18_random_numbers.py", "process", 1).out
    found = []
    for text in out.split("different values, one key: refused")[:3]:
        parts = text.split("parts of one mask")[1].split("one value")[0]
        found.append(re.findall(r"[#.]{24}", parts))
    assert found[0] == found[1] == found[2] and len(found[0]) == 4


def test_a_reproducible_sum_has_one_value(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_example("19_rounding.py", "process", 1).out
    rows = [line.split() for line in out.splitlines() if re.match(r"\d ", line)]
    assert len(rows) == 5 and len({row[-1] for row in rows}) == 1
    assert " !" in out  # others differ


# -- 20 to 24: waiting, the memory of others, late gradients -----------------------------------------------------------
@pytest.mark.parametrize(("how", "ranks"), [("threads", 1), ("threads", 3), ("mpiexec", 3)])
def test_the_slow_rank_is_named(how: str, ranks: int, tmp_path: Path) -> None:
    png = tmp_path / "slow.png"
    out = run_example("20_slow_rank.py", how, ranks, "--quick", "--pause-ms", "250", "--plot", str(png)).out
    parts = out.split("== ")[1:]
    assert [part.splitlines()[0] for part in parts] == [
        "all ranks alike", f"rank {ranks - 1} has four times the rows", f"rank {ranks - 1} pauses"]  # fmt: skip
    assert png.stat().st_size > 5_000
    if ranks > 1:
        assert "rank 2 is the slowest" in parts[2] and "likely cause: compute" in parts[2]


@pytest.mark.parametrize(("how", "ranks"), [("process", 1), ("threads", 4), ("mpiexec", 3)])
def test_reading_from_others_adds_to_their_gradients(how: str, ranks: int) -> None:
    out = run_example("21_one_sided.py", how, ranks).out
    wanted = [[int(n) for n in text.split(", ")] for text in re.findall(r"wants (.*)", out)]
    ranks = len(wanted)  # one process alone shows three threads
    expected = np.zeros(4 * ranks)
    for rank, rows in enumerate(wanted):
        np.add.at(expected, rows, rank + 1)
    tables = out.split("the gradient of")[1:]
    for table in tables:
        lines = re.findall(r"rank \d   (.*?) +\d+ bytes", table)
        assert np.concatenate([np.array(line.split(), float) for line in lines]).tolist() == expected.tolist()
    moved = [sum(map(int, re.findall(r"(\d+) bytes", table))) for table in tables]
    assert moved[0] == ranks * (ranks - 1) * 4 * 512 and moved[1] < moved[0]


@pytest.mark.parametrize(("how", "ranks"), [("threads", 2), ("threads", 3), ("mpiexec", 3)])
def test_gradients_are_summed_by_each_way(how: str, ranks: int) -> None:
    out = run_example("22_synchronisation.py", how, ranks).out
    rows = dict(re.findall(r"^(by .*?) {2,}(.*)$", out, re.MULTILINE))
    assert rows["by hand"] == rows["by a cast"] == rows["by DataParallel"] and rows["by hand"].endswith("0.0e+00")
    assert float(rows["by hand, forgotten"].split()[1]) > 0.1
    assert "use's gradient would miss the sum over the ranks" in out


@pytest.mark.parametrize(("how", "ranks"), [("process", 1), ("mpiexec", 3)])
def test_stale_gradients_diverge_beyond_the_limit(how: str, ranks: int) -> None:
    out = run_example("23_stale_gradients.py", how, ranks, "--rates", "0.3", "0.5", "0.7", "0.9", "1.1", "2.1").out
    rates = [float(rate) for rate in re.findall(r"rate (\S+)", out.splitlines()[0])]
    lines = [line.split() for line in out.splitlines() if re.match(r"\d ", line)]
    assert [int(line[0]) for line in lines] == ([0, 1, 2, 3] if ranks == 1 else [ranks - 1])
    for line in lines:
        assert ["!" in cell for cell in line[2:]] == [rate > float(line[1]) for rate in rates]


@pytest.mark.parametrize(("how", "ranks"), [("threads", 1), ("threads", 3), ("mpiexec", 2)])
def test_double_buffering_is_one_step_late(how: str, ranks: int, tmp_path: Path) -> None:
    png = tmp_path / "double.png"
    out = run_example("24_double_buffering.py", how, ranks, "--quick", "--plot", str(png)).out
    line = r"^rate (\S+) +(ordinary|double buffering) .*loss \S+ to (\S+?)(, diverging)?$"
    rows = re.findall(line, out, re.MULTILINE)
    assert len(rows) == 6 and [bool(row[3]) for row in rows] == [False] * 5 + [True]
    assert png.stat().st_size > 5_000


@pytest.mark.parametrize(("how", "ranks"), [("threads", 1), ("mpiexec", 2)])
def test_fused_sums_are_timed_beside_single_ones(how: str, ranks: int) -> None:
    out = run_example("25_fusing.py", how, ranks, "--rounds", "5", "--tensors", "4", "--kib", "0.25", "16").out
    assert out.startswith(f"4 tensors on {ranks} ranks") and len(out.splitlines()) == 4


def test_a_thousand_ranks_are_predicted(tmp_path: Path) -> None:
    png = tmp_path / "ranks.png"
    out = run_example("26_thousand_ranks.py", "process", 1, "--plot", str(png)).out
    rows = {line[:30].strip(): [float(n) for n in line[30:].split()] for line in out.splitlines()[2:7]}
    assert all(len(values) == 10 for values in rows.values()) and png.stat().st_size > 10_000
    assert 30 < rows["a ring, after backward"][-1] < 60 and rows["by hosts, beside backward"][-1] < 10
    top = [a > b for a, b in zip(rows["top 1 %, after backward"], rows["a ring, after backward"], strict=True)]
    assert top == [False] * 6 + [True] * 4  # from 128 ranks on compression loses


@pytest.mark.parametrize(("how", "ranks"), [("threads", 3), ("mpiexec", 2)])
def test_the_variance_is_one_over_the_rows(how: str, ranks: int, tmp_path: Path) -> None:
    png = tmp_path / "variance.png"
    out = run_example("27_gradient_variance.py", how, ranks, "--plot", str(png)).out
    products = [float(line.split()[2]) for line in out.splitlines() if re.match(r" +\d", line)]
    assert len(products) == 10 and png.stat().st_size > 10_000
    assert max(products) < 1.4 * min(products)


# -- 12_batch_size ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_larger_batch_needs_fewer_steps_and_more_examples(tmp_path: Path) -> None:
    options = "--batches", "2", "8", "32", "128", "--seeds", "1", "--plot", str(tmp_path / "batch.png")
    tables = []
    for how, ranks in (("process", 1), ("threads", 2), ("mpiexec", 2)):
        out = run_example("12_batch_size.py", how, ranks, *options).out
        rows = [line.split() for line in out.splitlines()[1:5]]
        tables.append([row[:4] for row in rows])
        assert all((row[4] == "-") == (ranks == 1) for row in rows)
        assert ranks == 1 or all(2 < float(row[4]) < 300 for row in rows)
    assert tables[0] == tables[1] == tables[2]
    steps, examples = ([float(row[k]) for row in tables[0]] for k in (1, 2))
    assert steps == sorted(steps, reverse=True) and examples == sorted(examples)
    assert steps[0] > 4 * steps[2] and examples[3] > 3 * examples[1]
    assert (tmp_path / "batch.png").stat().st_size > 10_000


# -- 13_checkpoints ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "ranks"), [
    ("process", 1), ("threads", 3), *(pytest.param(*w, marks=pytest.mark.slow) for w in WORLDS if w[0] == "mpiexec")
])  # fmt: skip
def test_a_run_goes_on_after_damage_on_another_mesh(tmp_path: Path, how: str, ranks: int) -> None:
    folder, plot = tmp_path / "run", tmp_path / "saved.png"
    ended = run_example("13_checkpoints.py", how, ranks, "--directory", str(folder), "--plot", str(plot))
    assert ended.err == ""
    first, second, third, *_ = re.split(r"^\d\. ", ended.out, flags=re.MULTILINE)[1:]
    steps = [line.split() for line in first.splitlines()[2:7]]
    assert [(line[0], line[4], line[5], line[7]) for line in steps] == [
        (str(k), str(ranks), f"{'dp' if k < 7 else 'tp'}={ranks}", "whole") for k in (2, 4, 6, 8, 10)
    ]
    assert re.search(r"step 10: damaged: .*, rank-00000.safetensors, bytes \d+ to \d+, of trainer/", second)
    assert third.startswith(f"A third job with dp={ranks} goes on from step 8.")
    assert third.count("below 1e-12") == 3
    assert sorted(x.name for x in folder.iterdir() if x.name != ".lock") == [
        f"step-{k:09d}" for k in range(2, 13, 2)
    ]
    assert plot.stat().st_size > 10_000


# -- 14_elastic -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "ranks"), [
    ("process", 1), *(pytest.param(*w, marks=pytest.mark.slow) for w in WORLDS if w[0] == "mpiexec")
])  # fmt: skip
def test_a_run_goes_on_without_ranks_that_die(tmp_path: Path, how: str, ranks: int) -> None:
    plot = tmp_path / "elastic.png"
    ended = run_example("14_elastic.py", how, ranks, "--quick", "--plot", str(plot))
    assert ended.err == ""
    if how == "process":  # on four threads
        assert re.findall(r"^ranks? (\d) died in step (\d+); on from step (\d+)", ended.out, re.MULTILINE) == [
            ("2", "5", "4"), ("0", "11", "8")
        ]  # fmt: skip
    assert "largest difference from the serial losses: below 1e-10" in ended.out
    assert plot.stat().st_size > 10_000


# -- 10_compression ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_compression_trains_with_fewer_bytes(tmp_path: Path) -> None:
    ended = run_example("10_compression.py", "threads", 3, "--epochs", "6", "--plot", str(tmp_path / "losses.png"))
    found = re.findall(r"^(.+?) +loss of the last epoch ([\d.]+) .* ([\d.]+) MB sent, ", ended.out, re.MULTILINE)
    assert len(found) == 10 and found[0][0] == "exact" and float(found[0][1]) < 0.2
    for name, loss, megabytes in found[1:]:
        assert float(loss) < 0.6, name
        assert float(megabytes) < 0.51 * float(found[0][2]), name
    assert (tmp_path / "losses.png").stat().st_size > 10_000


# -- 15_torch_weights -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "ranks"), [
    ("process", 1), ("threads", 3), pytest.param("mpiexec", 4, marks=pytest.mark.slow),
])  # fmt: skip
def test_weights_of_torch_give_its_logits(how: str, ranks: int, tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="safetensors is in the extra checkpoint")
    out = run_example("15_torch_weights.py", how, ranks, "--save", str(tmp_path / "x.safetensors")).out
    found = re.search(r"from (\S+) to (\S+)\nlargest difference from torch's: (\S+)$", out.strip())
    assert found is not None and float(found[1]) < -5 and float(found[2]) > 5 and float(found[3]) < 5e-5
    assert f"ranks: {ranks}," in out and (tmp_path / "x.safetensors").stat().st_size > 8_000


def test_torch_writes_the_recorded_weights_and_reads_ours(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="safetensors is in the extra checkpoint")
    python = os.environ.get("RINGTAPE_PYTHON_TORCH")
    if not python:
        pytest.skip("RINGTAPE_PYTHON_TORCH names no interpreter that has torch")

    def torch(*words: str) -> str:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        command = [python, "-W", "ignore", str(EXAMPLES / "gpt2" / "torch_gpt2.py"), *words]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if "No module named 'safetensors'" in ended.stderr:
            pytest.skip("the interpreter RINGTAPE_PYTHON_TORCH has no safetensors")
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    torch("write", str(tmp_path))
    written, recorded = (np.load(folder / "logits.npz") for folder in (tmp_path, EXAMPLES / "gpt2"))
    assert (written["tokens"] == recorded["tokens"]).all()
    assert np.allclose(written["logits"], recorded["logits"], rtol=0, atol=1e-4)
    ours = tmp_path / "ours.safetensors"
    files = str(tmp_path / "weights.safetensors"), "--logits", str(tmp_path / "logits.npz"), "--save", str(ours)
    assert "largest difference" in run_example("15_torch_weights.py", "threads", 2, *files).out
    found = re.search(r"logits: (\S+)$", torch("check", str(ours)).strip())
    assert found is not None and float(found[1]) < 1e-4


# -- train_gpt --------------------------------------------------------------------------------------------------------

SMALL = ("--steps", "2", "--layers", "2", "--width", "32", "--context", "32", "--batch", "8", "--sample", "60")


@cache
def trained_gpt() -> str:
    return run_example("train_gpt.py", "process", 1, *SMALL).out


@pytest.mark.parametrize(("how", "ranks", "mesh"), [
    ("threads", 4, ("--pp", "2", "--cp", "2", "--schedule", "zb-h1", "--explain")),
    pytest.param("mpiexec", 2, ("--tp", "2", "--zero", "1"), marks=pytest.mark.slow),
])  # fmt: skip
def test_train_gpt_prints_the_same_on_any_mesh(how: str, ranks: int, mesh: tuple[str, ...], tmp_path: Path) -> None:
    png = tmp_path / "gpt.png"
    ended = run_example("train_gpt.py", how, ranks, *SMALL, *mesh, "--plot", str(png))
    at = "loss on the last tenth"
    assert ended.out[ended.out.index(at) :] == trained_gpt()[trained_gpt().index(at) :]
    assert ("memory of each rank" in ended.out) == ("--explain" in mesh)
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
