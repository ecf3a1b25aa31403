"""Training steps of a `Pipeline` whose bits do not depend on the number of ranks.

The microbatches of the whole batch are numbered. Each is computed on one rank of the axes of data (with a pipeline, on
one rank of each stage) as one process would compute it: outside of the mesh, from whole parameters, with random numbers
by its number. So its operations have the same operands on any mesh. The sums over microbatches have a fixed order, too:

- gradients: the tree over the numbers of the microbatches, see `parallel.data.gradient_tree`;
- the loss, and the norm of all gradients: exactly rounded sums (`math.fsum`) of the losses of the microbatches, and of
  the sums of squares of whole parameters, which do not depend on the order of the addends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd.arrays.device import device_of
from autograd.engine.leaves import Parameter
from autograd.engine.state import no_grad, outside_mesh
from autograd.engine.tensor import Tensor
from autograd.errors import OptionError
from autograd.layouts.layout import Shard
from autograd.layouts.partition import parts
from autograd.nn.substitution import substitutable, substituted
from autograd.optim.norms import sum_of_squares
from autograd.whole import place_in_whole
from collectives import Mesh

from ..data.gradient_tree import GradientTree
from .microbatches import Microbatches
from .run import Pipeline, _Run
from .schedules import Action, Schedule, make_schedule
from .simulator import simulate

__all__ = ["SameBits"]


class _NumberedRun(_Run):
    """A run of consecutive microbatches, of which the first has the number `first`."""

    def __init__(self, first: int, trees: dict[int, GradientTree], *args: Any):
        super().__init__(*args)
        self.first, self.trees = first, trees
        self.losses: list[float] = []
        self._held: dict[tuple[int, int], list[Any]] = {}  # by stage and microbatch: gradients that I has computed

    def _add(self, loss: Any) -> None:
        super()._add(loss)  # checks it
        self.losses.append(float(loss.array))

    def _backward(self, action: Action, cotangents: Any) -> list[Any]:
        found = super()._backward(action, cotangents)
        tree = self.trees[action.stage]
        if action.kind == "B":
            tree.take(self.first + action.microbatch)
        else:  # a part that is recomputed computes those of its weights here, and other microbatches may come before W
            self._held[action.stage, action.microbatch] = tree.swapped()
        return found

    def _weights(self, action: Action) -> None:
        tree = self.trees[action.stage]
        tree.swapped(self._held.pop((action.stage, action.microbatch)))
        super()._weights(action)
        tree.take(self.first + action.microbatch)


class SameBits:
    """Steps of a pipeline with the same bits on any number of ranks; see the module.

    Parameters
    ----------
    pipeline : Pipeline
        Its microbatches are those of the whole batch.
    mesh : Mesh
        All its axes are those of the pipeline and of data.
    data : sequence of str
        The axes among whose ranks the microbatches are divided.
    schedule : str or Schedule
    chunks : int, optional

    Attributes
    ----------
    norm : float
        The norm of the gradients of the last step, over all parameters.

    Raises
    ------
    OptionError
        A parameter is used in several stages, or the model has running statistics.
    """

    def __init__(
        self, pipeline: Pipeline, mesh: Mesh, data: Sequence[str], schedule: str | Schedule, chunks: int | None = None
    ):
        self.pipeline, self._mesh, self._schedule, self._chunks = pipeline, mesh, schedule, chunks
        self._on = mesh.axis(tuple(data)) if data else None
        extents, offsets = parts(pipeline.microbatches, 1 if self._on is None else self._on.size)
        self.numbers = [range(start, start + n) for start, n in zip(offsets, extents, strict=True)]
        self.mine = self.numbers[0 if self._on is None else self._on.group.index]
        self._schedules: dict[int, Schedule] = {}
        for n in sorted({n for n in extents if n}):  # on all ranks alike, so that an error is one of all ranks
            self._schedule_of(n)
        self._stages = {stage: list(dict.fromkeys(of)) for stage, of in pipeline._parameters_of.items()}
        self._refuse()
        for _, owner, attribute, _ in pipeline.named_owners():
            substitutable(owner, attribute)
        self.norm = math.nan

    def _refuse(self) -> None:
        pipeline = self.pipeline
        seen: set[int] = set()
        for tie in pipeline._ties:
            raise OptionError(_tied(tie.name))
        for parameters in self._stages.values():
            for p in parameters:
                if id(p) in seen:
                    raise OptionError(_tied(p.name))
            seen.update(map(id, parameters))
        for path, module in pipeline.named_modules():
            if getattr(module, "running_mean", None) is not None:
                raise OptionError(
                    f"bits='same': {path} ({type(module).__name__}) has running statistics, which change with each "
                    "microbatch, so that those of a rank depend on which microbatches it has\n  fix: nn.LayerNorm or "
                    "nn.GroupNorm, or track_running_stats=False"
                )

    def _schedule_of(self, n: int) -> Schedule:
        """The schedule for n microbatches."""
        found = self._schedules.get(n)
        if found is None:
            found = self._schedules[n] = make_schedule(self._schedule, self.pipeline.schedule.ranks, n, self._chunks)
            simulate(found)
        return found

    # -- the parameters --------------------------------------------------------------------------------------------
    def _leaves(self) -> dict[Parameter, Parameter]:
        """By parameter: a leaf outside of the mesh with its whole value."""
        pipeline = self.pipeline
        wraps = pipeline._wraps
        wholes = {} if wraps is None else wraps.whole_arrays()
        found = {}
        with outside_mesh():
            for p in pipeline.parameters():
                array = wholes.get(p, p.array)
                if device_of(array) != "cpu":
                    raise OptionError(
                        f"bits='same': {p.name} is on {device_of(array)}; needed: parameters on the host, where the "
                        "order of all sums is known\n  fix: device='cpu'"
                    )
                leaf = found[p] = Parameter(array, name=p.name, requires_grad=p.requires_grad)
                leaf.is_transposed = p.is_transposed
        return found

    def _run(
        self, inputs: Any, targets: Any, scale: float, leaves: dict[Parameter, Parameter],
        trees: dict[int, GradientTree] | None,
    ) -> float:  # fmt: skip
        """Compute this rank's microbatches, and return the loss of all ranks."""
        pipeline, mine = self.pipeline, self.mine
        losses: list[float] = []
        if mine:
            schedule = self._schedule_of(len(mine))
            if trees is None:
                schedule = schedule.forward_only(len(mine))
            batch = [Microbatches(np.array_split(a, pipeline.microbatches)[mine.start : mine.stop])
                     for a in (inputs, targets)]  # fmt: skip
            with outside_mesh(), substituted(leaves):
                run = _NumberedRun(mine.start, trees or {}, pipeline, schedule, *batch, trees is not None, scale)
                run.tasks()
            losses = run.losses
        call = "losses of the microbatches (Trainer with bits='same')"
        return _exact_sum(self._of_all(losses, self._mesh.ranks, call))

    def _of_all(self, values: list[float], group: Any, call: str) -> list[float]:
        """The numbers of all ranks."""
        group.agree(lambda: call)
        return [x for data in group.exchange(np.array(values, np.float64).tobytes()) for x in np.frombuffer(data)]

    # -- the public calls ------------------------------------------------------------------------------------------
    def step(self, inputs: Any, targets: Any, scale: float, has_norm: bool) -> float:
        """Set the gradients of this rank's parameters, and return the sum of the losses of the whole batch.

        Parameters
        ----------
        inputs, targets : array
            The whole batch.
        scale : float
            The cotangent of the loss.
        has_norm : bool
            Whether to compute `norm`.
        """
        pipeline = self.pipeline
        leaves = self._leaves()
        trees = {
            stage: GradientTree([leaves[p] for p in of], pipeline.microbatches)
            for stage, of in self._stages.items()
        }
        total = self._run(inputs, targets, scale, leaves, trees)
        squares: list[tuple[Any, float]] = []
        for stage, of in self._stages.items():
            for p, g in zip(of, trees.pop(stage).totals(self._on, self.numbers), strict=True):
                if g is not None and has_norm:
                    squares.append((p, sum_of_squares(g)))
                _set(p, g)
        if has_norm:
            on = pipeline._on
            mine = [x for _, x in squares]
            found = mine if on is None else self._of_all(mine, on.group, "norm of the gradients (bits='same')")
            self.norm = math.sqrt(_exact_sum(found))
        pipeline.steps += 1
        return total

    def evaluate(self, inputs: Any, targets: Any) -> float:
        """The sum of the losses of the whole batch, without gradients."""
        with no_grad():
            return self._run(inputs, targets, 1.0, self._leaves(), None)


def _set(p: Parameter, g: Any) -> None:
    """Set the gradient of a parameter, or of this rank's part of it, given that of the whole one."""
    layout = p.layout
    if g is None:
        p.grad = None
        return
    if layout is not None and any(type(label) is Shard for label in layout.labels):
        g = g[place_in_whole(p.array.shape, layout)[1]].copy()  # so the gradients of the others are freed
    p.grad = Tensor(g, None if layout is None else layout.dual)


def _exact_sum(values: Sequence[float]) -> float:
    """The sum, rounded once, so that it does not depend on the order; of what is not finite, the usual sum."""
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(sorted(values))


def _tied(name: str) -> str:
    return (
        f"bits='same': {name} is used in several stages, whose parts of its gradient are summed over the microbatches "
        "apart, in another order than in one stage\n  fix: a mesh without an axis of stages, or a parameter for each "
        "use"
    )
