"""Ring attention, step by step: which block each rank computes, and how zigzag order balances the work.

    python examples/05_ring_attention.py --ranks 4                 four threads of one process
    mpiexec -n 4 python examples/05_ring_attention.py              four processes
    python examples/05_ring_attention.py                           one process: a ring of one step

Every rank holds the queries, keys and values of some tokens of a sequence. The keys and values travel around the ring,
and each rank computes a block of attention with those that it has. Two programs do this here: one of a few lines, made
of `cc.permute` and NumPy's functions, whose backward pass the tape derives; and `ring_self_attention`, one operation
that sends while it computes and keeps no block. Both are compared with attention on one process, and so are their
gradients.

    --tokens 8           tokens of each rank
    --plot ring.png      draw the work of each rank and step, in contiguous and in zigzag order
    --device cuda        compute on a GPU, with CuPy
"""

from __future__ import annotations

import argparse
import os
import signal
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import arrays, ops
from parallel import context

parser = argparse.ArgumentParser(description="Show the blocks of ring attention, and compare it with one process.")
parser.add_argument("--ranks", type=int, metavar="N", help="run on N threads of this process")
parser.add_argument("--tokens", type=int, default=8, metavar="N", help="tokens of each rank, an even number")
parser.add_argument("--device", default="cpu", help="where the ranks compute: cpu, cuda or cuda:0")
parser.add_argument("--plot", nargs="?", const="ring.png", metavar="FILE", help="draw the work as a PNG")

HEADS, WIDTH = 2, 4


def say(text: str = "") -> None:
    """Print on rank 0."""
    if cc.world().rank == 0:
        print(text, flush=True)


def places(order: context.Order, tokens: int, ranks: int) -> list[Any]:
    """The positions of each rank's tokens."""
    return [order.positions(rank, (tokens,) * ranks) for rank in range(ranks)]


def work(order: context.Order, tokens: int, ranks: int) -> Any:
    """The number of pairs of a query and a key that each rank computes at each step, [ranks, steps]."""
    found = np.zeros((ranks, ranks), int)
    for rank, step in np.ndindex(ranks, ranks):
        block = order.block(rank, (rank - step) % ranks, tokens)
        if block is not None:
            rows, keys = (len(range(tokens)[part]) for part in (block.rows, block.keys))
            found[rank, step] = rows * (rows + 1) // 2 if block.causal else rows * keys
    return found


def show_steps(order: context.Order, tokens: int, ranks: int) -> None:
    """Print who computes what at each step."""
    pairs = work(order, tokens, ranks)
    say(f"\n{'zigzag' if order.zigzag else 'contiguous'} order: the owner of the keys at each step, and the pairs of a "
        "query and a key")  # fmt: skip
    shown = [runs(positions) for positions in places(order, tokens, ranks)]
    width = max(map(len, [*shown, "tokens"])) + 3
    say(" " * 9 + "tokens".ljust(width) + "".join(f"step {step}".ljust(14) for step in range(ranks)) + "in all")
    for rank in range(ranks):
        cells = [f"{n} (rank {(rank - step) % ranks})" if n else "masked" for step, n in enumerate(pairs[rank])]
        row = "".join(cell.ljust(14) for cell in cells)
        say(f"[rank {rank}] {shown[rank].ljust(width)}{row}{pairs[rank].sum()}")
    longest = pairs.max(axis=0)  # the ranks wait for each other at every step
    say(f"A step takes as long as its largest block: {' + '.join(map(str, longest))} = {longest.sum()}; evenly "
        f"divided, the {pairs.sum()} pairs would take {pairs.sum() / ranks:g}.")  # fmt: skip


def runs(positions: Any) -> str:
    """Positions as text: 0-3 12-15."""
    groups = np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)
    return " ".join(f"{group[0]}-{group[-1]}" for group in groups)


def ring_by_hand(qkv: Any, positions: list[Any], device: str) -> Any:
    """Causal attention with a ring of permutes: the sums of exp(score) v and of exp(score) over all blocks."""
    on = cc.current_mesh().axis("cp")
    q, k, v = (anp.swapaxes(qkv[:, i], 0, 1) for i in range(3))  # [heads, tokens, width]
    numerator = denominator = 0
    for step in range(on.size):
        rank, owner = on.group.index, (on.group.index - step) % on.size
        seen = arrays.to_device(positions[rank][:, None] >= positions[owner], device)
        weights = anp.where(seen, anp.exp(q @ anp.swapaxes(k, -1, -2) / WIDTH**0.5), 0.0)
        numerator = numerator + weights @ v
        denominator = denominator + anp.sum(weights, -1, keepdims=True)
        if step + 1 < on.size:
            pairs = [(r, (r + 1) % on.size) for r in range(on.size)]
            k, v = cc.permute(k, "cp", pairs), cc.permute(v, "cp", pairs)
    return anp.swapaxes(numerator / denominator, 0, 1)


def compare(order: context.Order, tokens: int, ranks: int, device: str) -> None:
    """Run both programs on this rank's part; print the largest differences to one process and the bytes sent."""
    generator = np.random.default_rng(0)
    qkv, ct = (generator.normal(size=(tokens * ranks, *shape)) for shape in ((3, HEADS, WIDTH), (HEADS, WIDTH)))
    expected, pull = ag.vjp(lambda x: ops.self_attention(x, causal=True), qkv)
    whole = expected, pull(ct)

    positions, on = places(order, tokens, ranks), cc.current_mesh().axis("cp")
    mine = positions[on.group.index]
    label = cc.V if order.zigzag else cc.Shard(0)

    def part(x: Any, label: Any) -> Any:
        return cc.from_local(arrays.to_device(x[mine], device), {"cp": label})

    def fused(x: Any) -> Any:
        return context.ring_self_attention(x, "cp", zigzag=order.zigzag)

    for name, program, own in (
        ("by hand", lambda x: ring_by_hand(x, positions, device), cc.V), ("ring_self_attention", fused, label),
    ):  # fmt: skip
        sent = [on.group.traffic.bytes]
        y, pull = ag.vjp(program, part(qkv, own))
        sent.append(on.group.traffic.bytes)
        gradient = pull(part(ct, own))
        sent.append(on.group.traffic.bytes)
        errors = [abs(arrays.to_host(a.local) - b[mine]).max() for a, b in zip((y, gradient), whole, strict=True)]
        errors = [cc.all_max(ag.tensor(e), "cp").item() for e in errors]
        bytes_sent = [cc.all_reduce(ag.tensor(float(b - a)), "cp").item() for a, b in zip(sent, sent[1:], strict=False)]
        say(f"{name + ':':21}largest difference to one process: output {errors[0]:.0e}, gradient {errors[1]:.0e}; "
            f"bytes sent: forward {bytes_sent[0]:g}, backward {bytes_sent[1]:g}")  # fmt: skip


def draw(tokens: int, ranks: int, file: str) -> None:
    """Draw the pairs of each rank and step, in both orders."""
    import matplotlib

    matplotlib.use("Agg")  # draw without a screen
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(2.6 + 2 * ranks, 1.6 + 0.75 * ranks), layout="constrained")
    tables = [work(context.Order(True, zigzag), tokens, ranks) for zigzag in (False, True)]
    for panel, pairs, name in zip(panels, tables, ("contiguous", "zigzag"), strict=True):
        image = panel.pcolormesh(np.arange(-0.5, ranks), np.arange(-0.5, ranks), pairs, cmap="Blues", vmin=0,
                                 vmax=tokens * tokens, edgecolor="white", linewidth=2)  # fmt: skip
        panel.invert_yaxis()
        for rank, step in np.ndindex(ranks, ranks):
            n = pairs[rank, step]
            color = "white" if n > 0.6 * tokens * tokens else "black"
            panel.text(step, rank, str(n) if n else "masked", ha="center", va="center", color=color, fontsize=9)
        total = pairs.max(axis=0).sum()
        panel.set_title(f"{name} order: largest blocks, {total} in all", fontsize=11)
        panel.set_xticks(range(ranks), [f"step {s}" for s in range(ranks)])
        panel.set_yticks(range(ranks), [f"rank {r}" for r in range(ranks)])
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
    figure.colorbar(image, ax=panels, label="pairs of a query and a key", shrink=0.9)
    figure.savefig(file, dpi=150)
    say(f"\nwrote {file}")


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    ag.use_device(options.device)
    with cc.Mesh(cp=-1) as mesh:
        ranks, tokens = int(mesh.ranks.size), options.tokens
        say(f"ranks: {ranks}; {tokens} tokens each; causal attention with {HEADS} heads of width {WIDTH}, float64")
        for zigzag in (False, True):
            order = context.Order(causal=True, zigzag=zigzag)
            show_steps(order, tokens, ranks)
            compare(order, tokens, ranks, options.device)
        each = 2 * tokens * HEADS * WIDTH * 8
        say(f"\nThe keys and values of a rank have {each} bytes. They visit the p-1 = {ranks - 1} other ranks: forward "
            f"{ranks * (ranks - 1) * each} bytes in all,\nbackward as many for their cotangents. The program by hand "
            "keeps those of all ranks on the tape;\n`ring_self_attention` sends them again in backward, and in "
            "contiguous order only to ranks where they are not masked: half.")  # fmt: skip
        if options.plot and cc.world().rank == 0:
            draw(tokens, ranks, options.plot)


if __name__ == "__main__":
    chosen = parser.parse_args()
    if chosen.tokens < 2 or chosen.tokens % 2:
        parser.error("--tokens must be an even number")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the program without a traceback
    if chosen.ranks:
        cc.run(lambda: program(chosen), chosen.ranks)
    else:
        program(chosen)
