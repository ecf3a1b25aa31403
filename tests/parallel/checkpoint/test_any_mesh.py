"""A checkpoint of any layout is loaded by every other one, with the same bits, and the run goes on.

By default each layout is saved once and loaded by the next; ``pytest -m slow`` runs all pairs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collectives as cc
from autograd import nn, optim, random
from autograd.errors import CheckpointWarning
from parallel import Trainer, checkpoint
from parallel.checkpoint import loading
from parallel.runs import environment_of_bits

from . import layouts
from .layouts import LAYOUTS, OF_EXPERTS, assert_same, batch, logical, on_threads, trainer

pytest.importorskip("safetensors", reason="safetensors is not installed")


def saved(folder: Path, layout: dict[str, Any], experts: bool) -> dict[str, Any]:
    """Train a step, save it, and return the logical values."""

    def program() -> dict[str, Any]:
        made = trainer(layout, experts)
        made.step(*batch(0))
        made.save(folder)
        return logical(made)

    found: dict[str, Any] = on_threads(layout, program)
    return found


def loaded(folder: Path, layout: dict[str, Any], experts: bool) -> dict[str, Any]:
    def program() -> dict[str, Any]:
        made = trainer(layout, experts)
        assert made.load(folder).step == 1
        return logical(made)

    found: dict[str, Any] = on_threads(layout, program)
    return found


def following(names: list[str], step: int) -> list[tuple[str, str]]:
    return [(name, names[(i + step) % len(names)]) for i, name in enumerate(names)]


@pytest.mark.parametrize(("a", "b"), following(list(LAYOUTS), 5))
def test_another_layout_has_the_same_values(a: str, b: str, tmp_path: Path) -> None:
    assert_same(saved(tmp_path, LAYOUTS[a], False), loaded(tmp_path, LAYOUTS[b], False))


@pytest.mark.parametrize(("a", "b"), following(list(OF_EXPERTS), 2))
def test_another_layout_of_experts_has_the_same_values(a: str, b: str, tmp_path: Path) -> None:
    assert_same(saved(tmp_path, OF_EXPERTS[a], True), loaded(tmp_path, OF_EXPERTS[b], True))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("a", "experts"), [*((a, False) for a in LAYOUTS), *((a, True) for a in OF_EXPERTS)])
def test_all_other_layouts_have_the_same_values(a: str, experts: bool, tmp_path: Path) -> None:
    table = OF_EXPERTS if experts else LAYOUTS
    known = saved(tmp_path, table[a], experts)
    for layout in table.values():
        assert_same(known, loaded(tmp_path, layout, experts))


RESUMED = [
    ("dp2", "pp2"), ("pp2 dp2 zero 1", "tp3"), ("tp2 cp2", "dp3 zero 3"), ("pp3", "pp3"), ("dp2 zero 2", "dp2 zero 2"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), RESUMED)
def test_a_run_goes_on_on_another_mesh(a: str, b: str, tmp_path: Path) -> None:
    """Bitwise on the same mesh, up to rounding on another one."""

    def whole() -> Any:
        made = trainer(LAYOUTS[a])
        losses = [made.step(*batch(0)), made.step(*batch(1))]
        made.save(tmp_path, best=0.5)
        return losses + [made.step(*batch(k)) for k in (2, 3)]

    def rest() -> Any:
        made = trainer(LAYOUTS[b])
        assert made.load(tmp_path) == checkpoint.Restored(2, {"best": 0.5})
        return [made.step(*batch(k)) for k in (2, 3)]

    losses, found = on_threads(LAYOUTS[a], whole), on_threads(LAYOUTS[b], rest)
    if a == b:
        assert found == losses[2:]
    else:
        assert found == pytest.approx(losses[2:], rel=1e-10)


def test_each_value_is_written_once_and_evenly(tmp_path: Path) -> None:
    saved(tmp_path, {"dp": 4}, False)
    of_ranks = [path.stat().st_size for path in sorted(tmp_path.glob("step-*/rank-*.safetensors"))]
    bytes_of_model = sum(p.array.nbytes for p in layouts.model().parameters())
    assert len(of_ranks) == 4
    assert 3 * bytes_of_model < sum(of_ranks) < 3.2 * bytes_of_model  # and the two moments of AdamW
    assert max(of_ranks) < 1.3 * min(of_ranks)


def test_the_same_bits_on_another_mesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another kernel there is a warning: see `environment_of_bits`."""

    def rest(taken: int) -> Any:
        made = Trainer(
            layers, nn.MSELoss(reduction="sum"), cc.Mesh.fit(dp=cc.world().size), bits="same", microbatches=4,
            optimizer=lambda p: optim.AdamW(p, lr=1e-2), zero=2,
        )  # fmt: skip
        if taken:
            assert made.load(tmp_path).step == taken
        losses = [made.step(ROWS, ROWS[:, :2]) for _ in range(taken, 2)]
        if not taken:
            made.save(tmp_path)
        return losses + [made.step(ROWS, ROWS[:, :2]) for _ in range(2)]

    whole = cc.run(lambda: rest(0), 1)[0]
    assert cc.run(lambda: rest(2), 3)[0] == whole[2:]
    monkeypatch.setattr(loading, "environment_of_bits", lambda: {**environment_of_bits(), "blas_kernel": "Other"})
    with pytest.warns(CheckpointWarning, match=r"with other bits than where it was saved: blas_kernel: .* -> Other"):
        cc.run(lambda: rest(2), 2)


ROWS = np.random.default_rng(0).standard_normal((10, 3))


def layers() -> nn.Sequential:
    key = random.Key(0)
    return nn.Sequential(nn.Linear(3, 8, key=key.fold("a")), nn.Dropout(0.2), nn.Linear(8, 2, key=key.fold("b")))
