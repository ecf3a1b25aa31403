"""The step of a `Trainer` without stages as one function that `autograd.capture` can record and replay.

It does what `Pipeline.step` does with one stage, and reaches nothing that a step changes besides parameters, gradients
and the optimizer: no count of steps, no times, no total.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import autograd as ag
from autograd import optim
from autograd.engine.state import state
from autograd.engine.tensor import Tensor
from autograd.random.keys import Key, keys_below

from .pipeline import Pipeline

__all__ = ["captured_step"]


def captured_step(pipeline: Pipeline) -> Callable[..., Any]:
    """Return a captured function of the scale, the inputs and the targets of a step.

    Parameters
    ----------
    pipeline : Pipeline
        With one stage.

    Returns
    -------
    callable
        Its arguments are the cotangent of each loss, a float64 array without dimensions, the key of the step, whose
        seed is that of `seed_of_layers` for the first microbatch, the inputs and targets of each microbatch, the
        optimizer, and the largest norm of all gradients or None. Its result is the list of their losses, and the norm
        of the gradients or None.
    """
    stage = pipeline.stages[0]
    layers = [pipeline._modules[str(i)] for i in stage]
    of_loss, wraps = pipeline.loss, pipeline._wraps
    side_losses = pipeline._side_losses
    assert side_losses is not None  # a trainer's pipeline collects them
    parameters = list(pipeline.parameters())

    def step(
        scale: Any, key: Key, inputs: Sequence[Any], targets: Sequence[Any], optimizer: optim.Optimizer, clip: Any
    ) -> tuple[list[Any], Any]:
        optimizer.zero_grad()
        losses: list[Any] = []

        def microbatches() -> None:
            for i, (x, y) in enumerate(zip(inputs, targets, strict=True)):
                with ag.Tape() as tape, side_losses() as side:
                    for index, layer in zip(stage, layers, strict=True):
                        with keys_below(key, i << 32 | index):
                            x = layer(x)
                    with keys_below(key, i << 32 | pipeline._last):
                        objective = [of_loss(x, y), *side]
                losses.extend(objective)
                seeds = [loss for loss in objective if loss.tape is tape.recording]
                if seeds:
                    tape.backward(seeds, [_cotangent(scale, loss) for loss in seeds])

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


def _cotangent(scale: Any, loss: Tensor) -> Tensor:
    """The scale as a cotangent of a loss."""
    return Tensor(scale, None if loss.layout is None else loss.layout.dual).astype(loss.array.dtype)
