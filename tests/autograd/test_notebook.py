"""The HTML that notebooks show: well formed, escaped, readable in any theme, small, and without an effect."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn, optim
from collectives import P, R, Shard


class Text(HTMLParser):
    """The text between the tags of HTML whose tags fit."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data.split()


def shown(x: Any) -> str:
    html = x._repr_html_()
    assert len(html) < 6000
    colours = re.findall(r"(?<![\w-])(?:color|background):([^;\"]+)", html)
    assert all(c in ("inherit", "transparent") or c.startswith("rgba(128,128,128") for c in colours)
    assert html.count("<table") == html.count("color:inherit\"><tr"), "tables do not inherit the colour everywhere"
    return " ".join(Text(html).words)


def test_tensors() -> None:
    w = ag.Parameter(numpy.full((3, 2), 0.5, "float32"), name="<w & co>")
    assert "<w" not in w._repr_html_() and "&lt;w &amp; co&gt;" in w._repr_html_()
    text = shown(w)
    assert text.startswith("Parameter <w & co> dtype float32 shape (3, 2) grad None [[0.5, 0.5],")
    w.grad = numpy.full((3, 2), 2.0, "float32")
    assert "grad set, with norm 4.899 [[0.5" in shown(w)
    assert "grad" not in shown(ag.tensor([1.0]))
    half = ag.Parameter(numpy.ones(1, "float16"))
    for x in (2048.0, 1.0, 1.0):  # 2050 in float32: showing it does not round the sum
        half.accumulate(numpy.full(1, x, "float16"))
        shown(half)
    assert half.grad is not None and half.grad.tolist() == [2050.0]
    with ag.Tape() as tape:
        y = np.tanh(w @ w.T)
        assert "gradient flows through it" in shown(y)
        assert shown(tape).startswith("Tape recording, 3 operations operation times")
    assert "matmul 1" in shown(tape) and shown(ag.Tape()) == "Tape not entered"
    assert len(shown(ag.tensor(numpy.ones((1000, 1000))))) < 500


def test_tensors_with_labels_and_meshes() -> None:
    def program() -> list[str]:
        with cc.Mesh(dp=2, tp=1) as mesh:
            x = cc.from_local(numpy.ones((1 + mesh.axis("dp").rank, 2)), {"dp": Shard(0), "tp": R})
            p = ag.tensor([1.0 + mesh.axis("dp").rank], {"dp": P, "tp": R})
            return [shown(mesh), shown(x), shown(p), shown(cc.reduce(p, "dp", 0))]

    mesh, x, p, rooted = cc.run(program, 2)[1]
    assert mesh == "Mesh 2 ranks axis size this rank dp 2 1 tp 1 0"
    assert "shape on this rank (2, 2) layout {dp: Shard(0), tp: R} global shape (3, 2)" in x
    assert "global shape (3, 2) ranks hold 0 [0:1, :] 1 [1:3, :] [[1., 1.]," in x
    assert p.startswith("Tensor this rank's addend") and p.endswith("[2.]")
    assert rooted.endswith("ranks hold 0 [:] 1 nothing held by another rank")


def test_modules_and_optimizers() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2).requires_grad_(False))
    text = shown(model)
    assert text.startswith("Sequential 26 elements in 4 parameters, 10 frozen 0: Linear(in_features=3, out_features=4)")
    assert "16 elements weight (3, 4) float32 bias (4,) float32 1: ReLU() 2: Linear" in text
    assert [p.name for p in vars(model[0]).values() if isinstance(p, ag.Parameter)] == ["", ""]  # it gives no names
    tied = nn.ModuleList([model[0], model[0]])
    assert shown(tied).startswith("ModuleList 16 elements in 2 parameters")
    schedule = optim.schedules.step_lr(0.1, 2)
    groups = optim.SGD([{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}], lr=schedule)
    assert re.match(r"SGD group parameters elements lr .* 0 2 16 0.5 .* 1 2 10 0.1", shown(groups))


def test_the_plan_is_a_picture() -> None:
    def program() -> str:
        with cc.Mesh(dp=2):
            x = ag.tensor([1.0 + cc.world().rank], {"dp": P}, requires_grad=True)
            with ag.Tape() as tape:
                cc.all_reduce(x, "dp", to=cc.I)
            return str(tape.plan()._repr_svg_())

    picture = cc.run(program, 2)[0]
    assert picture.startswith("<svg ") and "all_reduce" in picture


@pytest.mark.parametrize("inside", [True, False])
def test_showing_records_nothing(inside: bool) -> None:
    w = ag.Parameter([1.0], name="w")
    with ag.Tape() as tape:
        y = w * 2.0
        if inside:
            shown(y), shown(w), shown(tape)
    assert repr(tape) == "<Tape, recorded, 1 operations>"


def test_modules_are_defined_where_the_program_is_no_file() -> None:
    """As in a notebook, in an interactive session and in ``python -c``."""
    text = "class Twice(nn.Module):\n    def __init__(self): self.inner = nn.Linear(1, 1)\n"
    for name in ("builtins", "a_module_that_was_never_imported"):
        names: dict[str, Any] = {"nn": nn, "__name__": name}
        exec(text, names)
        assert "Linear" in shown(names["Twice"]())
