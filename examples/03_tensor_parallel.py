"""One linear layer divided over the ranks in both ways, by columns and by rows, with the collective of every adjoint.

    python examples/03_tensor_parallel.py                      one process
    python examples/03_tensor_parallel.py --ranks 2            two threads of one process
    mpiexec -n 3 python examples/03_tensor_parallel.py         three processes

The layer is y = x A + b. Divided by columns, each rank computes some of the outputs from the whole x. Divided by rows,
each rank has some of the inputs, and computes an addend of all outputs. The weights are slices of one matrix, so output
and gradients equal those of the whole layer, which is computed beside them.

    --device cuda         compute on a GPU, with CuPy
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

import autograd as ag
import collectives as cc
from autograd import events, nn, random
from collectives import I, Shard
from parallel import Column, Row, parallelize

INPUTS, OUTPUTS, ROWS = 6, 5, 2

parser = argparse.ArgumentParser(description="Divide a linear layer by columns and by rows.")
parser.add_argument("--ranks", type=int, metavar="N", help="run on N threads of this process")
parser.add_argument("--device", default="cpu", help="where the ranks compute: cpu, cuda or cuda:0")


class Step(NamedTuple):
    """A collective, its adjoint, and the reason for both."""

    forward: str
    adjoint: str
    why: str
    why_adjoint: str


class Way(NamedTuple):
    """A way to divide the layer: its style, functions around it that make both ends whole, and its collectives."""

    name: str
    style: Column | Row
    part: Callable[[ag.Tensor], ag.Tensor]
    whole: Callable[[ag.Tensor], ag.Tensor]
    steps: list[Step]


WAYS = [
    Way("by columns: y_r = x A_r + b_r", Column("tp"), lambda x: x, lambda y: cc.all_gather(y, "tp", 1, to=I), [
        Step("cast I->R", "all_reduce(to=I)",
             "nothing is sent: from here on each rank uses x separately, for its own columns",
             "each rank has an addend of the cotangent of x, ct_r A_r': their sum over the ranks"),
        Step("all_gather", "shard", "only to print y: a row layer would take the parts",
             "nothing is sent: each rank keeps the cotangent ct_r of its own outputs"),
    ]),
    Way("by rows: y = sum_r x_r A_r + b", Row("tp"), lambda x: cc.shard(x, "tp", 1), lambda y: y, [
        Step("shard", "all_gather(to=I)", "only because x is whole: a column layer would give the parts",
             "the cotangents of all parts of x, ct A_r'"),
        Step("cast to P", "cast R->I", "nothing is sent: the bias is an addend of the first rank, so it counts once",
             "nothing is sent: each rank has the whole cotangent of the bias"),
        Step("all_reduce", "cast I->R", "y is the sum of the addends x_r A_r",
             "nothing is sent: every addend has weight 1 in the sum, so its cotangent is ct itself"),
    ]),
]  # fmt: skip


def make_layer(device: str = "cpu") -> nn.Linear:
    """The same layer on every rank."""
    return nn.Linear(INPUTS, OUTPUTS, dtype=float, key=random.Key(0)).to(device)


def numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(float)


def say(text: str) -> None:
    """Print on rank 0."""
    if cc.world().rank == 0:
        print(text, flush=True)


@contextmanager
def printing(way: Way) -> Iterator[None]:
    """Print the collectives of the block and their adjoints as they run."""
    by_name = {step.forward: step for step in way.steps}
    sweeping: list[str] = []  # the operation whose adjoint runs; an adjoint may itself be a collective

    def listen(phase: str, direction: str, name: str) -> None:
        step = by_name.get(name)
        if direction == "backward" and step is not None and phase == "begin":
            say(f"  backward  {step.adjoint}, the adjoint of {name}\n            {step.why_adjoint}")
        elif phase == "begin" and step is not None and not sweeping:
            say(f"  forward   {name}\n            {step.why}")
        if direction == "backward":
            sweeping[:] = [name] if phase == "begin" else []

    with events.listening(listen):
        yield


def show(way: Way, device: str) -> None:
    """Run the divided layer forward and backward, and compare it with the whole one."""
    say(f"\n{way.name}")
    rows, cotangents = numbers((ROWS, INPUTS), 1), ag.constant(numbers((ROWS, OUTPUTS), 2), device=device)

    layer = parallelize(make_layer(device), {"*": way.style})
    x = ag.tensor(rows, layout={"tp": I}, requires_grad=True, device=device)
    with printing(way):
        with ag.Tape() as tape:
            y = way.whole(layer(way.part(x)))
            loss = (y * cotangents).sum()
        tape.backward(loss)

    for name, p in layer.named_parameters():
        part = tuple(int(n) for n in p.shape)
        cc.in_order(f"{name}: {part} of {p.global_shape}, {p.layout['tp']!r}; its gradient is {p.grad.layout['tp']!r}")

    whole = make_layer(device)
    expected = ag.tensor(rows, layout={"tp": I}, requires_grad=True, device=device)
    with ag.Tape() as tape:
        serial = whole(expected)
        loss = (serial * cotangents).sum()
    tape.backward(loss)
    gaps = [np.abs(y.numpy() - serial.numpy()).max(), np.abs(x.grad.numpy() - expected.grad.numpy()).max()]
    for mine, theirs in zip(layer.parameters(), whole.parameters(), strict=True):
        label, gradient = mine.layout["tp"], mine.grad
        if isinstance(label, Shard):
            gradient = cc.all_gather(gradient, "tp", label.dim)
        gaps.append(np.abs(gradient.numpy() - theirs.grad.numpy()).max())
    say(f"  largest difference from the whole layer, of y and all gradients: {max(gaps):.0e}")


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    ag.use_device(options.device)
    with cc.Mesh(tp=-1):
        say(f"ranks: {cc.world().size}. A is {INPUTS} x {OUTPUTS}, x is {ROWS} x {INPUTS}.")
        for way in WAYS:
            show(way, options.device)
        say("\nA column layer and a row layer after it need one sum forward and one backward: the parts between them "
            "are never gathered.")  # fmt: skip


if __name__ == "__main__":
    options = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the program without a traceback
    if options.ranks:
        cc.run(program, options.ranks, options)
    else:
        program(options)
