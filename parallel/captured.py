"""The step of a `Trainer` without stages as one function that `autograd.capture` can record and replay.

It does what `Pipeline.step` does with one stage, and reaches nothing that a step changes besides parameters, gradients
and the optimizer: no count of steps, no times, no total.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import autograd as ag
from autograd import optim, random
from autograd.engine.state import state
from autograd.engine.tensor import Tensor
from autograd.errors import CaptureError

from .expert.side_losses import side_losses
from .pipeline import Pipeline

__all__ = ["captured_step"]


def captured_step(pipeline: Pipeline, optimizer: optim.Optimizer, clip: float | None) -> Callable[..., Any]:
    """Return a captured function of the scale, the inputs and the targets of a step.

    Parameters
    ----------
    pipeline : Pipeline
        With one stage.
    optimizer : Optimizer
    clip : float or None
        The largest norm of all gradients.

    Returns
    -------
    callable
        Its arguments are the cotangent of each loss, a float64 array without dimensions, and the inputs and targets of
        each microbatch; its result is the list of their losses, and the norm of the gradients or None.
    """
    layers = [pipeline._modules[str(i)] for i in pipeline.stages[0]]
    of_loss, wraps = pipeline.loss, pipeline._wraps
    parameters = list(pipeline.parameters())

    def step(scale: Any, inputs: Sequence[Any], targets: Sequence[Any]) -> tuple[list[Any], Any]:
        optimizer.zero_grad()
        losses: list[Any] = []

        def microbatches() -> None:
            for x, y in zip(inputs, targets, strict=True):
                with ag.Tape() as tape, side_losses() as others:
                    before = random.get_state()
                    for layer in layers:
                        x = layer(x)
                    loss = of_loss(x, y)
                    if random.get_state() != before:
                        raise CaptureError(
                            "Trainer(capture=True): a layer draws random numbers, whose seeds are others in each step "
                            "and microbatch\n  fix: capture=False; or layers that draw none, as with dropout of p=0"
                        )
                    if list(others):
                        raise CaptureError(
                            "Trainer(capture=True): a layer has a side loss, whose value depends on its routing\n  "
                            "fix: capture=False"
                        )
                losses.append(loss)
                if loss.tape is tape.recording:
                    layout = None if loss.layout is None else loss.layout.dual
                    tape.backward([loss], [Tensor(scale, layout).astype(loss.array.dtype)])

        if wraps is None:
            with nullcontext() if state.mesh is None else state.mesh.accumulating():
                microbatches()
        else:
            with wraps.accumulate():
                wraps.forward(microbatches)
        norm = None if clip is None else optim.clip_grad_norm_(parameters, clip)
        optimizer.step()
        return losses, norm

    return ag.capture(step)
