"""`examples/07_domain_decomposition.py`: the same state is recovered on any blocks of the grid, and by any segments."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd.testing import check_grads
from collectives.testing import mutated

from .test_examples import EXAMPLES, run_example

SMALL = ("--grid", "13", "17", "--steps", "30", "--iterations", "5")


def load() -> Any:
    spec = importlib.util.spec_from_file_location("domain_decomposition", EXAMPLES / "07_domain_decomposition.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = load()


class Told(NamedTuple):
    """What a run prints, and the blocks of its ranks."""

    first_loss: float
    last_loss: float
    error: float
    digest: str
    blocks: list[tuple[int, int]]


def told(out: str) -> Told:
    losses, end = (re.search(text, out) for text in (
        r"loss (\S+) at first, (\S+) at last", r"relative error of (\S+), digest (\w+)"))  # fmt: skip
    assert losses is not None and end is not None, out
    blocks = [(int(h), int(w)) for h, w in re.findall(r"block of (\d+) x (\d+) cells", out)]
    return Told(float(losses[1]), float(losses[2]), float(end[1]), end[2], blocks)


def run(capsys: pytest.CaptureFixture[str], ranks: int, *options: str) -> Told:
    cc.run(example.program, ranks, example.parser.parse_args([*SMALL, *options]))
    return told(capsys.readouterr().out)


def test_the_result_does_not_depend_on_the_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    """13 and 17 cells are divided evenly by no number of ranks."""
    alone = run(capsys, 1)
    assert alone.last_loss < 0.8 * alone.first_loss and alone.blocks == [(13, 17)]
    for ranks, options in ((2, ()), (3, ("--mesh", "3", "1")), (4, ("--checkpoint", "7")), (6, ())):
        ours = run(capsys, ranks, *options)
        assert ours[:4] == alone[:4], (ranks, options)
        assert len(ours.blocks) == ranks and len(set(ours.blocks)) > 1


def test_a_halo_exchange_that_drops_the_neighbours_cotangents_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    """The loss still falls, as the docstring of the example says."""
    alone = run(capsys, 1)

    def own_cells_only(ct: Any, call: Any) -> Any:
        before, cells = call.options.before, call.extents[call.group.index]
        return ct[(*(slice(None),) * call.dim, slice(before, before + cells))].copy()

    with mutated("add ghosts", forward=own_cells_only):
        wrong = run(capsys, 4)
    assert wrong.last_loss < 0.8 * wrong.first_loss
    assert wrong.digest != alone.digest and wrong.last_loss != alone.last_loss


def test_the_gradient_of_the_simulation() -> None:
    """Against finite differences, on one rank and with checkpoints."""
    options = example.parser.parse_args(["--steps", "7", "--checkpoint", "3"])
    start, here = np.random.default_rng(0).normal(size=(4, 5)), (np.array([0, 3, 2]), np.array([1, 4, 0]))
    with cc.Mesh(rows=1, columns=1):

        def loss(u: Any) -> Any:
            squares = sum((found**2).sum() for found in example.simulate(u, here, options))
            return cc.all_reduce(squares, example.AXES, to=cc.I)

        check_grads(loss, ag.Parameter(example.block(start)), order=1)


@pytest.mark.parametrize("mesh", [("1", "18"), ("14", "1")])
def test_more_ranks_than_cells_is_an_error(mesh: tuple[str, str]) -> None:
    ranks = max(int(n) for n in mesh)
    options = example.parser.parse_args([*SMALL, "--mesh", *mesh])
    with pytest.raises(ag.ShapeError, match=r"which holds 0 along dimension [01](.|\n)*fix: fewer ranks"):
        cc.run(example.program, ranks, options)


def test_options_that_do_not_fit_are_refused() -> None:
    with pytest.raises(cc.MeshError, match="needed: sizes whose product is 3"):
        cc.run(example.program, 3, example.parser.parse_args([*SMALL, "--mesh", "2", "2"]))


@pytest.mark.slow
def test_the_state_is_recovered_and_drawn(tmp_path: Path) -> None:
    file = tmp_path / "waves.png"
    name = "07_domain_decomposition.py"
    alone = told(run_example(name, "process", 1, "--plot", str(file)).out)
    ours = told(run_example(name, "mpiexec", 3, "--checkpoint", "20").out)
    assert ours[:4] == alone[:4] and alone.error < 0.1
    assert file.stat().st_size > 20_000
