"""What ``tape.show()`` and ``tape.trace()`` print, alone and on several ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn
from parallel import DataParallel


def rows(text: str) -> list[list[str]]:
    """The words of each line."""
    return [line.split() for line in text.splitlines()]


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    w = ag.Parameter([1.0, 2.0], name="w")
    with ag.Tape() as tape:
        found, _ = anp.linalg.eigh(anp.outer(w, w))
        loss = (anp.tanh(w) * found * anp.array([1.0, 3.0])).sum()
    tape.show()
    lines = rows(capsys.readouterr().out)
    assert lines[0] == ["place", "operation", "operands", "value"]
    assert lines[1] == ["0", "parameter", "w", "f64[2]", "1", "2"]
    tanh = next(line for line in lines if line[1] == "tanh")
    assert tanh[2:] == ["%0", "f64[2]", *(f"{x:.4g}" for x in np.tanh([1.0, 2.0]))]
    eigh = next(line for line in lines if line[1] == "eigh")
    product = next(line for line in lines if line[1] == "multiply" and f"%{eigh[0]}[0]" in line)
    assert product[2:4] == [f"%{tanh[0]},", f"%{eigh[0]}[0]"]
    tape.backward(loss)
    with pytest.raises(ag.errors.TapeError, match=r"released.*\n  fix: tape.show\(\) before"):
        tape.show()
    with pytest.raises(ag.errors.TapeError, match="never entered"):
        ag.Tape().show()


def test_show_of_recorded_operations_has_values_and_lines(capsys: pytest.CaptureFixture[str]) -> None:
    w = ag.Parameter(np.arange(100.0), name="w")
    with cc.recording_operations(), ag.Tape() as tape:
        loss = (w * 2).sum()
        with pytest.raises(ag.errors.ShapeError):
            w @ ag.tensor(np.ones((3, 3)))
    tape.show()
    before = capsys.readouterr().out
    tape.backward(loss)
    tape.show()
    first = test_show_of_recorded_operations_has_values_and_lines.__code__.co_firstlineno
    assert rows(before)[2:] == [
        ["1", "multiply", "%0,", "-", "f64[100]", "0", "to", "198,", "mean", "99", f"test_text.py:{first + 3}"],
        ["2", "sum", "%1", "f64[]", "9900", f"test_text.py:{first + 3}"],
    ]
    assert capsys.readouterr().out == before  # the tape is released, the records are not


def test_trace_alone(capsys: pytest.CaptureFixture[str]) -> None:
    w = ag.Parameter([1.0, 2.0], name="w")
    with ag.Tape() as tape:
        loss = (w * w).sum()
    tape.trace(loss, retain=True)
    assert rows(capsys.readouterr().out) == [
        ["place", "operation", "operands", "value", "cotangent"],
        ["0", "parameter", "w", "f64[2]", "1", "2", "f64[2]", "2", "4"],
        ["1", "multiply", "%0,", "%0", "f64[2]", "1", "1"], ["2", "sum", "%1", "f64[]", "5", "f64[]", "1"], [],
        ["gradient", "value"], ["w", "f64[2]", "2", "4"],
    ]  # fmt: skip
    assert w.grad is not None and w.grad.tolist() == [2.0, 4.0]
    w.zero_grad()
    tape.trace([loss], [3.0])
    assert w.grad is not None and w.grad.tolist() == [6.0, 12.0]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_trace_shows_the_ranks_below_each_other(ranks: int, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(5).integers(1, 9, (ranks, 2)).astype(float)

    def program() -> None:
        with cc.Mesh(dp=ranks) as mesh:
            w = ag.Parameter([1.0, 2.0], name="w")
            with ag.Tape() as tape:
                y = cc.cast(w, "dp", to=cc.R) * ag.tensor(x[int(mesh.axis("dp").rank)])
                loss = cc.all_reduce(y.sum(), "dp", to=cc.I)
            tape.trace(loss)

    cc.run(program, ranks)
    lines = rows(capsys.readouterr().out)
    at = next(k for k, line in enumerate(lines) if line[:3] == ["1", "cast", "I->R"])
    cotangents = [["{dp:", "P}", "f64[2]", f"{a:g}", f"{b:g}"] for a, b in x]
    assert [line[-5:] for line in lines[at : at + ranks]] == cotangents
    total = [f"{n:g}" for n in x.sum(0)]
    gradients = [line[-2:] for line in lines[-ranks:]]
    assert gradients == [total] * ranks


def test_trace_adds_the_cotangents_of_a_parameter_that_is_used_twice(capsys: pytest.CaptureFixture[str]) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            self.weight = ag.Parameter([3.0])

        def forward(self, x: Any) -> Any:
            return self.weight * x + self.weight * 10.0

    def program() -> None:
        with cc.Mesh(dp=2) as mesh:
            model = DataParallel(Twice(), "dp")
            with ag.Tape() as tape:
                loss = cc.all_reduce(model(ag.tensor([1.0 + int(mesh.ranks.rank)])).sum(), "dp", to=cc.I)
            tape.trace(loss)

    cc.run(program, 2)
    lines = capsys.readouterr().out.splitlines()
    at = next(k for k, line in enumerate(lines) if "parameter weight" in line)
    assert [line.split()[-3:] for line in lines[at : at + 2]] == [["P}", "f64[1]", "11"], ["P}", "f64[1]", "12"]]
    assert lines[-1].split()[-2:] == ["f64[1]", "23"]


def test_trace_of_ranks_with_other_operations_and_of_an_entry(capsys: pytest.CaptureFixture[str]) -> None:
    def program() -> Any:
        with cc.Mesh(dp=2) as mesh:
            model = DataParallel(nn.Linear(2, 1, key=ag.random.Key(1)), "dp")
            with ag.Tape() as tape:
                y = model(ag.tensor(np.random.default_rng(int(mesh.ranks.rank)).normal(size=(3, 2))))
                y = anp.tanh(y) if mesh.ranks.rank else anp.sin(y)
                loss = cc.all_reduce(y.sum(), "dp", to=cc.I)
            tape.trace(loss)
            return model.module.weight.grad.tolist()

    (gradient, other) = cc.run(program, 2)
    text = capsys.readouterr().out
    lines = rows(text)
    assert gradient == other
    names = [line[1] for line in lines if len(line) > 2 and line[1] in ("sin", "tanh")]
    assert names == ["sin", "tanh"]
    entered = next(k for k, line in enumerate(lines) if line[:3] == ["0", "parameter", "weight"])
    assert "{dp: P}" in text.splitlines()[entered] and "{dp: P}" in text.splitlines()[entered + 1]
    both = [[float(line[-2]), float(line[-1])] for line in lines[entered : entered + 2]]
    assert np.allclose(np.sum(both, 0), np.ravel(gradient), rtol=1e-2)  # the addends of the ranks are P
