"""The judge of audits, on jobs of NumPy: each fault is named, and right jobs are silent. No other library is needed.

The model is two layers, ``tanh(x w1 + b) w2``, with a mean of squares over rows that the ranks hold unevenly. What the
ranks had is written with `collectives.audit.write`, as a job of MPI would.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collectives.audit as audit
from autograd.errors import ArgumentError
from collectives.__main__ import main
from collectives.audit.collector import keep

ROWS = {1: (12,), 2: (5, 7), 4: (2, 3, 3, 4)}
Arrays = dict[str, Any]


def data() -> tuple[Any, Any]:
    random = np.random.default_rng(3)
    return random.standard_normal((3, 12, 6)), random.standard_normal((3, 12, 4))


def start(dtype: Any = np.float64) -> Arrays:
    random = np.random.default_rng(4)
    shapes = {"w1": (6, 8), "b": (8,), "w2": (8, 4)}
    return {name: random.standard_normal(shape).astype(dtype) / 2 for name, shape in shapes.items()}


def gradients(w: Mapping[str, Any], x: Any, y: Any, count: float) -> tuple[Arrays, float]:
    h = np.tanh(x @ w["w1"] + w["b"])
    error = h @ w["w2"] - y
    g = 2 * error / count
    back = (g @ w["w2"].T) * (1 - h * h)
    return {"w1": x.T @ back, "b": back.sum(0), "w2": h.T @ g}, float((error * error).sum() / count)


def run(
    folder: Path,
    ranks: int = 1,
    change: Callable[[list[Arrays], int], Any] = lambda grads, t: None,
    count: Callable[[int], float] = lambda rows: 12,
    only: int | None = None,
    moved: int | None = None,
    dtype: Any = np.float64,
    left: int = 0,
    steps: Callable[[int], int] = lambda rank: 3,
) -> Path:
    """A job with data parallelism. `change` plants a fault in the gradients of all ranks, before or after their sum."""
    xs, ys = (each.astype(dtype) for each in data())
    w = start(dtype)
    if moved is not None:
        random = np.random.default_rng(moved)
        far = {name: np.where(random.random(x.shape) < 0.5, np.inf, -np.inf).astype(dtype) for name, x in w.items()}
        w = {name: np.nextafter(x, far[name]) for name, x in w.items()}
    bounds = np.cumsum((0, *ROWS[ranks]))
    for t in range(3):
        own = []
        for rank in range(ranks):
            rows = slice(bounds[rank], bounds[rank + 1])
            if only is not None:
                rows = slice(*np.cumsum((0, *ROWS[2]))[only : only + 2])
            own.append(gradients(w, xs[t, rows], ys[t, rows], count(rows.stop - rows.start)))
        grads = [dict(each) for each, _ in own]
        whole = change(grads, t)
        if whole is None:  # the sum, after the fault
            total = {name: sum(g[name] for g in grads) for name in w}
            whole = [dict(total) for _ in grads]
        grads = whole
        for rank, g in enumerate(grads):
            if t < steps(rank):
                step = {name: (-0.1 * x if name != "b" or rank < ranks - left else 0 * x) for name, x in g.items()}
                audit.write(folder, rank, ranks, t, g, w, step, loss=own[rank][1])
        w = {name: x - dtype(0.1) * (x * 0 + grads[0].get(name, 0 * x)) for name, x in w.items()}
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The reference, with moved bits, and the parts of two ranks' rows; in float64 and float32."""
    folder = tmp_path_factory.mktemp("audit")
    found: dict[str, Any] = {}
    for name, dtype in (("f8", np.float64), ("f4", np.float32)):
        found[name] = run(folder / name, dtype=dtype)
        found[f"{name} moved"] = [run(folder / f"{name}{seed}", moved=seed, dtype=dtype) for seed in (1, 2)]
        found[f"{name} parts"] = [run(folder / f"{name}p{k}", only=k, dtype=dtype) for k in range(2)]
    return found


def judged(runs: dict[str, Any], job: Path, of: str = "f8", parts: bool = True, **more: Any) -> audit.Report:
    read = audit.read_steps
    moved = [read(each) for each in runs[f"{of} moved"]]
    found = [read(each) for each in runs[f"{of} parts"]] if parts else []
    return audit.Judge(read(job), read(runs[of]), moved, found, **more).report()


def one(report: audit.Report) -> tuple[str, list[str], str]:
    """The cause that is named first, its parameters, and its text."""
    finding, names = report.findings[0]
    return finding.cause, names, finding.text


@pytest.mark.parametrize("of", ("f8", "f4"))
@pytest.mark.parametrize("ranks", (1, 2, 4))
def test_a_right_job_is_silent(runs: dict[str, Any], tmp_path: Path, of: str, ranks: int) -> None:
    report = judged(runs, run(tmp_path, ranks, dtype=np.float64 if of == "f8" else np.float32), of)
    assert report.status == 0 and str(report).startswith("right: 3 gradients in each of 3 steps"), report


def _times(name: str, factor: float) -> Callable[[list[Arrays], int], None]:
    def change(grads: list[Arrays], t: int) -> None:
        for g in grads:
            g[name] = g[name] * factor

    return change


def _unsummed(*names: str, since: int = 0) -> Callable[[list[Arrays], int], Any]:
    def change(grads: list[Arrays], t: int) -> Any:
        for name in grads[0]:
            total = sum(g[name] for g in grads)
            for g in grads:
                g[name] = g[name] if name in names and t >= since else total
        return grads

    return change


def _of_rank_0(grads: list[Arrays], t: int) -> Any:
    return [dict(grads[0]) for _ in grads]


def _clipped(grads: list[Arrays], t: int) -> None:
    for g in grads:
        norm = math.sqrt(sum((x * x).sum() for x in g.values()))
        for name in g:
            g[name] = g[name] * min(1, 0.2 / norm)


def _stale() -> Callable[[list[Arrays], int], Any]:
    old: Arrays = {}

    def change(grads: list[Arrays], t: int) -> Any:
        total = {name: sum(g[name] for g in grads) for name in grads[0]}
        if t == 0:
            old.clear()
        found = [total | {"w1": old.get("w1", total["w1"])} for _ in grads]
        old.update(total)
        return found

    return change


def _absent(grads: list[Arrays], t: int) -> Any:
    total = {name: sum(g[name] for g in grads) for name in grads[0]}
    return [total, {name: x for name, x in total.items() if name != "b"}]


FAULTS: dict[str, tuple[dict[str, Any], str, set[str], str]] = {
    "twice": ({"change": _times("w1", 2)}, "factor", {"w1"}, "2 times right: the 2 ranks of 'ranks'"),
    "half": ({"change": _times("w2", 0.5)}, "factor", {"w2"}, "0.5 times right: 1 / the 2 ranks of 'ranks'"),
    "sign": ({"change": _times("b", -1)}, "factor", {"b"}, "-1 times right"),
    "scaled": ({"change": _times("b", 1024)}, "factor", {"b"}, "a scale of the loss that is not divided out"),
    "zero": ({"change": _times("b", 0)}, "zero", {"b"}, "zero"),
    "no sum": ({"change": _unsummed("w1", "b", "w2")}, "missing sum", {"w1", "b", "w2"}, "their sum is right"),
    "no sum of one": ({"change": _unsummed("b")}, "missing sum", {"b"}, "the ranks of 'ranks' hold addends (P)"),
    "no sum later": ({"change": _unsummed("b", since=2)}, "missing sum", {"b"}, "their sum is right"),
    "rank 0": ({"change": _of_rank_0}, "one part", {"w1", "b", "w2"}, "of the rows of rank 0 alone"),
    "means": ({"count": lambda rows: 2 * rows}, "weights", {"w1", "b", "w2"}, "a mean of the parts' means"),
    "sums of means": ({"count": lambda rows: rows}, "weights", {"w1", "b", "w2"}, "a sum of the parts' means"),
    "clipped": ({"change": _clipped}, "weights", {"w1", "b", "w2"}, "as by clipping before the sum"),
    "stale": ({"change": _stale()}, "stale", {"w1"}, "the gradient of the step before"),
    "absent": ({"change": _absent}, "missing", {"b"}, "no gradient on rank 1"),
    "left out": ({"left": 1}, "update", set(), "b is not updated on rank 1"),
    "skipped": ({"steps": lambda rank: 3 - rank}, "steps", set(), "rank 1 has run 2 steps, others 3"),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("of", ("f8", "f4"))
def test_a_fault_is_named(runs: dict[str, Any], tmp_path: Path, name: str, of: str) -> None:
    options, cause, names, text = FAULTS[name]
    report = judged(runs, run(tmp_path, 2, dtype=np.float64 if of == "f8" else np.float32, **options), of)
    found, whose, told = one(report)
    assert (report.status, found, set(whose)) == (1, cause, names) and text in told, report


def test_a_later_step_is_judged_by_itself(runs: dict[str, Any], tmp_path: Path) -> None:
    """Each step of this job has the reference's parameters, as with --reset. Steps 0 and 2 are wrong."""
    for t, step in enumerate(audit.read_steps(runs["f8"])):
        kinds = {kind: {n: step[0].get(kind, n) for n in step[0].names} for kind in ("grad", "before", "update")}
        kinds["grad"]["b"] = kinds["grad"]["b"] * (1, 1, 3)[t] if t else 0 * kinds["grad"]["b"]
        audit.write(tmp_path, 0, 1, t, *kinds.values())
    assert [(judged(runs, tmp_path, first=t).step, one(judged(runs, tmp_path, first=t))[0]) for t in range(2)] == [
        (0, "zero"), (2, "factor")]  # fmt: skip


def test_weights_need_parts(runs: dict[str, Any], tmp_path: Path) -> None:
    report = judged(runs, run(tmp_path, 2, count=lambda rows: 2 * rows), parts=False)
    assert one(report)[0] == "unknown" and "fix: --part" in str(report), report
    assert report.findings[1][0].cause == "consequence"


def test_one_number_is_a_multiple_of_any_other(tmp_path: Path) -> None:
    """So a factor counts only where it is a power of a number of ranks."""
    w = {"a": [0.0]}
    audit.write(tmp_path / "ref", 0, 1, 0, {"a": [2.0]}, w)
    for name, g in (("other", (3.1, 3.1)), ("each", (2.0, 5.1)), ("twice", (4.0, 4.0))):
        for rank in range(2):
            audit.write(tmp_path / name, rank, 2, 0, {"a": [g[rank]]}, w)
    reference = audit.read_steps(tmp_path / "ref")
    found = {name: one(audit.Judge(audit.read_steps(tmp_path / name), reference).report())[0]
             for name in ("other", "each", "twice")}  # fmt: skip
    assert found == {"other": "unknown", "each": "unknown", "twice": "factor"}


def test_the_cause_nearest_the_loss_comes_first(runs: dict[str, Any], tmp_path: Path) -> None:
    def change(grads: list[Arrays], t: int) -> None:
        for rank, g in enumerate(grads):
            g["w2"] = g["w2"] * 2
            g["b"] = g["b"] + rank + g["b"] ** 2

    report = judged(runs, run(tmp_path, 2, change))
    assert [(each.cause, names) for each, names in report.findings] == [("factor", ["w2"]), ("consequence", ["b"])]


def test_pieces_are_found_by_a_map(runs: dict[str, Any], tmp_path: Path) -> None:
    """Tensor parallelism: w1 is cut by columns, w2 by rows."""
    cuts = {"w1": 1, "b": 0, "w2": 0}
    (tmp_path / "map.toml").write_text(
        "\n".join(f'{name} = {{axis = "tp", dim = {dim}}}' for name, dim in cuts.items()))

    def job(folder: str, order: tuple[int, int], factor: float = 1) -> Path:
        for t, step in enumerate(audit.read_steps(runs["f8"])):
            for rank, at in enumerate(order):
                kinds = {kind: {n: np.split(step[0].get(kind, n), 2, dim)[at] for n, dim in cuts.items()}
                         for kind in ("grad", "before", "update")}  # fmt: skip
                kinds["grad"]["w2"] = kinds["grad"]["w2"] * factor
                audit.write(tmp_path / folder, rank, 2, t, *kinds.values())
        return tmp_path / folder

    mesh = {"tp": 2}
    how = {"cuts": audit.read_map(tmp_path / "map.toml", mesh), "mesh_sizes": mesh}
    assert judged(runs, job("right", (0, 1)), **how).status == 0
    assert one(judged(runs, job("factor", (0, 1), 2), **how))[2] == "2 times right: the 2 ranks of 'tp'"
    cause, _, text = one(judged(runs, job("order", (1, 0)), **how))
    assert cause == "parameter" and "by ranks in the order [1, 0]" in text
    report = judged(runs, tmp_path / "right", mesh_sizes=mesh)
    assert report.status == 2 and "--map says how a parameter is cut" in str(report)
    (tmp_path / "map.toml").write_text('w1 = {axis = "dp", dim = 0}')
    with pytest.raises(ArgumentError, match="cut along axis 'dp'; --mesh has"):
        audit.read_map(tmp_path / "map.toml", mesh)


def test_gradients_of_other_kinds(tmp_path: Path) -> None:
    """Complex numbers, halves, integers, single numbers, empty arrays, zeros, NaN: one row each, and both sides."""
    g = np.random.default_rng(5).standard_normal((3, 4))
    c, nan = g + 1j * g[::-1], np.where(g > 0, g, np.nan)
    rows: dict[str, tuple[Any, tuple[Any, Any], str]] = {
        "complex": (c, (c, c), "right"), "conjugate": (c, (c.conj(), c.conj()), "factor"),
        "imaginary": (c, (1j * c, 1j * c), "unknown"), "complex sum": (c, (c * (g > 0), c * (g <= 0)), "missing sum"),
        "half": (g.astype("f2"), (g.astype("f2"), 2 * g.astype("f2")), "factor"),
        "whole numbers": (np.arange(4), (np.arange(4), np.arange(4)), "right"),
        "one number": (2.0, (2.0, 2.0), "right"), "empty": (g[:0], (g[:0], g[:0]), "right"),
        "zeros": (0 * g, (0 * g, 0 * g), "right"), "zeros of the reference": (0 * g, (g, g), "unknown"),
        "NaN": (g, (g, nan), "not finite"), "NaN of the reference": (nan, (g, g), "not finite"),
        "NaN of both": (nan, (nan, nan), "not finite"), "transposed": (g, (g.T, g.T), "unknown"),
    }  # fmt: skip
    found = {}
    for i, (name, (right, given, _)) in enumerate(rows.items()):
        audit.write(tmp_path / f"{i}", 0, 1, 0, {"w": right})
        for rank, x in enumerate(given):
            audit.write(tmp_path / f"{i}job", rank, 2, 0, {"w": x})
        report = audit.Judge(audit.read_steps(tmp_path / f"{i}job"), audit.read_steps(tmp_path / f"{i}")).report()
        found[name] = report.verdicts[0].finding.cause
        json.dumps(report.as_json(), allow_nan=False)
    assert found == {name: cause for name, (_, _, cause) in rows.items()}


def test_mistakes_of_a_call_are_told(runs: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two, one_process = run(tmp_path / "two", 2), audit.read_steps(runs["f8"])
    job = audit.read_steps(two)
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"reference": job}, "the reference has 2 ranks; needed: one process"),
        ({"moved": [job]}, "a run with moved bits has 2 ranks"),
        ({"parts": [job]}, "a part has 2 ranks"),
        ({"cuts": {"w_1": (audit.Cut("ranks", 0),)}}, "which no parameter is called(.|\n)*fix: one of .*w1"),
        ({"cuts": {"b": (audit.Cut("ranks", 1),)}}, r"dimension 1 of 'b', whose shape is \[8\]"),
        ({"mesh_sizes": {"dp": 3}}, "has 3 ranks; the job has 2"),
    ]
    for words, text in mistakes:
        with pytest.raises(ArgumentError, match=text):
            audit.Judge(**{"job": job, "reference": one_process, **words}).report()
    for given in ("2/2", "a/2", "1", "0/1/2"):
        with pytest.raises(SystemExit):
            main(["audit", "collect", "-o", str(tmp_path), "--data", given, "--", "true"])
        assert "needed: a rank and the number of ranks, as 0/2" in capsys.readouterr().err


def test_runs_that_tell_nothing_are_told(runs: dict[str, Any], tmp_path: Path) -> None:
    """No files of a rank, files of several runs, no gradient, another precision, other steps, bits that stayed."""
    job, one_process = audit.read_steps(run(tmp_path / "two", 2)), audit.read_steps(runs["f8"])
    with pytest.raises(ArgumentError, match="a run with moved bits has the reference's parameters"):
        audit.Judge(job, one_process, [one_process])
    with pytest.raises(ArgumentError, match="the first step is 3; needed: one of the 3"):
        audit.Judge(job, one_process, first=3).report()
    report = audit.Judge(job[:2], one_process).report()
    assert "the job has 2 steps, and the reference 3" in str(report) and report.status == 0
    w = start()
    audit.write(tmp_path / "four", 0, 2, 0, {name: x.astype("f4") for name, x in w.items()}, w)
    report = audit.Judge(audit.read_steps(tmp_path / "four"), one_process).report()
    assert report.status == 2 and "rank 1 of 2 has kept no step" in str(report)
    audit.write(tmp_path / "four", 1, 2, 0, {name: x.astype("f4") for name, x in w.items()}, w)
    report = audit.Judge(audit.read_steps(tmp_path / "four"), one_process).report()
    assert report.status == 2 and "w1 is float32 in the job, float64 in the reference" in str(report)
    audit.write(tmp_path / "four", 2, 4, 0, w, w)
    with pytest.raises(ArgumentError, match="files of several runs(.|\n)*of 4 ranks"):
        audit.read_steps(tmp_path / "four")
    audit.write(tmp_path / "none", 0, 1, 0, {}, w)
    none = audit.read_steps(tmp_path / "none")
    report = audit.Judge(none, none).report()
    assert report.status == 2 and "the reference has no gradient at its first step" in str(report)


def test_gradients_are_judged_as_they_were_before_clipping(tmp_path: Path) -> None:
    """The collector keeps both. What came last may be no clipping, but a sum or a mean over the ranks."""
    g = np.random.default_rng(6).standard_normal((3, 4))
    rows: dict[str, tuple[Any, list[str], Any, float | str | None]] = {
        "clipped": (0.3 * g, [], g, 0.3), "by its values": (g.clip(-0.1, 0.1), ["w"], g, "bound"),
        "a mean": (g / 2, [], g / 2, None), "a sum": (g + 1, [], g + 1, None),
        "unscaled": (g / 1024, [], g / 1024, None),
    }  # fmt: skip
    for name, (new, bounds, judged, clip) in rows.items():
        path = audit.write(tmp_path / name, 0, 1, 0, {"w": new})
        step = audit.read_steps(tmp_path / name)[0][0]
        keep(str(path), step.meta | {"bounds": bounds}, {"grad:w": new, "old:w": g})
        step = audit.read_steps(tmp_path / name)[0][0]
        assert np.array_equal(step.get("grad", "w"), judged), name
        assert step.clip == pytest.approx(clip) if isinstance(clip, float) else step.clip == clip, name


def test_addends_that_are_multiples_of_their_sum(runs: dict[str, Any], tmp_path: Path) -> None:
    """Another factor on each rank; where the factors add up to 1, a sum is missing."""
    found = []
    for name, (a, b) in {"addends": (0.25, 0.75), "scaled": (0.25, 0.5)}.items():
        def change(grads: list[Arrays], t: int, a: float = a, b: float = b) -> Any:
            total = {name: sum(g[name] for g in grads) for name in grads[0]}
            return [total | {"w2": a * total["w2"]}, total | {"w2": b * total["w2"]}]

        found.append(one(judged(runs, run(tmp_path / name, 2, change)))[0])
    assert found == ["missing sum", "factor"]


def test_a_wrong_gradient_explains_other_updates(runs: dict[str, Any], tmp_path: Path) -> None:
    """As clipping makes them."""
    for t, step in enumerate(audit.read_steps(runs["f8"])):
        kinds = {kind: {n: step[0].get(kind, n) for n in step[0].names} for kind in ("grad", "before", "update")}
        kinds["grad"]["w2"] = 2 * kinds["grad"]["w2"]
        kinds["update"] = {name: 0.7 * x for name, x in kinds["update"].items()}
        audit.write(tmp_path, 0, 1, t, *kinds.values())
    assert [finding.cause for finding, _ in judged(runs, tmp_path).findings] == ["factor"]


def test_other_models_cannot_be_compared(runs: dict[str, Any], tmp_path: Path) -> None:
    audit.write(tmp_path, 0, 1, 0, {"v": [1.0]}, {"v": [0.0]})
    report = judged(runs, tmp_path)
    assert report.status == 2 and "the job's parameters ['v'] are not in the reference" in str(report)


def test_the_command(runs: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = run(tmp_path / "job", 2, _times("w1", 2))
    moved = str(runs["f8 moved"][0])
    arguments = ["audit", "judge", str(job), "--against", str(runs["f8"]), "--ulp", moved, "--mesh", "dp=2"]
    assert main(arguments) == 1
    assert "factor: w1: 2 times right: the 2 ranks of 'dp'\n    fix: " in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["findings"][0]["parameters"] == ["w1"] and found["step"] == 0
    assert main([*arguments, "--page", str(tmp_path / "audit.html")]) == 1
    text = (tmp_path / "audit.html").read_text()
    assert '<tr class="wrong"><td>w1</td><td class="cause">factor</td>' in text and text.count("<circle") == 6
    assert '<tr class="right"><td>b</td>' in text and "<script" not in text and "http" not in text
    capsys.readouterr()
    assert main(["audit", "judge", str(tmp_path / "none"), "--against", str(runs["f8"])]) == 2
    assert "no rank-R/step-S.npz in it" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*arguments[:-1], "dp=two"])
    assert "needed: axes with sizes, as dp=2,tp=4" in capsys.readouterr().err
    assert main(["audit", "collect", "-o", str(tmp_path / "x")]) == 2
