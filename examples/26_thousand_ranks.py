"""A data-parallel step on 1 to 1,024 ranks, predicted: what communication adds, and what takes it away.

    python examples/26_thousand_ranks.py                     one process, which is enough
    python examples/26_thousand_ranks.py --plot ranks.png    draw the overhead over the number of ranks

The step of one rank is stated: forward, backward and optimizer, and the gradients in buckets of 25 MB that are complete
one after the other. Hosts of 8 ranks have fast links inside and slow ones between them. The same sums are predicted by
a ring after backward, beside backward, by hosts (inside each host, then between them), and compressed. The *overhead*
is the time that communication adds to the step. Look for three things:

- Where the slow link begins, between 8 and 16 ranks, and how little changes from there to 1,024: each rank of a ring
  sends the same bytes whatever the number of ranks. Only the latency of its steps grows.
- Overlap, and sums by hosts, bring an overhead of about a half under 10 %.
- Compression is no remedy for everything: the top 1 % of each rank is another choice on each rank, so that their bytes
  grow with the number of ranks. From about a hundred ranks on it sends more than the whole gradient.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import collectives as cc
from parallel.data.overlap import predict_step

parser = argparse.ArgumentParser(description="Predict a data-parallel step on up to 1,024 ranks.")
parser.add_argument("--megabytes", type=float, default=100.0, help="of all gradients")
parser.add_argument("--step-ms", type=float, default=300.0, help="of one rank: a third forward, the rest backward")
parser.add_argument("--gbit", type=float, default=10.0, help="the link between hosts, in Gbit/s")
parser.add_argument("--plot", nargs="?", const="ranks.png", metavar="FILE", help="draw the overhead as a PNG")

RANKS = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]


def overheads(options: argparse.Namespace) -> dict[str, list[float]]:
    """For each way the overhead in percent of the step, for each number of ranks."""
    step_s, size = options.step_ms / 1e3, options.megabytes * 1e6
    machine = cc.Topology(8, inside=cc.Link(2e-6, 100e9), between=cc.Link(10e-6, options.gbit * 1e9 / 8))
    count = max(1, round(size / 25e6))
    forward_s, backward_s = step_s / 3, 2 * step_s / 3
    ready = [backward_s * (k + 1) / count for k in range(count)]

    def percent(ranks: int, bytes_of_all: float, calls: str = "all_reduce", **how: object) -> float:
        each = bytes_of_all / count
        buckets = [each if calls == "all_reduce" else [(calls, each)]] * count
        step = predict_step(ready, buckets, backward_s, ranks=ranks, topology=machine, forward_s=forward_s, **how)
        return 100 * step.exposed_s / step_s

    return {
        "a ring, after backward": [percent(p, size, overlap=False) for p in RANKS],
        "a ring, beside backward": [percent(p, size) for p in RANKS],
        "by hosts, beside backward": [
            percent(p, size, algorithm="hierarchical" if p > 8 else "ring") for p in RANKS],  # fmt: skip
        "int8, a ring, after backward": [percent(p, size / 4, overlap=False) for p in RANKS],
        # indices of 4 bytes and values of 4 bytes of 1 %, from each rank to each
        "top 1 %, after backward": [percent(p, 0.02 * size * p, "all_gather", overlap=False) for p in RANKS],
    }


def draw(found: dict[str, list[float]], path: str) -> None:
    """Draw the overhead over the number of ranks."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4), layout="constrained")
    axes = figure.subplots()
    for name, values in found.items():
        style = "--" if name.startswith("int8") else "-"  # it lies on the ring beside backward
        axes.plot(RANKS, [max(v, 0.05) for v in values], style, marker="o", markersize=4, label=name)
    axes.axhline(10, color="0.5", linestyle=":", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="ranks, 8 on each host", ylabel="overhead of communication in %")
    axes.set_xticks(RANKS, [str(p) for p in RANKS])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    options = parser.parse_args()
    found = overheads(options)
    print(f"{options.megabytes:g} MB of gradients, a step of {options.step_ms:g} ms, "
          f"{options.gbit:g} Gbit/s between hosts")  # fmt: skip
    print(f"{'overhead in %, ranks:':30}" + "".join(f"{p:>8}" for p in RANKS))
    for name, values in found.items():
        print(f"{name:30}" + "".join(f"{v:8.1f}" for v in values))
    if options.plot:
        draw(found, options.plot)
        print(f"overhead: {options.plot}")
