"""The code that the twelve programs of this folder share: train both versions of a program and report the results.

A program is a module with

    TITLE, FROM     the fault, and where it was reported
    AXES            the axes of the mesh; -1 means all remaining ranks
    CUT             {parameter: dimension along which the ranks of the last axis shard it}; other parameters are copies
    start()         the initial values of the whole parameters
    serial(p)       the intended loss: of the whole model on all data, computed serially
    raw(mesh, p)    this rank's gradients, computed with raw collectives: wrong, without any error
    refused(mesh, p)   the same program in ringtape, which raises an error
    corrected(mesh, p)    this rank's gradients by the corrected program

It ends with ``show(sys.modules[__name__])``. Two functions are optional: `raw_start()` if the wrong version starts from
other values, and `expected(gradients)` if a step uses more than the gradient itself.

    python examples/wrong/gallery.py --ranks 3 --plot curves.png     draw all twelve programs
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import signal
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import autograd as ag
import collectives as cc

Parameters = dict[str, Any]

STEPS, RATE = 60, 0.05


def summed(group: cc.Communicator, x: Any) -> Any:
    """The sum over the ranks, computed by the transport and therefore not recorded on a tape."""
    x = np.asarray(x, float)
    return group.all_reduce(np.ascontiguousarray(x).reshape(-1)).reshape(x.shape)


def joined(group: cc.Communicator, x: Any) -> Any:
    """The rows of all ranks in order of rank, gathered by the transport."""
    counts = [int(n) for n in group.all_gather(np.array([x.size]), [1] * group.size)]
    return group.all_gather(np.ascontiguousarray(x).reshape(-1), counts).reshape(-1, *x.shape[1:])


def rows(n: int, rank: int, size: int) -> slice:
    """The part of n rows that belongs to a rank, as numpy.array_split splits them."""
    starts = np.cumsum([0, *(len(part) for part in np.array_split(np.arange(n), size))])
    return slice(int(starts[rank]), int(starts[rank + 1]))


def draw(name: str, *shape: int) -> Any:
    """Random numbers determined by the name, so equal on all ranks."""
    return np.random.default_rng(list(name.encode())).standard_normal(shape)


def mesh_of(program: ModuleType) -> cc.Mesh:
    """The program's mesh. If the number of ranks does not fit a fixed axis, the last axis gets all ranks."""
    sizes = dict(program.AXES)
    fixed = math.prod(n for n in sizes.values() if n != -1)
    if cc.world().size % fixed:
        sizes = {axis: -1 if i + 1 == len(sizes) else 1 for i, axis in enumerate(sizes)}
    return cc.Mesh(**sizes)


def own(program: ModuleType, mesh: cc.Mesh, whole: Parameters) -> Parameters:
    """The parameters on this rank: its parts of the sharded ones, and copies of the others."""
    last = mesh.axis(mesh.names[-1])
    held = {}
    for name, p in whole.items():
        dim = program.CUT.get(name)
        part = (slice(None),) * (dim or 0) + (rows(p.shape[dim or 0], last.rank, last.size),)
        held[name] = np.array(p if dim is None else p[part])
    return held


def whole(program: ModuleType, mesh: cc.Mesh, held: Parameters) -> Parameters:
    """The parameters of the whole model: the gathered parts of the sharded ones, and rank 0's copies of the others."""
    group = mesh.axis(mesh.names[-1]).group
    found = {}
    for name, p in held.items():
        dim = program.CUT.get(name)
        if dim is not None:
            found[name] = np.moveaxis(joined(group, np.moveaxis(p, dim, 0)), 0, dim)
        else:
            found[name] = mesh.ranks.broadcast(np.array(p, float).reshape(-1), 0).reshape(np.shape(p))
    return found


def train(
    program: ModuleType, mesh: cc.Mesh, corrected: bool, steps: int, measured: int = 1
) -> tuple[list[float], list[float]]:
    """Train a program. Returns the loss of the whole model, and the gradient's relative error at the first steps.

    The error at a step is the norm of the difference from the gradient of the whole model at this step, computed
    serially, divided by the norm of that gradient. `measured` is the number of steps at which it is computed.
    """
    begin = program.start() if corrected else getattr(program, "raw_start", program.start)()
    held = own(program, mesh, begin)
    losses, errors = [], []
    for step in range(steps):
        model = whole(program, mesh, held)
        losses.append(float(program.serial(model)))
        if corrected:
            with mesh:
                gradients = program.corrected(mesh, held)
        else:
            gradients = program.raw(mesh, held)
        if step < measured:
            expected = own(program, mesh, getattr(program, "expected", dict)(serial_gradients(program, model)))
            off = sum(float(((gradients[n] - expected[n]) ** 2).sum()) for n in held)
            size = sum(float((expected[n] ** 2).sum()) for n in held)
            errors.append(math.sqrt(float(summed(mesh.ranks, off)) / float(summed(mesh.ranks, size))))
        for name in held:
            held[name] = held[name] - RATE * gradients[name]
    return losses, errors


def serial_gradients(program: ModuleType, model: Parameters) -> Parameters:
    """The gradients of the whole model on all data, computed serially."""
    def loss(*parameters: Any) -> Any:
        return program.serial(dict(zip(model, parameters, strict=True)))

    return dict(zip(model, ag.grad(loss, tuple(range(len(model))))(*model.values()), strict=True))


def refusal(program: ModuleType, mesh: cc.Mesh) -> str:
    """The error that ringtape raises for the wrong program, at the first step on a mesh like `mesh`."""
    mesh = cc.Mesh(**dict(zip(mesh.names, map(int, mesh.sizes), strict=True)))  # scale is examined at some steps only
    begin = getattr(program, "raw_start", program.start)()
    try:
        with mesh:
            program.refused(mesh, own(program, mesh, begin))
    except ag.RingtapeError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"{program.__name__}: this program should have been refused")


def show(program: ModuleType) -> None:
    """Run a program of the gallery from the command line."""
    parser = argparse.ArgumentParser(description=program.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, metavar="N", help="run on N threads of this process (alone: 4)")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--plot", metavar="FILE", help="draw the losses and the gradients' errors as a PNG")
    options = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the program without a traceback
    ranks = options.ranks or (4 if cc.world().size == 1 else 0)  # one rank alone shows no fault
    if ranks:
        cc.run(lambda: report(program, options), ranks=ranks)
    else:
        report(program, options)


def report(program: ModuleType, options: argparse.Namespace) -> None:
    """Train both versions, and print the results on rank 0."""
    mesh = mesh_of(program)
    raw, raw_errors = train(program, mesh, False, options.steps, options.steps)
    good, good_errors = train(program, mesh, True, options.steps, options.steps)
    message = refusal(program, mesh)
    if mesh.ranks.rank:
        return
    print(f"{program.TITLE}   ({program.FROM}; {mesh})\n")
    print(f"{'':6}   loss of the whole model      relative error of the gradient")
    print(f"{'step':>6} {'raw collectives':>16} {'corrected':>10} {'raw collectives':>19} {'corrected':>10}")
    for step in sorted({0, 1, 2, 5, *range(10, options.steps, 10), options.steps - 1} & set(range(options.steps))):
        errors = f"{raw_errors[step]:19.2g} {good_errors[step]:10.1e}"
        print(f"{step:6} {raw[step]:16.4f} {good[step]:10.4f} {errors}")
    if raw[-1] < good[-1]:
        print("\nThe wrong program's loss ends lower: the loss does not show the fault.")
        print(f"The reason: {why_lower(program)}.")
    print(f"\nringtape's error for the same program:\n\n{message}\n")
    if options.plot:
        plot(program, (raw, raw_errors), (good, good_errors), options.plot)
        print(f"wrote {options.plot}")


def why_lower(program: ModuleType) -> str:
    """The reason why the loss of the wrong program ends lower, where it does."""
    return getattr(program, "LOWER", "by accident")


Curves = tuple[list[float], list[float]]
"""The losses of a training run, and the errors of its gradients."""


def plot(program: ModuleType, raw: Curves, good: Curves, path: str) -> None:
    """Draw the losses and the gradients' errors of a program."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2)
    draw_curves(panels, program, raw, good)
    for axes in panels:
        axes.set_xlabel("step")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, dpi=144)


def draw_curves(panels: Any, program: ModuleType, raw: Curves, good: Curves) -> None:
    """Draw the losses into the first of two axes, and the gradients' errors into the second."""
    for axes, mine, other in zip(panels, raw, good, strict=True):
        shown = [max(value, 1e-17) for value in other] if axes is panels[1] else other  # 0 has no place on a log scale
        axes.plot(mine, color="#d1443c", label="raw collectives: wrong gradient")
        axes.plot(shown, color="#4c78a8", linestyle="--", label="corrected")
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
    panels[0].set_title(program.TITLE, fontsize="medium", loc="left")
    panels[0].set_ylabel("loss of the whole model")
    if raw[0][-1] < good[0][-1]:
        why = textwrap.fill(f"lower: {why_lower(program)}", 28)
        panels[0].text(1, 1, why, ha="right", va="top", fontsize="small", transform=panels[0].transAxes)
    panels[1].set_yscale("log")
    panels[1].set_ylim(1e-18, 1e2)
    panels[1].set_yticks([1e-16, 1e-12, 1e-8, 1e-4, 1])
    panels[1].set_ylabel("gradient's relative error")


def programs() -> list[ModuleType]:
    """The twelve programs, in order."""
    found = []
    for path in sorted(Path(__file__).parent.glob("[0-9]*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        found.append(importlib.util.module_from_spec(spec))
        spec.loader.exec_module(found[-1])
    return found


def draw_all(options: argparse.Namespace) -> None:
    """Draw the losses and the gradients' errors of all programs."""
    curves = []
    for program in programs():
        mesh = mesh_of(program)
        both = (train(program, mesh, corrected, options.steps, options.steps) for corrected in (False, True))
        curves.append((program, *both))
    if cc.world().rank:
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 16.8), layout="constrained")
    grid = figure.subplots(6, 4)
    for panels, (program, raw, good) in zip(grid.reshape(12, 2), curves, strict=True):
        draw_curves(panels, program, raw, good)
    for axes in grid[-1]:
        axes.set_xlabel("step")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(options.plot, dpi=90)


def main() -> None:
    """Draw the losses and the gradients' errors of all programs in one picture."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--ranks", type=int, metavar="N", help="run on N threads of this process")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--plot", metavar="FILE", default="curves.png")
    options = parser.parse_args()
    if options.ranks:
        cc.run(lambda: draw_all(options), ranks=options.ranks)
    else:
        draw_all(options)


if __name__ == "__main__":
    main()
