"""`Pipeline`: a model whose layers are divided among the ranks of an axis, and trained by a schedule."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from autograd.arrays.capture import refuse_recorded
from autograd.arrays.device import to_host, zeros_on
from autograd.doors import door
from autograd.engine.deferral import Rest
from autograd.engine.leaves import Leaf, Parameter
from autograd.engine.objective import refuse_complex_objective, require_one_number
from autograd.engine.pytree import flatten
from autograd.engine.state import no_grad, state
from autograd.engine.tape import Tape
from autograd.engine.tensor import TENSORS, Tensor
from autograd.errors import ArgumentError, OptionError, ShapeError, TapeError, typed_errors
from autograd.layouts.layout import I, Layout, P, R
from autograd.nn import Module, ModuleList
from autograd.nn.substitution import substitutable, substituted
from autograd.optim.hyperparameters import check_count
from autograd.random.keys import begin_state, hold_state, put_back
from collectives.transports.protocol import Request

from ..data.data_parallel import DataParallel
from ..data.memory import saved_bytes
from ..data.settings import Zero, stage_of
from .microbatches import Division, Microbatches, signature_of, split_batch
from .randomness import seed_of_layers
from .report import PipelineReport, Record, compare
from .schedules import Action, Schedule, make_schedule
from .simulator import simulate
from .stages import Borrowed, Tie, find_ties, layers_of_stages, name_parameters, place, release
from .transfers import Outline, Transfers

__all__ = ["Pipeline"]


class _Layers(ModuleList):
    """The layers of one rank, under the names that they have in the whole model. Its `forward` calls a function."""

    def __init__(self, named: Sequence[tuple[str, Module]]):
        super().__init__([module for _, module in named])
        self.paths = [name for name, _ in named]

    def _members(self) -> Iterable[tuple[str, Module]]:
        return zip(self.paths, self.layers, strict=True)

    def forward(self, function: Callable[[], Any]) -> Any:
        return function()


class _Pass:
    """One microbatch in one stage, from its forward pass to the end of its backward pass."""

    __slots__ = ("begun", "leaves", "outputs", "rest", "scale", "seeds", "tape", "watched")

    def __init__(self, tape: Tape, leaves: list[Leaf]):
        self.tape = tape
        self.leaves = leaves  # the values that the stage got
        self.watched: list[Tensor] = []  # the same, on the tape
        self.begun: list[Tensor] = []  # in the first stage: the result of its first layer
        self.outputs: list[Tensor] = []
        self.seeds: list[Tensor] = []  # the objectives that arise in this stage
        self.scale: Any = None  # the cotangent of each
        self.rest: Rest | None = None


class Totals:
    """The sums of the losses of a step, by their layouts.

    Parameters
    ----------
    axis : str or None
        The axis of the stages, along which one rank has a loss.
    """

    def __init__(self, axis: str | None):
        self.axis = axis
        self._of: dict[Layout | None, Any] = {}

    def add(self, loss: Any) -> None:
        """Add a loss to the sum of those with its labels."""
        if loss.__class__ not in TENSORS or loss.array.shape:
            shown = f"{type(loss).__name__} of shape {getattr(loss, 'shape', '?')}"
            raise ShapeError(
                f"Pipeline: the loss is {shown}; needed: a Tensor without dimensions, the sum of the losses of a "
                "microbatch\n  fix: reduction='sum', or .sum()"
            )
        if loss.array.dtype.kind == "c":
            refuse_complex_objective("Pipeline", loss.array.dtype)
        layout = loss.layout
        if layout is not None:
            require_one_number(layout if self.axis is None else layout.replace((self.axis,), I), (), state.unstated)
        value = float(loss.array) if isinstance(loss.array, _HOST) else loss.array.astype(np.float64)
        self._of[layout] = self._of.get(layout, 0.0) + value  # on a GPU, where it is read once, by `total`

    def total(self) -> float:
        """The sum of all, over the ranks that hold addends too. All ranks call it."""
        total = 0.0
        for layout, found in self._of.items():
            value = float(to_host(found)) if not isinstance(found, float) else found
            for axis, label in () if layout is None else layout.items():
                if label is P and axis != self.axis:
                    (value,) = _summed(state.mesh.axis(axis).group, value)
            total += value
        return total


class Steps:
    """The number of steps of a pipeline or a trainer, on which random numbers depend, as a state.

    Parameters
    ----------
    owner : object
        It has an attribute ``steps``.
    """

    def __init__(self, owner: Any):
        self.owner = owner

    def state_dict(self) -> dict[str, int]:
        """Return the number."""
        return {"steps": self.owner.steps}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Set the number."""
        self.prepare_state_dict(state_dict)()

    def prepare_state_dict(self, state_dict: Mapping[str, Any]) -> Callable[[], None]:
        """Check a state, and return the function that sets it."""
        n = state_dict["steps"]
        check_count("load_state_dict", steps=n)
        return lambda: setattr(self.owner, "steps", n)


@typed_errors
class Pipeline(Module):
    """Run the layers of a model in stages, one stage or several on each rank of an axis, by a schedule.

    Every rank makes the whole model and keeps the layers of its own stages; the memory of the others' parameters is
    freed. All ranks call `step` with the same batch along the axis. It divides the rows into microbatches, and adds to
    the gradients of this rank's parameters. The sum over the microbatches is the gradient of the whole batch.

    Parameters
    ----------
    layers : Sequential, or sequence of Module
        Each takes what the one before returns, a Tensor or a tuple of Tensors. Parameters are Invariant on `axis` (or
        have no label); those that the rank keeps become Varying there. A parameter that several layers have is one
        parameter: the first stage that uses it owns it.
    loss : Module or callable
        ``loss(y, targets)`` returns the sum of the losses of a microbatch, a number. Without targets ``loss(y)``. It is
        Invariant or Partial on the other axes.
    axis : str or None
        The axis of the pipeline. With None, or without a mesh, all stages are in this process.
    schedule : str or Schedule
        ``"gpipe"``, ``"1f1b"``, ``"interleaved"``, ``"zb-h1"``, ``"zb-v"``, a text with a line of actions for each
        rank, or a `Schedule`.
    microbatches : int
    chunks : int, optional
        The stages on each rank of the schedule ``"interleaved"``, by default 2.
    costs : sequence of float, optional
        The cost of each layer, by which the stages are balanced. By default the number of its parameters'
        elements; `measured_costs` measures them.
    data : str or tuple of str
        The mesh axes over which the batch is divided. The parameters enter once a step by `DataParallel`, which sums
        the gradients of all microbatches over these axes once.
    zero : {0, 1, 2, 3} or Zero
        The stage of ZeRO, if `data` is given: see `DataParallel`. Stage 3 is not possible with a schedule that has I
        and W, or where several ranks use one parameter.
    seed : int
        For layers that draw random numbers; see `layer_state`.
    side_losses : callable, optional
        ``side_losses()`` is a context manager whose value is a list, to which layers that run in its block append
        further losses: sums over tokens, which are added to the objective.
    **options
        Of `DataParallel`.

    Attributes
    ----------
    schedule : Schedule
    stages : list of range
        The layers of each stage.
    steps : int
        The number of steps that have been made. Random numbers depend on it. `nn.save` of the pipeline includes it.
    record : Record
        The actions of the last step with their times, and the largest number of live activations.

    Raises
    ------
    OptionError
        An option is unknown or out of range, the schedule is for other numbers of ranks or microbatches, or the model
        has fewer layers than stages.
    DeadlockError
        The ranks would wait for each other: see `simulate`. Nothing has been sent yet.
    LayoutError
        A parameter is not Invariant on `axis`.
    AbsentError
        The model has been divided before.

    Notes
    -----
    Each stage and microbatch has a tape. A value that arrives is a leaf with the labels of the sender's value; its
    cotangent goes back in the same way. A microbatch of n bytes of activations is one message of n bytes between two
    stages, and one back. A header of 1 KiB comes with the first of each shape. A step ends with one all-reduce of the
    loss, a number.

    The gradients do not depend on the schedule, except for the order of the sums over microbatches.

    Examples
    --------
    >>> import collectives as cc, numpy
    >>> from autograd import nn, random
    >>> from parallel.pipeline import Pipeline
    >>> def program():
    ...     random.seed(0)
    ...     layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    ...     with cc.Mesh(pp=2):
    ...         model = Pipeline(layers, lambda y, t: ((y - t) ** 2).sum(), microbatches=4)
    ...         x = numpy.arange(24, dtype="float32").reshape(8, 3) / 24
    ...         loss = model.step(x, x[:, :1], scale=1 / 8)
    ...         return round(loss, 3), [name for name, p in model.named_parameters() if p.grad is not None]
    >>> cc.run(program, ranks=2)
    [(4.992, ['0.weight', '0.bias']), (4.992, ['2.weight', '2.bias'])]
    """

    _others = ("_ties", "_borrowed", "_parameters_of")  # parameters of layers on other ranks

    def __init__(
        self,
        layers: Any,
        loss: Callable[..., Any],
        *,
        axis: str | None = "pp",
        schedule: str | Schedule = "1f1b",
        microbatches: int,
        chunks: int | None = None,
        costs: Sequence[float] | None = None,
        data: str | Sequence[str] = (),
        zero: int | Zero = 0,
        seed: int = 0,
        side_losses: Callable[[], AbstractContextManager[list[Any]]] | None = None,
        **options: Any,
    ):
        layers = list(layers)
        for i, layer in enumerate(layers):
            if not isinstance(layer, Module):
                raise ArgumentError(f"Pipeline: layer {i} is {layer!r}; needed: a Module")
        if not callable(loss):
            raise ArgumentError(f"Pipeline: loss={loss!r} was given; needed: a Module, or a function")
        if getattr(loss, "reduction", "sum") == "mean":
            raise OptionError(
                f"Pipeline: loss={loss!r} was given, which is the mean over a microbatch; needed: the sum. `scale` of "
                "step divides it by the number of rows of the whole batch\n  fix: reduction='sum'"
            )
        name_parameters((str(i), layer) for i, layer in enumerate(layers))
        on: Any = None if state.mesh is None or axis is None else state.mesh.axis(axis)
        self.axis = None if on is None else axis
        self.rank: int = 0 if on is None else on.group.index
        ranks: int = 1 if on is None else on.size
        self.schedule = make_schedule(schedule, ranks, microbatches, chunks)
        self._splits = self.schedule.splits_backward
        simulate(self.schedule)  # raises DeadlockError, before anything is sent
        self.microbatches, self.seed, self.steps = microbatches, seed, 0
        self.stages = layers_of_stages(layers, self.schedule.stages, costs, self.axis)
        self.loss, self._side_losses = loss, side_losses
        self._last = len(layers)  # the number of the loss among the layers
        self._ties: list[Tie] = []
        placement = self.schedule.placement
        named = [(str(i), layers[i], placement[s]) for s, of in enumerate(self.stages) for i in of]
        if isinstance(loss, Module):
            named.append(("loss", loss, placement[-1]))
        self._ties = find_ties(named)
        self._layers = self._divide(named)
        self._wraps = self._data_parallel(data, zero, options)
        self._parameters_of = self._by_stage()
        self._transfers = None
        if on is not None and on.size > 1:
            on.kept["pipelines"] = number = on.kept.get("pipelines", 0) + 1
            self._transfers = Transfers(on.group.duplicate(f"pipeline {number}"), on.names[0])
        if on is not None and axis not in state.mesh.stage_axes:
            state.mesh.stage_axes = (*state.mesh.stage_axes, axis)
        self._on = on
        self._kinds: dict[Any, int] = {}
        # Both grow with the shapes of batches, as `_kinds` does.
        self._divisions: dict[Any, Division] = {}
        self._runs: dict[Any, tuple[list[int], str]] = {}  # without it, 4 microbatches take 80 us longer
        self.record = Record(self.rank, [], 0.0, 0.0, 0)

    # -- the model ---------------------------------------------------------------------------------------------
    def _divide(self, named: Sequence[tuple[str, Module, int]]) -> _Layers:
        """Keep the layers of this rank, and free the memory of the others."""
        mine = [(name, module) for name, module, rank in named if rank == self.rank]
        place(mine, self.axis)
        self._borrowed: list[tuple[Tie, list[tuple[Module, str]]]] = []
        for tie in self._ties:
            if self.rank not in (tie.owner, *tie.borrowers):
                continue
            at = [(owner, attribute) for name, module in mine
                  for _, owner, attribute, p in module.named_owners(f"{name}.") if p is tie.parameter]  # fmt: skip
            self._borrowed.append((tie, at))
            if tie.owner != self.rank:  # a leaf takes its place, which no optimizer sees
                placeholder = Borrowed(np.zeros(0))
                for owner, attribute in at:
                    vars(owner)[attribute] = placeholder
                    substitutable(owner, attribute)
        kept = {id(p) for _, module in mine for p in module.parameters()}
        for name, module, rank in named:
            for p in module.parameters():
                if id(p) not in kept:
                    release([p], f"layer {name} runs on rank {rank} of axis {self.axis!r}")
        for tie, _ in self._borrowed:
            if tie.owner != self.rank:
                release([tie.parameter], f"rank {tie.owner} of axis {self.axis!r} owns it")
        self._modules = dict(mine)
        return _Layers(mine)

    def _data_parallel(self, data: Any, zero: int | Zero, options: Any) -> DataParallel | None:
        names, stage = (data,) if isinstance(data, str) else tuple(data), stage_of(zero)
        if not names or state.mesh is None:
            if (stage or options) and not names:
                given = ", ".join([*(["zero"] if stage else []), *options])
                raise OptionError(
                    f"Pipeline: {given} was given without data; needed: the axes over which the batch is divided\n"
                    "  fix: data=('dp',)"
                )
            return None
        if stage == 3 and self.schedule.splits_backward:
            raise OptionError(
                f"Pipeline: zero=3 was given with the schedule {self.schedule.name!r}, which computes the gradients of "
                "weights later, when the weights have been freed\n  fix: zero=2, or schedule='1f1b'"
            )
        if stage == 3 and self._ties:
            raise OptionError(
                f"Pipeline: zero=3 was given, and {self._ties[0].name} is used on several ranks, to which its owner "
                "sends it at the beginning of a step, when it is not gathered\n  fix: zero=2"
            )
        return DataParallel(self._layers, names, zero=zero, **options)

    def _by_stage(self) -> dict[int, list[Parameter]]:
        """The parameters that each stage of this rank uses, borrowed ones included."""
        borrowed = [tie.parameter for tie, _ in self._borrowed]
        mine = [s for s, rank in enumerate(self.schedule.placement) if rank == self.rank]
        return {s: [*borrowed, *(p for i in self.stages[s] for p in self._modules[str(i)].parameters())] for s in mine}

    def _members(self) -> Iterable[tuple[str, Module]]:
        return self._layers._members()

    def attached(self) -> Iterator[tuple[str, Any]]:
        yield "steps", Steps(self)
        if self._wraps is not None:
            yield from self._wraps.attached()

    def gathered_copies(self, digest: Callable[[Any], str]) -> Iterator[Any]:
        """Copies of other ranks' parts of parameters; see `DataParallel.gathered_copies`."""
        if isinstance(self._wraps, DataParallel):
            yield from self._wraps.gathered_copies(digest)

    @property
    def wrapped(self) -> Module:
        """This rank's layers, in `DataParallel` if the batch is divided; for `memory_of`."""
        return self._layers if self._wraps is None else self._wraps

    # -- the public calls --------------------------------------------------------------------------------------
    def step(self, inputs: Any, targets: Any = None, scale: Any = 1.0) -> float:
        """Compute the loss of a batch, and add to the gradients of this rank's parameters.

        Parameters
        ----------
        inputs, targets : Tensor, array, or container of these; or Microbatches
            The same on all ranks of the pipeline's axis, with the rows in the first dimension. A plain array is Varying
            on the other axes. Each rank divides its own rows into microbatches, unless they are `Microbatches`.
        scale : float
            The cotangent of the sum of all losses, the same on all ranks: one by the global number of tokens. With
            `MasterWeights` it is ``optimizer.scale(ag.constant(1 / n))``.

        Returns
        -------
        float
            The sum of the losses of all microbatches and all ranks, and of the side losses, without `scale`.

        Raises
        ------
        OptionError
            The batch has fewer rows than microbatches.
        ShapeError
            A stage's result has another shape than for an earlier microbatch of the same shape, or the loss is no
            number.
        LayoutError
            The loss is Varying or Replicated on an axis other than the pipeline's.
        CollectiveMismatch
            The ranks of the pipeline were given batches of different shapes.
        TapeError
            A tape is recording.
        """
        refuse_recorded("Pipeline.step")
        if state.recording is not None:
            raise TapeError(
                "Pipeline.step: a tape is recording. Needed: a call outside of every tape: each microbatch has tapes "
                "of its own\n  fix: loss = model.step(inputs, targets, scale) without `with ag.Tape():`"
            )
        run = _Run(self, self.schedule, inputs, targets, True, scale)
        self._train(run)
        total = run.total()
        self.record = Record(self.rank, run.times, run.begin, time.perf_counter(), run.peak)
        self.steps += 1
        return total

    def evaluate(self, inputs: Any, targets: Any = None) -> float:
        """The sum of the losses of a batch, as `step` returns it, without gradients.

        Layers that act differently in training do so according to their mode: call `eval` before, and `train` after.
        """
        with no_grad():
            run = _Run(self, self.schedule.forward_only(self.microbatches), inputs, targets, False, 1.0)
            self._inside(run.tasks)
            return run.total()

    def forward(self, inputs: Any) -> Any:
        """The result of the last layer for a batch, on all ranks, without a gradient. It is Replicated on the axis.

        All rows are one microbatch. Training is by `step`.
        """
        if state.recording is not None:
            raise TapeError(
                "Pipeline: a call of the model on a tape, whose gradient would end here. Needed: step(inputs, targets, "
                "scale), which computes the gradients\n  fix: model.step(...), or the call under `with ag.no_grad():`"
            )
        with no_grad():
            run = _Run(self, self.schedule.forward_only(1), inputs, None, False, 1.0, has_loss=False)
            self._inside(run.tasks)
            return run.shared_result()

    def probe(self, inputs: Microbatches, targets: Microbatches) -> list[int]:
        """Compute microbatches forward and backward, without a regard for the schedule, to measure them.

        Like `step` it adds to the gradients. Returns the bytes that the tapes of this rank hold, one for each pass.
        """
        run = _Run(self, self.schedule.passes(len(inputs)), inputs, targets, True, 1.0)
        sizes: list[int] = []
        run.sizes = sizes
        self._train(run)
        run.total()
        return sizes

    def report(self) -> PipelineReport:
        """Idle share and live activations of the last step: measured, and predicted from the measured times of the
        actions. All ranks of the pipeline's axis call it."""
        group = None if self._on is None else self._on.group
        return compare(self.schedule, self.record, group)

    def _train(self, run: _Run) -> None:
        mesh = state.mesh
        if self._wraps is None:
            with nullcontext() if mesh is None else mesh.accumulating():
                run.training()
        else:
            with self._wraps.accumulate():
                self._inside(run.training)

    def _inside(self, function: Callable[[], Any]) -> Any:
        """Call a function in which the modules have the parameters as they have entered."""
        return function() if self._wraps is None else self._wraps.forward(function)

    def _kinds_of(self, schedule: Schedule, signatures: tuple[Any, ...], *how: bool) -> tuple[list[int], str]:
        """The number of each microbatch's kind, and the text of the run, which ranks compare.

        Kinds are numbered in the order in which they first occur, which is that of all ranks.
        """
        key = schedule.name, signatures, how
        found = self._runs.get(key)
        if found is None:
            kinds = [self._kinds.setdefault((*how, of), len(self._kinds)) for of in signatures]
            shapes = [(dtype.name, shape) for of in signatures for shape, dtype, _ in of]
            text = f"run of a Pipeline (schedule {schedule.name}, microbatches {shapes})"
            found = self._runs[key] = kinds, text
        return found


class _Run:
    """One run of a schedule on this rank.

    Parameters
    ----------
    model : Pipeline
    schedule : Schedule
    inputs, targets
        The batch.
    records : bool
        Whether tapes record the forward passes.
    scale : float
        The cotangent of the objective.
    has_loss : bool
        Whether the last stage computes the loss; otherwise its result is kept.
    """

    first = 0
    """The number of the first microbatch, on which random numbers depend."""

    def __init__(
        self, model: Pipeline, schedule: Schedule, inputs: Any, targets: Any, records: bool, scale: Any,
        has_loss: bool = True,
    ):  # fmt: skip
        self.model, self.schedule, self.records, self.has_loss = model, schedule, records, has_loss
        self.scale = scale.array if scale.__class__ in TENSORS else scale
        m, known = schedule.microbatches, model._divisions
        self.inputs = split_batch(inputs, m, model.axis, "inputs", known)
        self.targets = None if targets is None else split_batch(targets, m, model.axis, "targets", known)
        signatures = tuple([
            ((x.array.shape, x.array.dtype, x.layout),) if x.__class__ is Leaf else signature_of(x) for x in self.inputs
        ])  # fmt: skip
        self.kinds, text = model._kinds_of(schedule, signatures, records, has_loss)
        self.transfers = model._transfers
        if self.transfers is not None:
            leaf = self.inputs[0]
            leaves = [leaf] if leaf.__class__ is Leaf else flatten(leaf)[0]
            self.transfers.arrive_beside(leaves[0].array if leaves else np.empty(0))
        self.passes: dict[tuple[int, int], _Pass] = {}
        self.values: dict[tuple[int, int], tuple[Outline, list[Any]]] = {}  # of stages on the same rank
        self.cotangents: dict[tuple[int, int], list[Any]] = {}
        self.totals = Totals(model.axis)
        self.times: list[tuple[Action, float, float]] = []
        self.peak = 0
        self.stage_losses: Any = None  # in an examined step, see `collectives.scale.stages`
        # The number by which an examined step multiplies. A loss scaler gives a Tensor; a device is not asked.
        self.factor: Any = None
        if isinstance(self.scale, (int, *_HOST)) and not getattr(self.scale, "shape", ()):
            self.factor = scale.array.item() if scale.__class__ in TENSORS else scale
        self.sizes: list[int] | None = None  # the bytes that the tapes hold, where they are measured
        self.result: Any = None
        self.ties: list[tuple[Tie, Tape, Tensor]] = []
        self.lent: dict[Any, Borrowed] = {}  # by placeholder: the value of a tied parameter
        self.held: tuple[Any, ...] = ()  # the random state before, while layers run with their own
        # By stage: whether a parameter that it uses may need a gradient.
        self.trains = {s: records and True in [p.requires_grad for p in of] for s, of in model._parameters_of.items()}
        if model._on is not None:
            model._on.group.agree(lambda: text)
        self.begin = time.perf_counter()

    # -- the schedule ------------------------------------------------------------------------------------------
    def training(self) -> None:
        """Run the schedule, and return the cotangents of tied parameters."""
        mesh = state.mesh
        if mesh is not None and mesh.microbatches is not None and self.factor is not None:
            self.stage_losses = door("factors of losses").StageLosses(mesh, self.model.axis)
        try:
            self.tasks()
            self._return_ties()
        except BaseException:  # as after a death: the error's traceback would keep the parameters read-only
            for tape in (*(each.tape for each in self.passes.values()), *(tape for _, tape, _ in self.ties)):
                if tape.recording is not None:
                    tape.recording.abandon()
            raise

    def tasks(self) -> None:
        """Run the tasks of this rank, with the values of tied parameters in their places."""
        self._lend_ties()
        self.held = hold_state()
        try:
            if self.lent:
                with substituted(self.lent):
                    self._tasks()
            else:
                self._tasks()
        finally:
            put_back(self.held)

    def _tasks(self) -> None:
        transfers, kinds = self.transfers, self.kinds
        for action, receives, starts, sends in self.schedule.tasks[self.model.rank]:
            values: Any = None
            if transfers is not None:
                if receives is not None:
                    receive = transfers.receive if receives.kind == "activation" else transfers.receive_cotangents
                    values = receive(receives, kinds[receives.microbatch])
                for message in starts:
                    transfers.start(message, kinds[message.microbatch])
            if action is None:
                continue
            begin = time.perf_counter()
            outputs: list[Any] = []
            outline: Outline | None = None
            if action.kind == "F":
                outputs, outline = self._forward(action, values)
            elif action.kind == "W":
                self._weights(action)
            else:
                outputs = self._backward(action, values)
            self.times.append((action, begin, time.perf_counter()))
            if sends is not None and transfers is not None:
                transfers.send(sends, outputs, outline, kinds[action.microbatch])
        if transfers is not None:
            transfers.finish(self.schedule)

    # -- the actions -------------------------------------------------------------------------------------------
    def _forward(self, action: Action, values: Any) -> tuple[list[Any], Outline | None]:
        """Run a stage; returns its result, one Tensor or several, and their properties; nothing in the last stage."""
        model, (stage, _, i) = self.model, action
        tape, outline, x = Tape(), None, None
        if not stage:
            of, x = _Pass(tape, []), self.inputs[i]
        else:
            outline, arrays = self.values.pop((stage - 1, i)) if values is None else values
            of = _Pass(tape, outline.leaves(arrays, Action(stage, "B", i) in self.schedule))
        with tape if self.records else nullcontext():
            if outline is not None:
                of.watched = [
                    tape.watch(leaf) if self.records and needs else leaf
                    for leaf, (_, _, _, needs) in zip(of.leaves, outline.tensors, strict=True)
                ]
                x = of.watched[0] if outline.is_single else tuple(of.watched)
            if model._side_losses is None:
                x = self._layers(action, x, of)
            else:
                with model._side_losses() as side:
                    x = self._layers(action, x, of, side)
        if self.records:
            self.passes[stage, i] = of
            if self.sizes is not None:
                self.sizes.append(saved_bytes(tape, [p.array for p in model.parameters()]))
            self.peak = max(self.peak, len(self.passes))
        if stage == self.schedule.stages - 1:
            self.result = x
            return [], None
        is_single = x.__class__ in TENSORS
        outputs = [x] if is_single else list(x)
        for y in outputs:
            if y.__class__ not in TENSORS:
                raise ArgumentError(
                    f"Pipeline: layer {model.stages[stage][-1]} returned {type(y).__name__}; needed: a Tensor, or a "
                    "tuple of Tensors"
                )
            of.outputs.append(_without_values(y))
        differentiates = self.trains[stage] or (self.records and any(x.requires_grad for x in of.leaves))
        outline = Outline.of(outputs, is_single, differentiates)
        if self.schedule.placement[stage + 1] == model.rank:
            self.values[stage, i] = outline, [y.array for y in outputs]
        return outputs, outline

    def _layers(self, action: Action, x: Any, of: _Pass, side: Sequence[Any] = ()) -> Any:
        """Run the layers of a stage, and the loss behind the last, each with the random state of `layer_state`.

        `side` is the list to which the layers append their losses.
        """
        model, (stage, _, i) = self.model, action
        is_last = self.has_loss and stage == self.schedule.stages - 1
        seed, places = seed_of_layers(model.seed, model.steps, self.first + i), self.held[2]
        apart = () if model.axis is None else (model.axis,)
        for index in model.stages[stage]:
            begin_state(seed | index, places, apart)
            x = model._modules[str(index)](x)
            if not index and self.records and model._splits:
                found = [x] if x.__class__ in TENSORS else x
                of.begun = [y for y in found if getattr(y, "tape", None) is of.tape.recording]
        if is_last:
            begin_state(seed | model._last, places, apart)
            x = model.loss(x) if self.targets is None else model.loss(x, self.targets[i])
        if is_last or side:
            self._begin_objective([x, *side] if is_last else [*side], of)
        return x

    def _backward(self, action: Action, cotangents: Any) -> list[Any]:
        """B or I of a stage; returns the cotangents of its inputs as arrays, None where none is needed."""
        stage, kind, i = action
        of = self.passes[stage, i]
        tape, recording = of.tape, of.tape.recording
        if cotangents is None:
            cotangents = self.cotangents.pop((stage, i), [None] * len(of.outputs))
        outputs: list[Tensor] = []
        seeds: list[Any] = []
        for y, ct in zip(of.outputs, cotangents, strict=True):
            if ct is not None and y.tape is recording:
                outputs.append(y)
                seeds.append(Tensor(ct, None if y.layout is None else y.layout.dual))
        for loss in of.seeds:
            if loss.tape is recording:
                outputs.append(loss)
                seeds.append(of.scale)
        deferred: Iterator[Any] | None = None
        if kind == "B":
            tape.backward(outputs, seeds)
            del self.passes[stage, i]
        else:
            # The batch needs no cotangent. In the first stage I ends at the first layer, whose adjoint is part of W.
            wanted = [x for x in of.watched if x.tape is recording] if stage else of.begun
            of.rest = tape.backward(outputs, seeds, wanted=wanted, defer=True)
            deferred, of.rest.cotangents = iter(of.rest.cotangents), []
        found: list[Any] = []
        for x, leaf in zip(of.watched, of.leaves, strict=True):
            ct = None
            if x.tape is recording:
                ct = getattr(leaf.grad, "array", None) if deferred is None else next(deferred)
                if ct is None:
                    ct = zeros_on(leaf.array, leaf.array.shape, leaf.array.dtype)
            found.append(ct)
        of.outputs, of.seeds, of.begun, of.leaves, of.watched = [], [], [], [], []  # W needs none of them
        if stage and self.schedule.placement[stage - 1] == self.model.rank:
            self.cotangents[stage - 1, i] = found
        return found

    def _weights(self, action: Action) -> None:
        """W of a stage."""
        rest = self.passes[action.stage, action.microbatch].rest
        assert rest is not None
        rest()
        del self.passes[action.stage, action.microbatch]

    # -- the objective -----------------------------------------------------------------------------------------
    def _begin_objective(self, losses: list[Any], of: _Pass) -> None:
        """Add the losses of a pass to the totals, and keep them as the objectives of its backward pass.

        In an examined step the tape has the product with the scale, too, whose gradient is the same.
        """
        for loss in losses:
            self._add(loss)
        of.seeds, of.scale = losses, self.scale
        if self.stage_losses is not None:
            of.seeds, of.scale = [loss * self.factor for loss in losses], 1.0
            self.stage_losses.note(of.seeds, of.tape.recording)

    def _add(self, loss: Any) -> None:
        self.totals.add(loss)

    def total(self) -> float:
        """The sum of the losses over the microbatches, and over the ranks that hold addends. All ranks call it."""
        model, total = self.model, self.totals.total()
        stages, group = self.stage_losses, None if model._on is None else model._on.group
        count = 0 if stages is None else stages.count
        if group is not None:
            total, count = _summed(group, total, count)
        if count:
            (stages or door("factors of losses").StageLosses(state.mesh, model.axis)).tell(group)
        return total

    def shared_result(self) -> Any:
        """The result of the last stage on all ranks."""
        model, transfers, root, y = self.model, self.transfers, self.schedule.placement[-1], self.result
        if transfers is None:
            return y
        if model.rank == root:
            for rank in range(transfers.group.size):
                if rank != root:
                    transfers.send_value(rank, y, False, "the result of the model")
        else:
            array, layout, _ = transfers.receive_value(root, "the result of the model")
            y = Tensor(array, layout)
        return Tensor(y.array, None if y.layout is None else y.layout.replace((transfers.axis,), R))

    # -- tied parameters ---------------------------------------------------------------------------------------
    def _lend_ties(self) -> None:
        """Send the values of tied parameters from their owners, or receive them."""
        for tie, at in self.model._borrowed:
            transfers, text = self.transfers, f"the value of {tie.name}"
            assert transfers is not None
            if tie.owner == self.model.rank:
                x, needs = getattr(*at[0]), self.records and tie.parameter.requires_grad
                tape = Tape()
                with tape if needs else nullcontext():
                    y = tape.watch(x) if needs else x
                for rank in tie.borrowers:
                    transfers.send_value(rank, y, needs, text)
                if needs:
                    self.ties.append((tie, tape, y))
            else:
                owner, attribute = at[0]
                leaf = Borrowed(*transfers.receive_value(tie.owner, text), tie.name)
                self.lent[vars(owner)[attribute]] = leaf

    def _return_ties(self) -> None:
        """Return the cotangents of tied parameters to their owners, or receive and add them."""
        transfers = self.transfers
        for tie, at in self.model._borrowed:
            if tie.owner == self.model.rank or transfers is None:
                continue
            owner, attribute = at[0]
            leaf = self.lent.pop(vars(owner)[attribute])
            if leaf.requires_grad:
                transfers.send_gradient(tie.owner, None if leaf.grad is None else leaf.grad.array, tie.name)
        for tie, tape, y in self.ties:
            for rank in tie.borrowers:
                assert transfers is not None
                ct = transfers.receive_gradient(rank, y.array, tie.name)
                if ct is not None:
                    ct = Tensor(ct, None if y.layout is None else y.layout.dual)
                    tape.backward([y], [ct], retain=rank != tie.borrowers[-1])


def _without_values(y: Tensor) -> Tensor:
    """The place of a value on its tape, without its memory: backward needs no result that has been sent."""
    array = y.array
    if y.tape is None or not array.shape:
        return y
    if array.__class__ is np.ndarray:  # one element in all places, as `broadcast_to` makes in nine calls
        nothing = np.ndarray(array.shape, array.dtype, bytes(array.itemsize), strides=(0,) * array.ndim)
    else:
        nothing = np.broadcast_to(zeros_on(array, (), array.dtype), array.shape)
    return Tensor(nothing, y.layout, y.tape, y.node)


_HOST = (np.ndarray, np.generic, float)


def _summed(group: Any, *values: float) -> list[float]:
    """The sums of numbers over the ranks of a group."""
    if group.size == 1:
        return list(values)
    request = Request("all_reduce", np.array(values, np.float64))
    found: list[float] = group.repeat(("sums of losses", len(values)), request).tolist()
    return found
