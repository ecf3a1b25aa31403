"""`Load`: how many tokens each expert and each rank got in one call of a mixture of experts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Load"]


@dataclass(frozen=True)
class Load:
    """The load of one call, the same on all ranks among which its tokens were divided.

    A token counts once for each of its experts.

    Attributes
    ----------
    chosen : array of int, [ranks, experts]
        How often the tokens of each rank chose each expert.
    kept : array of int, [ranks, experts]
        The same without those that were dropped because the expert had no capacity left.
    sizes : tuple of int
        The sizes of the mesh axes that divide the tokens, in the mesh's order; their ranks are those above.
    along : int or None
        Which of these axes divides the experts.
    extents : tuple of int
        The number of experts of each rank of that axis.

    Examples
    --------
    >>> import numpy
    >>> from parallel.expert import MixtureOfExperts
    >>> layer = MixtureOfExperts(4, 8, experts=3, top_k=2)
    >>> _ = layer(numpy.ones((5, 4), "float32"))
    >>> layer.load.experts.sum(), layer.load.dropped, layer.load.expert_imbalance
    (np.int64(10), 0, 1.5)
    """

    chosen: Any
    kept: Any
    sizes: tuple[int, ...]
    along: int | None
    extents: tuple[int, ...]

    @property
    def experts(self) -> Any:
        """The tokens of each expert, [experts]."""
        return self.kept.sum(0)

    @property
    def ranks(self) -> Any:
        """The tokens that each rank's experts work on, [ranks]."""
        if self.along is None:
            return self.kept.sum(1)
        by_place = self.kept.reshape(*self.sizes, -1).sum(self.along)  # of the tokens of all ranks of the axis
        bounds = np.cumsum([0, *self.extents])
        parts = [by_place[..., a:b].sum(-1) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
        return np.stack(parts, self.along).reshape(-1)

    @property
    def dropped(self) -> int:
        """The number of choices that were dropped."""
        return int(self.chosen.sum() - self.kept.sum())

    @property
    def expert_imbalance(self) -> float:
        """The load of the busiest expert, divided by the mean. 1 is a perfect balance."""
        return _imbalance(self.experts)

    @property
    def rank_imbalance(self) -> float:
        """The load of the busiest rank, divided by the mean: by how much its work delays the others."""
        return _imbalance(self.ranks)

    def __str__(self) -> str:
        lines = [
            f"{int(self.chosen.sum())} tokens for {len(self.experts)} experts on {len(self.ranks)} "
            f"rank{'s' * (len(self.ranks) != 1)}, {self.dropped} dropped; busiest / mean: experts "
            f"{self.expert_imbalance:.2f}, ranks {self.rank_imbalance:.2f}",
            *_table("expert", self.experts, self.chosen.sum(0) - self.experts),
            *_table("rank", self.ranks, None),
        ]
        return "\n".join(lines)

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Draw the load of each expert, dropped tokens in another colour, and of each rank, as a PNG."""
        from matplotlib.figure import Figure  # optional; pyplot is not thread-safe and needs a display

        figure = Figure(figsize=(9, 3.2), layout="constrained")
        widths = [max(len(each), 4) for each in (self.experts, self.ranks)]
        draw_load(self, figure.subplots(1, 2, width_ratios=widths))
        figure.savefig(path, dpi=150)


def draw_load(load: Load, panels: Any, title: str = "") -> None:
    """Draw a load on two axes of matplotlib: that of the experts and that of the ranks."""
    for axes, name, values in zip(panels, ("expert", "rank"), (load.experts, load.ranks), strict=True):
        at = range(len(values))
        axes.bar(at, values, color="tab:blue", label="worked on")
        if name == "expert" and load.dropped:
            axes.bar(at, load.chosen.sum(0) - values, bottom=values, color="tab:red", label="dropped")
            axes.legend(frameon=False)
        axes.axhline(np.mean(values), color="0.3", linestyle=":", linewidth=1)
        axes.set(xlabel=name, ylabel="tokens", xticks=at,
                 title=f"{title}busiest {name} / mean: {_imbalance(values):.2f}")  # fmt: skip
        axes.spines[["top", "right"]].set_visible(False)


def _imbalance(values: Any) -> float:
    mean = float(np.mean(values))
    return float(np.max(values)) / mean if mean else 1.0


def _table(name: str, values: Any, dropped: Any) -> list[str]:
    total, most = max(int(values.sum()), 1), max(int(values.max()), 1)
    lines = [f"  {name:>6}  tokens   share" + ("" if dropped is None else "  dropped")]
    for i, n in enumerate(values):
        lost = "" if dropped is None else f"  {int(dropped[i]):>7}"
        lines.append(f"  {i:>6}  {int(n):>6}  {100 * n / total:>5.1f}%{lost}  {'#' * round(24 * n / most)}")
    return lines
