"""The stages of ZeRO: what each rank keeps of a model's parameters, gradients and optimizer state.

    mpiexec -n 4 python examples/09_sharded_state.py            four processes
    python examples/09_sharded_state.py --ranks 4               four threads of one process

The same network is trained four times. From stage to stage a rank keeps less: from 1 on a part of the optimizer's
state, from 2 on a part of the gradients, in 3 a part of the parameters. The losses are equal, because only the place of
the numbers changes. The bytes are measured, and stand beside the formulas of Rajbhandari et al. 2020, in bytes per
parameter: 16, 8 + 8/N, 4 + 12/N, 16/N.

    --plot sharded.png    draw the bytes of each stage
    --device cuda         compute on a GPU, with CuPy
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from parallel import DataParallel, Memory, memory_of

parser = argparse.ArgumentParser(description="Measure what each rank keeps in the stages of ZeRO.")
parser.add_argument("--ranks", type=int, metavar="N", help="run on N threads of this process")
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--device", default="cpu", help="where the ranks compute: cpu, cuda or cuda:0")
parser.add_argument("--plot", nargs="?", const="sharded.png", metavar="FILE", help="draw the bytes as a PNG")


def train(stage: int, options: argparse.Namespace) -> tuple[float, Memory]:
    """The loss after some steps, and the bytes on this rank."""
    random.seed(0)
    layers = [nn.Sequential(nn.Linear(options.width, options.width), nn.Tanh()) for _ in range(options.layers)]
    model = DataParallel(nn.Sequential(*layers).to(options.device), "dp", zero=stage)
    optimizer = optim.Adam(model.parameters())  # after DataParallel has divided the parameters
    rows = np.random.default_rng(1).normal(size=(32, options.width)).astype(np.float32)
    x = cc.shard(ag.tensor(rows, layout={"dp": cc.R}, device=options.device), "dp")
    for _ in range(options.steps):
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = cc.all_reduce((model(x) ** 2).sum() / x.global_shape[0], "dp", to=cc.I)
        tape.backward(loss)
        optimizer.step()
    return loss.item(), memory_of(model, optimizer)


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    ag.use_device(options.device)
    with cc.Mesh(dp=-1) as mesh:
        ranks, first = int(mesh.ranks.size), mesh.ranks.rank == 0
        numbers = options.layers * options.width * (options.width + 1)
        formulas = [16, 8 + 8 / ranks, 4 + 12 / ranks, 16 / ranks]
        found = [train(stage, options) for stage in range(4)]
        if not first:
            return
        print(f"{numbers:,} parameters in float32 on {ranks} ranks; bytes per parameter on this rank")
        print("stage   parameters  gradients  optimizer     sum  formula  gathered   loss")
        for stage, ((loss, memory), formula) in enumerate(zip(found, formulas, strict=True)):
            parts = memory.parameters, memory.gradients, memory.optimizer, memory.total
            shown = "".join(f"{n / numbers:{w}.2f}" for n, w in zip(parts, (13, 11, 11, 8), strict=True))
            print(f"{stage:5}{shown}{formula:9.2f}{memory.gathered / numbers:10.2f}   {loss:.6f}")
        if options.plot:
            plot([memory for _, memory in found], formulas, numbers, ranks, options.plot)


def plot(found: list[Memory], formulas: list[float], numbers: int, ranks: int, file: str) -> None:
    """Draw a bar for each stage, with the formula as a line."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    bottom = np.zeros(4)
    for name, color in (("parameters", "#3b6ea5"), ("gradients", "#e08a3c"), ("optimizer", "#6aa84f"),
                        ("gathered", "#c9c9c9")):  # fmt: skip
        heights = np.array([getattr(memory, name) / numbers for memory in found])
        label = "layer that is gathered" if name == "gathered" else name
        axes.bar(range(4), heights, 0.6, bottom, label=label, color=color)
        bottom += heights
    for stage, formula in enumerate(formulas):
        axes.plot([stage - 0.4, stage + 0.4], [formula] * 2, "k--", label="formula" if stage == 0 else None)
    axes.set_ylim(0, 17.5)
    axes.set_xticks(range(4), [f"stage {stage}" for stage in range(4)])
    axes.set_ylabel("bytes per parameter on a rank")
    axes.set_title(f"Model state in float32 with Adam on {ranks} ranks")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    print(f"wrote {file}")


if __name__ == "__main__":
    given = parser.parse_args()
    if given.ranks is None:
        program(given)
    else:
        cc.run(lambda: program(given), given.ranks)
