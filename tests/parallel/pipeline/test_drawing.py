"""Drawings of schedules: texts, and PNG files that have the content that they should have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autograd.errors import DependencyError, OptionError
from parallel.pipeline import Costs, draw, gpipe, one_f_one_b, plot, plot_tradeoff, simulate, tradeoff, zb_h1, zb_v


def test_text() -> None:
    assert draw(zb_h1(2, 2)).splitlines() == [
        "rank 0  F0 F1 .  I0 W0 I1 W1",
        "rank 1  .  F0 I0 F1 I1 W0 W1",
    ]
    assert draw(zb_v(2, 1)).splitlines()[0].split()[2:] == ["0F0", ".", ".", "3F0", "3I0", "3W0", ".", "0I0", "0W0"]
    half = draw(simulate(gpipe(2, 1), Costs(0.5, 1.0, 0.5)))
    assert half.splitlines()[0].split()[2:] == ["F0", ".", ".", ".", ".", "B0", "-", "-"]


def test_times_without_a_unit() -> None:
    with pytest.raises(OptionError, match="units of time; needed: at most 400"):
        draw(simulate(gpipe(2, 8), Costs(0.333, 1.0, 0.7)))


def test_pictures(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    one, several, line = tmp_path / "one.png", tmp_path / "several.png", tmp_path / "line.png"
    plot(one_f_one_b(3, 4), one)
    plot([one_f_one_b(3, 4), simulate(zb_v(3, 4), Costs(0.5, 0.5, 0.5))], str(several))
    plot_tradeoff(tradeoff(3, [1, 2, 4]), line)
    shapes = [image.imread(path).shape for path in (one, several, line)]
    assert shapes[1][0] > 1.5 * shapes[0][0] and all(s[1] > 600 for s in shapes)
    pixels = image.imread(one)[..., :3].reshape(-1, 3)
    for color in ((0x48, 0x78, 0xA8), (0x6A, 0xA5, 0x6A)):  # forward, backward
        assert (abs(pixels * 255 - color).max(axis=1) < 2).mean() > 0.05


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> Any:
        raise ImportError("no matplotlib")

    monkeypatch.setattr("autograd.doors.import_module", missing)
    with pytest.raises(DependencyError, match="plot needs matplotlib"):
        plot(gpipe(1, 1), tmp_path / "x.png")


def test_tradeoff() -> None:
    found = tradeoff(4, [4, 8, 16])
    for name, points in found.items():
        bubbles = [bubble for _, bubble, _ in points]
        assert bubbles == sorted(bubbles, reverse=True), name
    assert [peak for *_, peak in found["gpipe"]] == [4, 8, 16]
    assert [peak for *_, peak in found["zb-v"]] == [4, 4, 4]
    assert found["interleaved"][1][1] == pytest.approx(3 / (2 * 8 + 3))  # costs are those of a rank's stages together
    with pytest.raises(OptionError, match="costs of single stages"):
        tradeoff(2, [2], costs=Costs([1.0, 2.0]))
