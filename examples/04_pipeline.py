"""Pipeline schedules side by side, drawn, and a small model trained by one of them.

    python examples/04_pipeline.py                        four threads of one process
    python examples/04_pipeline.py --ranks 1              one process without other ranks
    mpiexec -n 4 python examples/04_pipeline.py           four processes

First the schedules for this number of ranks: what each rank does when, the bubble, and the activations that it holds.
Then a schedule that cannot run, and how it is refused. Then the training, whose losses do not depend on the number of
ranks or the schedule, with the idle share and the live activations of the last step beside the prediction.

    --plot pipeline.png      draw the timelines
    --tradeoff memory.png    draw the bubble against the activations, as the number of microbatches grows
    --device cuda            compute on a GPU, with CuPy
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from parallel.pipeline import (
    SCHEDULES,
    Costs,
    Pipeline,
    Schedule,
    Simulation,
    draw,
    plot,
    plot_tradeoff,
    simulate,
    tradeoff,
)

parser = argparse.ArgumentParser(description="Draw pipeline schedules, and train a model by one of them.")
parser.add_argument("--ranks", type=int, default=4, metavar="N", help="threads of this process, without mpiexec")
parser.add_argument("--microbatches", type=int, default=8, metavar="M")
parser.add_argument("--schedule", default="zb-v", choices=SCHEDULES, help="the one that trains")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--quick", dest="steps", action="store_const", const=20, help="20 steps, for a first look")
parser.add_argument("--device", default="cpu", help="where the ranks compute: cpu, cuda or cuda:0")
parser.add_argument("--plot", nargs="?", const="pipeline.png", metavar="FILE", help="draw the timelines as a PNG")
parser.add_argument("--tradeoff", nargs="?", const="tradeoff.png", metavar="FILE", help="draw bubble against memory")

DEADLOCK = "0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1"


def simulations(ranks: int, microbatches: int) -> list[Simulation]:
    """All schedules, where F, I and W of all stages of a rank take 2 units of time each."""
    found = []
    for make in SCHEDULES.values():
        schedule = make(ranks, microbatches)
        each = 2 * ranks / schedule.stages
        found.append(simulate(schedule, Costs(each, each, each)))
    return found


def show(options: argparse.Namespace, ranks: int) -> None:
    """Print and draw the schedules."""
    found = simulations(ranks, options.microbatches)
    for each in found:
        peak = ", ".join(f"{n:g}" for n in each.peak_activations)
        print(f"{each.schedule.name}: bubble {each.bubble_fraction:.1%}, peak activations {peak}")
        print(draw(each), end="\n\n")
    try:
        simulate(Schedule.parse(DEADLOCK))
    except cc.DeadlockError as error:
        print(f"refused before it runs:\n{str(error).rpartition(chr(10))[0]}\n")
    if options.plot:
        plot(found, options.plot)
        print(f"timelines: {options.plot}")
    if options.tradeoff:
        plot_tradeoff(tradeoff(ranks, [1, 2, 4, 8, 16, 32]), options.tradeoff)
        print(f"bubble against memory: {options.tradeoff}")


def make_layers() -> nn.Sequential:
    """A network of 8 hidden layers, whose input and output are numbers."""
    random.seed(1)
    layers: list[nn.Module] = [nn.Linear(1, 16)]
    for _ in range(8):
        layers += [nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 16), nn.Dropout(0.01)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(16, 1))


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    x = np.linspace(-3, 3, 96, dtype="float32")[:, None]
    y = np.sin(2 * x)
    device = options.device
    ag.use_device(device)
    rows, targets = ag.tensor(x, device=device), ag.tensor(y, device=device)
    with cc.Mesh(pp=-1) as mesh:
        is_first = mesh.ranks.index == 0
        if is_first:
            show(options, mesh.ranks.size)
        loss = nn.MSELoss(reduction="sum")
        layers = make_layers().to(device)
        model = Pipeline(layers, loss, schedule=options.schedule, microbatches=options.microbatches)
        optimizer = optim.Adam(model.parameters(), lr=0.01)
        for step in range(options.steps):
            optimizer.zero_grad()
            total = model.step(rows, targets, scale=1 / len(x))
            optimizer.step()
            if is_first and (step % 20 == 19 or step == 0):
                print(f"step {step + 1:>3}: loss {total / len(x):.5f}")
        report = model.report()
        model.eval()
        result = model(rows)
        if is_first:
            print(f"after training, without dropout: {float(np.mean((result.numpy() - y) ** 2)):.5f}")
            print(report)


if __name__ == "__main__":
    options = parser.parse_args()
    if cc.world().size > 1:
        program(options)
    else:
        cc.run(lambda: program(options), options.ranks)
