"""`Trainer`: train, explain and verify a model on a mesh, with one program text for one process and any mesh."""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from autograd import nn, optim
from autograd.arrays.capture import refuse_recorded
from autograd.arrays.device import as_array, device_of, is_inexact, runtime_of, to_host
from autograd.engine.leaves import Parameter
from autograd.engine.state import outside_mesh, state
from autograd.engine.tensor import Tensor
from autograd.errors import ArgumentError, MeshError, OptionError, TapeError, short, typed_errors
from autograd.layouts.layout import Shard
from autograd.nn.saving import packed, unpacked
from autograd.random.keys import Key, get_state
from autograd.whole import whole_of
from collectives import Mesh, World
from collectives.mesh import USUAL
from collectives.world import replaced_world

from .batches import Batches
from .checkpoint import Restored, load, save
from .data.memory import memory_of
from .data.settings import Zero, stage_of
from .expert.side_losses import side_losses
from .explain import Explanation, RankPlan, from_json, measured_traffic, rows, to_json
from .pipeline import Microbatches, Pipeline, simulate
from .pipeline.randomness import seed_of_layers
from .pipeline.run import Steps, Totals
from .pipeline.same_bits import SameBits
from .plan import Style, parallelize
from .verify import Report, compare_with_serial

__all__ = ["Axes", "Trainer"]

_TOLERANCES = {"f": 1e-4, "d": 1e-10, "F": 1e-4, "D": 1e-10}


@dataclass(frozen=True)
class Axes:
    """The names of the axes of a `Trainer`: along which it divides the rows, the sequence and the layers.

    Parameters
    ----------
    batch : str or sequence of str
    sequence, stages : str

    Examples
    --------
    >>> from parallel import Axes
    >>> Axes(batch=("hosts", "gpus"))
    Axes(batch=('hosts', 'gpus'), sequence='cp', stages='pp')
    """

    batch: str | Sequence[str] = ("dp", "ep")
    sequence: str = "cp"
    stages: str = "pp"


def _count(targets: Any, count: Any) -> Any:
    """The number of elements that the loss of a batch sums over."""
    n = as_array(targets).size if count is None else count
    if not isinstance(n, int | float | np.number) or not n > 0:
        raise OptionError(f"Trainer.step: count={short(n)} was given; needed: a positive number")
    return n


def _axes_of(given: Axes | None, alone: Axes) -> Axes:
    """The argument `axes` of a trainer, or the names that were given `alone`. Both together are refused."""
    if given is None:
        return alone
    if not isinstance(given, Axes):
        raise OptionError(f"Trainer: axes={given!r} was given; needed: an Axes\n  fix: Axes(batch='dp')")
    both = [f"{f.name}={getattr(alone, f.name)!r}" for f in fields(Axes) if getattr(alone, f.name) != f.default]
    if both:
        raise OptionError(
            f"Trainer: axes={given!r} and {', '.join(both)} were given; needed: one of the two\n  fix: "
            f"axes=Axes({', '.join(both)})"
        )
    return given


@typed_errors
class Trainer:
    """Train a model on a mesh: data, tensor, pipeline, context and expert parallel, by one plan.

    Parameters
    ----------
    model : callable
        Makes the model for one process, an `nn.Sequential`, with the same initial weights at each call (give its layers
        keys, or seed the thread in it). Every rank calls it and keeps its parts.
    loss : Module
        ``loss(outputs, targets)`` is the sum of the losses of all elements; it has no parameters. The trainer divides
        by their global number. In `plan` its path is "loss".
    mesh : Mesh
        Usually `Mesh.fit`. Rows are divided along the axes `batch`, the sequence along `sequence`, and the layers along
        `stages`, each if the mesh has the axis. On all other axes the ranks have the same batch.
    plan : mapping from pattern to Style
        How layers are divided; see `parallelize`. A style of a usual axis (ep, cp or tp) that the mesh does not have is
        left out, so one plan serves all meshes.
    optimizer : callable
        ``optimizer(parameters)`` makes the optimizer of this rank's parameters.
    microbatches : int
        Each batch is divided into so many microbatches of consecutive rows. Their gradients are summed.
    schedule : str or Schedule
        The order of the stages' computations; see `Pipeline`.
    zero : {0, 1, 2, 3} or Zero
        The stage of ZeRO along the axes of the batch and the sequence; see `DataParallel`. A mesh without such axes
        divides no state, as one with a single rank.
    clip : float, optional
        The largest norm of all gradients together.
    seed : int
        Seed of dropout. Masks depend on it, the step, the microbatch, the layer and the place of an element.
    batch, sequence, stages : str or sequence of str
        The names of the axes.
    axes : Axes, optional
        The same three names as one object: ``axes=Axes(batch="hosts", sequence="cp", stages="pp")``.
    device : str, optional
        Where this rank computes: "cpu", or with CuPy "cuda", the current GPU of the thread, or "cuda:0". The parameters
        are made on the host and moved there before the optimizer is made, and so is this rank's part of each batch. By
        default they stay where `model` makes them and where the batch is.
    bits : {"same"}, optional
        With "same", parameters, losses and norms have the same bits on any number of ranks along `batch` and `stages`,
        with any stage of ZeRO: see Notes.
    capture : bool
        Whether the steps are recorded and replayed by `autograd.capture`, with the same bits: small models then train
        several times as fast. There is one stage, and no layer decides on values, as `MixtureOfExperts` does.
    **options
        Of `DataParallel`, such as ``bucketing=Bucketing(...)``. Like `zero`, they have no effect on a mesh without such
        axes.

    Attributes
    ----------
    pipeline : Pipeline
    parameters : dict from name to Parameter
        Those of this rank, by their names in the model for one process.
    optimizer : Optimizer
    steps : int
        The number of steps that were done.
    bits : str or None
    norm : float or None
        The norm of the gradients of the last step, before clipping.

    Raises
    ------
    ArgumentError, OptionError
        `model` is no function, `loss` has parameters or is a mean, or an option is not valid. With ``bits="same"``:
        another axis divides matrices, the sequence or experts, whose inner sums are then cut; gradients are compressed;
        the model has running statistics, or a parameter in several stages; or an optimizer that is not known to treat
        each element alone has parts of parameters.

    Notes
    -----
    Floating-point sums depend on their order, and the products of BLAS on the shapes of their operands. With
    ``bits="same"`` the `microbatches` are divided among the ranks as wholes, not their rows. Their number is the same
    on every mesh, and at least the number of ranks along `batch`, or some of those have nothing to compute. Gradients
    are added by the tree of `collectives.reproducible_sum` over the numbers of the microbatches, as they come: a rank
    holds lg m + 1 gradients for m microbatches. A step has whole parameters and gradients on every rank of its stage,
    with ZeRO too, which then divides what is kept between steps. Small microbatches cost more than the order of sums
    does. The bits also depend on libraries, kernels and threads: see `parallel.runs.environment_of_bits`.

    Examples
    --------
    >>> import numpy, collectives as cc
    >>> from autograd import nn, optim, random
    >>> from parallel import Column, Row, Trainer
    >>> def model():
    ...     key = random.Key(0)
    ...     return nn.Sequential(nn.Linear(3, 8, key=key.fold("up"), dtype=float), nn.Tanh(),
    ...                          nn.Linear(8, 2, key=key.fold("down"), dtype=float))
    >>> rows = numpy.arange(12.0).reshape(4, 3) / 12
    >>> def program(**sizes):
    ...     trainer = Trainer(model, nn.CrossEntropyLoss(reduction="sum"), cc.Mesh.fit(**sizes),
    ...                       {"0": Column("tp"), "2": Row("tp")},
    ...                       optimizer=lambda parameters: optim.SGD(parameters, lr=0.1))
    ...     losses = [trainer.step(rows, numpy.array([0, 1, 1, 0])) for _ in range(2)]
    ...     return [round(loss, 9) for loss in losses]
    >>> alone = cc.run(program, 1)[0]
    >>> cc.run(lambda: program(dp=2, tp=2), 4) == [alone] * 4
    True
    """

    def __init__(
        self,
        model: Callable[[], nn.Sequential],
        loss: nn.Module,
        mesh: Mesh,
        plan: Mapping[str, Style] | None = None,
        *,
        optimizer: Callable[[list[Parameter]], optim.Optimizer],
        microbatches: int = 1,
        schedule: Any = "1f1b",
        zero: int | Zero = 0,
        clip: float | None = None,
        seed: int = 0,
        batch: str | Sequence[str] = ("dp", "ep"),
        sequence: str = "cp",
        stages: str = "pp",
        device: str | None = None,
        axes: Axes | None = None,
        bits: str | None = None,
        capture: bool = False,
        **options: Any,
    ):
        _check(model, loss, mesh, microbatches, optimizer)
        self.model, self.mesh = model, mesh
        missing = {axis for axis in USUAL if axis not in mesh.names}
        self.plan = {k: style for k, style in (plan or {}).items() if getattr(style, "axis", None) not in missing}
        self.clip, self.seed = clip, seed
        self.zero = stage_of(zero)
        axes = _axes_of(axes, Axes(batch, sequence, stages))
        sequence, stages = axes.sequence, axes.stages
        names = (axes.batch,) if isinstance(axes.batch, str) else tuple(axes.batch)
        is_zigzag = sequence in mesh.names and any(
            getattr(style, "zigzag", False) and getattr(style, "axis", None) == sequence for style in self.plan.values()
        )
        self._batches = batches = Batches(
            mesh, tuple(a for a in mesh.names if a in names), sequence if sequence in mesh.names else None,
            stages if stages in mesh.names else None, is_zigzag, microbatches, device,
        )  # fmt: skip
        self.bits = bits
        self._same_bits: SameBits | None = None
        self._check_bits(bits, {*names, stages}, zero, options)
        self._loss = copy.deepcopy(loss)  # for one process
        self.steps = 0
        self.norm: float | None = None
        self.last_loss: float | None = None
        with self._on_mesh():
            layers, total = self._divided(self._made(), copy.deepcopy(loss))
            self._refuse_idle({*names, sequence, stages})
            data = batches.axes
            self.pipeline = Pipeline(
                layers, total, axis=batches.stages, schedule=schedule, microbatches=microbatches, data=data,
                zero=zero if data else 0, seed=seed, side_losses=batches.side_losses, **(options if data else {}),
            )
            self.parameters: dict[str, Parameter] = dict(self.pipeline.named_parameters())
            self._optimizer = optimizer
            self.optimizer = optimizer(list(self.parameters.values()))
            self._captured = self._captured_step(capture)
            if bits is not None:
                _check_elementwise(self.optimizer, self.parameters.values())
                self._same_bits = SameBits(self.pipeline, mesh, data, schedule, options.get("chunks"))

    def __repr__(self) -> str:
        return f"<Trainer on {self.mesh!r}, {len(self.parameters)} parameters here, {self.steps} steps>"

    def _captured_step(self, capture: Any) -> Any:
        """The function that replays the steps; None if they run as they are."""
        if capture is False:
            return None
        if capture is not True:
            raise OptionError(f"Trainer: capture={short(capture)} was given; needed: True or False")
        stages = self._batches.number_of_stages
        if stages > 1 or self.bits is not None:
            other = f"{stages} stages" if stages > 1 else f"bits={self.bits!r}"
            raise OptionError(
                f"Trainer: capture=True and {other} were given, whose steps cannot be recorded\n  fix: capture=False"
                + (f", or a mesh without {self._batches.stages!r}" if stages > 1 else ", or bits=None")
            )
        from .captured import captured_step  # used by few

        return captured_step(self.pipeline)

    def _check_bits(self, bits: Any, divides: set[Any], zero: int | Zero, options: Mapping[str, Any]) -> None:
        """Raise OptionError unless the bits can be the same on any number of ranks; keep the styles without an axis."""
        if bits is None:
            return
        if bits != "same":
            raise OptionError(f"Trainer: bits={short(bits)} was given; needed: 'same', or None")
        mesh, reduction = self.mesh, options.get("reduction")
        for axis, size in zip(mesh.names, mesh.sizes, strict=True):
            of = [pattern for pattern, style in self.plan.items() if getattr(style, "axis", None) == axis]
            if size > 1 and (of or axis not in divides):
                what = f"divides {', '.join(of)} of the plan" if of else "divides neither rows nor layers"
                raise OptionError(
                    f"Trainer: bits='same' was given, and the axis {axis!r} of {size} ranks {what}: the sums inside of "
                    "the layers are cut, so their bits depend on the number of ranks\n  fix: these ranks along the "
                    "axis of the batch or of the stages, or bits=None"
                )
        if reduction is not None:
            raise OptionError(
                f"Trainer: bits='same' and reduction={type(reduction).__name__} were given, which changes what is "
                "summed with the number of ranks\n  fix: no reduction, or bits=None"
            )
        if isinstance(zero, Zero) and zero.replicate:
            raise OptionError(
                f"Trainer: bits='same' and replicate={zero.replicate!r} were given; needed: gradients that are summed "
                f"over all ranks of the batch at once\n  fix: zero={zero.stage}"
            )
        self.plan = {pattern: style for pattern, style in self.plan.items() if getattr(style, "axis", None) is None}

    def _refuse_idle(self, roles: set[Any]) -> None:
        """Raise OptionError if the mesh has an axis that divides nothing."""
        roles = roles | {getattr(style, "axis", None) for style in self.plan.values()}
        for axis, size in zip(self.mesh.names, self.mesh.sizes, strict=True):
            if size > 1 and axis not in roles:
                raise OptionError(
                    f"Trainer: the mesh has the axis {axis!r} of {size} ranks, which divides nothing: they would all "
                    f"do the same\n  fix: batch={axis!r}, sequence= or stages=, or a style with {axis!r} in the plan"
                )

    def _patterns(self, of_loss: bool) -> list[str]:
        """The patterns of the plan for the layers, or for the loss."""
        return [pattern for pattern in self.plan if (pattern.partition(".")[0] == "loss") is of_loss]

    def _made(self) -> nn.Sequential:
        layers = self.model()
        if not isinstance(layers, nn.Sequential):
            raise ArgumentError(
                f"Trainer: model() returned {type(layers).__name__}; needed: an nn.Sequential of layers"
            )
        return layers

    def _divided(self, layers: nn.Sequential, loss: nn.Module) -> tuple[nn.Sequential, nn.Module]:
        """The layers and the loss on this rank's device, divided by the plan."""
        self.names = [name for name, _ in layers.named_parameters()]
        held = nn.ModuleDict({"loss": loss})
        if self._batches.device is not None:
            layers.to(device=self._batches.device)
            held.to(device=self._batches.device)
        for module, patterns in ((layers, self._patterns(False)), (held, self._patterns(True))):
            parallelize(module, {pattern: self.plan[pattern] for pattern in patterns}, self.mesh)
        return layers, self._batches.addend(held["loss"])

    @contextmanager
    def _on_mesh(self) -> Iterator[None]:
        """Make the mesh current, if it is not."""
        if state.mesh is self.mesh:
            yield
            return
        with self.mesh:
            yield

    # -- data ------------------------------------------------------------------------------------------------------
    def share(self, array: Any) -> Microbatches:
        """This rank's parts of the microbatches of a whole batch: Tensors with the labels that the model expects.

        Parameters
        ----------
        array : array, [rows, ...] or, with an axis of the sequence, [rows, tokens, ...]
            The whole batch, the same on all ranks.
        """
        return self._batches.share(array)

    # -- training --------------------------------------------------------------------------------------------------
    def step(self, inputs: Any, targets: Any, count: int | None = None) -> float:
        """Train on one batch, and return its mean loss. All ranks call it, with the same batch.

        Parameters
        ----------
        inputs, targets : array
            The whole batch; see `share`.
        count : int, optional
            The number of elements that the loss sums over. By default the number of targets.
        """
        refuse_recorded("Trainer.step")
        with self._on_mesh():
            if self._captured is not None:
                return self._replayed(inputs, targets, count)
            self.optimizer.zero_grad()
            loss = self._gradients(inputs, targets, count)
            if self.clip is not None:
                same = self._same_bits
                options: Any = {} if same is None else {"norm": lambda gradients, order: same.norm}
                self.norm = optim.clip_grad_norm_(list(self.parameters.values()), self.clip, **options)
            self.optimizer.step()
            self.steps += 1
            self.last_loss = loss
            return loss

    def _replayed(self, inputs: Any, targets: Any, count: int | None) -> float:
        """A step by the captured function."""
        n = _count(targets, count)
        self._batches.compare(inputs, targets)
        with self._batches.draws(inputs):
            apart = () if self.pipeline.axis is None else (self.pipeline.axis,)
            key = Key(seed_of_layers(self.seed, self.steps, 0), places=get_state().places, apart=apart)
            parts = (list(self.share(a)) for a in (inputs, targets))
            losses, norm = self._captured(np.array(1.0 / n), key, *parts, self.optimizer, self.clip)
        totals = Totals(self.pipeline.axis)
        for loss in losses:
            totals.add(loss)
        self.norm = None if norm is None else float(getattr(norm, "array", norm))
        self.steps += 1
        self.last_loss = totals.total() / n
        return self.last_loss

    def _gradients(self, inputs: Any, targets: Any, count: int | None) -> float:
        n = _count(targets, count)
        self._batches.compare(inputs, targets)
        with self._batches.draws(inputs):
            self.pipeline.steps = self.steps
            if self._same_bits is not None:
                x, y = self._batches.whole(inputs), self._batches.whole(targets)
                return self._same_bits.step(x, y, 1.0 / n, self.clip is not None) / n
            return self.pipeline.step(self.share(inputs), self.share(targets), 1.0 / n) / n

    def evaluate(self, inputs: Any, targets: Any, count: int | None = None) -> float:
        """The mean loss of a batch, without gradients and dropout. All ranks call it, with the same batch."""
        n = as_array(targets).size if count is None else count
        with self._on_mesh():
            self.pipeline.eval()
            try:
                if self._same_bits is not None:
                    return self._same_bits.evaluate(self._batches.whole(inputs), self._batches.whole(targets)) / n
                return self.pipeline.evaluate(self.share(inputs), self.share(targets)) / n
            finally:
                self.pipeline.train()

    def explain(self, inputs: Any, targets: Any) -> Explanation:
        """Explain a step on such a batch: its schedule, and the memory and the communication of each rank.

        To measure, it computes up to two microbatches, forward and backward, three times, without a step of the
        optimizer. Nothing is changed. All ranks call it, with the same batch.

        Returns
        -------
        Explanation
            ``print(plan)`` shows it. The memory is that of parameters, gradients, the optimizer's state and the saved
            activations; not that of temporary arrays.

        Raises
        ------
        OptionError
            The trainer has ``bits="same"``.
        """
        if self._same_bits is not None:
            raise OptionError(
                "Trainer.explain: the trainer has bits='same', whose steps are not explained\n  fix: explain a trainer "
                "with bits=None, whose microbatches are divided by rows"
            )
        with self._on_mesh():
            parameters = list(self.parameters.values())
            before = [p.grad for p in parameters]
            data = [self.share(a) for a in (inputs, targets)]
            two = [Microbatches(a[:1] * 2) for a in data]
            one = [Microbatches(a[:1]) for a in data]
            try:
                with self._batches.draws(inputs):
                    sizes = self.pipeline.probe(*one)  # headers are sent once
                    of_one = measured_traffic(lambda: self.pipeline.probe(*one))
                    of_two = measured_traffic(lambda: self.pipeline.probe(*two))
                memory = memory_of(self.pipeline.wrapped)
            finally:
                for p, g in zip(parameters, before, strict=True):
                    p.grad = g
            m = self._batches.microbatches
            total = Counter({key: n + (m - 1) * (of_two[key] - n) for key, n in of_one.items()})
            simulation = simulate(self.pipeline.schedule)
            peak = simulation.peak_activations[self.pipeline.rank]
            mine = RankPlan(
                {a: int(at) for a, at in zip(self.mesh.names, self.mesh.place, strict=True)},
                [name for name, _ in self.pipeline.named_children()], memory.parameters, memory.gradients,
                self._state_bytes(), int(peak * sum(sizes)), rows(total), *_device_of(parameters),
            )  # fmt: skip
            ranks = [from_json(data) for data in self.mesh.ranks.exchange(to_json(mine))]
            return Explanation(repr(self.mesh), simulation, ranks)

    def _state_bytes(self) -> int:
        """The bytes of the optimizer's state, which it makes at its first step: measured on a copy for few elements."""
        if not self.parameters:  # a stage of other layers
            return 0
        with outside_mesh():
            small = [Parameter(np.ones(64, p.array.dtype)) for p in self.parameters.values()]
            made = self._optimizer(small)
            for p in small:
                p.grad = Tensor(np.ones_like(p.array))
            made.step()
        found = 0
        for values in made.state_lists():
            arrays = [a for a in values if getattr(a, "shape", ()) == (64,)]
            if len(arrays) == len(small):
                found += sum(a.dtype.itemsize * p.array.size
                             for a, p in zip(arrays, self.parameters.values(), strict=True))  # fmt: skip
        return found

    # -- state -----------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """The state of the run: parameters, buffers, the optimizer's state, and the number of steps. All ranks call it.

        ``nn.save({"trainer": trainer, "loader": loader}, path)`` saves it, and `nn.load` continues the run. Values are
        whole, so that it loads on any mesh with as many stages.
        """
        with self._on_mesh():
            mine = {"model": self.pipeline.state_dict(), "optimizer": self.optimizer.state_dict()}
            of_stages = [mine]
            if (stages := self._batches.stages) is not None and self._batches.number_of_stages > 1:
                group = self.mesh.axis(stages).group
                of_stages = [unpacked(data) for data in group.exchange(packed(mine), of="Trainer.state_dict")]
            return {"steps": self.steps, "stages": of_stages}

    def state_parts(self) -> dict[str, Any]:
        """The objects of which the state of this rank consists, by name, for `parallel.checkpoint`."""
        return {"model": self.pipeline, "optimizer": self.optimizer, "run": Steps(self)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. If it raises, nothing has been changed on this rank.

        Raises
        ------
        OptionError
            Entries are missing or unknown, or it is of another number of stages.
        """
        self.prepare_state_dict(state_dict)()

    def prepare_state_dict(self, state_dict: Mapping[str, Any]) -> Callable[[], None]:
        """Check a `state_dict`, and return the function that sets it. `nn.load` calls it."""
        ranks = self._batches.number_of_stages
        if set(state_dict) != {"steps", "stages"} or len(state_dict["stages"]) != ranks:
            have = f" of {len(state_dict['stages'])} stages" if "stages" in state_dict else ""
            raise OptionError(
                f"Trainer.load_state_dict: {sorted(state_dict)}{have} was given; needed: ['stages', 'steps'], of "
                f"{ranks}\n  fix: a mesh with as many ranks along {self._batches.stages!r} as that of the run that "
                "saved it"
            )
        with self._on_mesh():
            mine = state_dict["stages"][self.pipeline.rank]
            commits = [
                Steps(self).prepare_state_dict(state_dict), self.pipeline.prepare_state_dict(mine["model"]),
                self.optimizer.prepare_state_dict(mine["optimizer"]),
            ]  # fmt: skip

        def commit() -> None:
            for each in commits:
                each()

        return commit

    def save(self, directory: str | os.PathLike[str], **others: Any) -> None:
        """Save the run at its present step: see `checkpoint.save`. All ranks call it.

        Parameters
        ----------
        directory : str or path
        **others
            What else belongs to the state of the run, by name: a loader, ``random=autograd.random``, plain values.
        """
        save(directory, {**others, "trainer": self}, self.steps)

    def load(self, directory: str | os.PathLike[str], step: int | None = None, **others: Any) -> Restored:
        """Continue from a step that a trainer on any mesh has saved: see `checkpoint.load`. All ranks call it.

        Parameters
        ----------
        directory : str or path
        step : int, optional
            By default the newest step that is whole.
        **others
            The objects that `save` got under these names.

        Returns
        -------
        Restored
            The step, and the plain values by name.
        """
        return load(directory, {**others, "trainer": self}, step)

    # -- the whole model ---------------------------------------------------------------------------------------------
    def gather(self) -> nn.Sequential | None:
        """The whole model for one process, on the first rank; None on the others. All ranks call it."""
        with self._on_mesh():
            values = self._wholes("Trainer.gather")
        if int(self.mesh.ranks.rank):
            return None
        with outside_mesh():
            return self._serial(values)

    def _wholes(self, caller: str) -> dict[str, Any]:
        """The whole values of all parameters, by name, on every rank."""
        found = {}
        for name in self.names:
            p = self.parameters.get(name)
            value = None if p is None else whole_of(p.array, p.layout, caller, name)
            if (stages := self._batches.stages) is not None and self._batches.number_of_stages > 1:
                of_all = self.mesh.arrays_of_all(value, stages, f"{caller}({name})")
                value = next(a for a in of_all if a is not None)
            found[name] = value
        return found

    def _serial(self, values: Mapping[str, Any], in_double: bool = False) -> nn.Sequential:
        """The model for one process with these values, which may be in float64."""
        layers = self._made()
        for name, p in layers.named_parameters():
            value = values[name].reshape(p.array.shape)
            p.array = _double(value) if in_double else value.astype(p.array.dtype)
        return layers

    def verify(self, inputs: Any, targets: Any, count: int | None = None, *, tolerance: float | None = None) -> Report:
        """Compare every gradient of a batch with that of one process in float64. All ranks call it.

        The first rank runs the model for one process, with the same microbatches and the same dropout, outside of the
        mesh. The gradients of the parameters are not changed.

        Parameters
        ----------
        inputs, targets, count
            As for `step`.
        tolerance : float, optional
            The largest relative difference. By default 1e-10 if the parameters are float64, else 1e-4.

        Returns
        -------
        Report
            ``print(report)`` shows each gradient's norm beside the serial one, and the norms of its parts. `verify`
            does not raise if gradients differ: call ``report.require()`` for that.
        """
        if state.recording is not None:
            raise TapeError("Trainer.verify was called while a tape is recording")
        n = as_array(targets).size if count is None else count
        with self._on_mesh():
            before = {name: p.grad for name, p in self.parameters.items()}
            try:
                for p in self.parameters.values():
                    p.grad = None
                loss = self._gradients(inputs, targets, count)
                gradients = [None if p.grad is None else p.grad.array for p in self.parameters.values()]
            finally:
                for name, p in self.parameters.items():
                    p.grad = before[name]
            values = self._wholes("Trainer.verify")
            alone = None
            if int(self.mesh.ranks.rank) == 0:
                alone = self._alone(values, to_host(as_array(inputs)), to_host(as_array(targets)), 1.0 / n)
            if tolerance is None:
                kinds = {p.array.dtype.char for p in self.parameters.values()}
                tolerance = max((_TOLERANCES.get(kind, 1e-4) for kind in kinds), default=1e-10)
            return compare_with_serial(self.parameters, gradients, loss, alone, self.names, tolerance, self.mesh)

    def _alone(self, values: Mapping[str, Any], inputs: Any, targets: Any, scale: float) -> tuple[float, list[Any]]:
        """The loss and the gradients of one process in float64."""
        with replaced_world(World("threads", ranks=1).communicator), outside_mesh():
            layers = self._serial(values, in_double=True)
            split = [Microbatches(np.array_split(_double(a), self._batches.microbatches)) for a in (inputs, targets)]
            pipeline = Pipeline(
                layers, copy.deepcopy(self._loss), microbatches=self._batches.microbatches, seed=self.seed,
                side_losses=side_losses,
            )  # fmt: skip
            pipeline.steps = self.steps
            loss = pipeline.step(split[0], split[1], scale) * scale
            gradients = [p.grad for _, p in pipeline.named_parameters()]
        return loss, [None if g is None else g.array for g in gradients]


_ELEMENTWISE = (optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad, optim.RMSprop, optim.MasterWeights, optim.Offload)
"""Optimizers that treat each element alone, so that a part of a parameter gets the bits of the whole one."""


def _check_elementwise(optimizer: Any, parameters: Iterable[Parameter]) -> None:
    """Raise OptionError if an optimizer that may read whole parameters has parts of them."""
    each = [optimizer, getattr(optimizer, "optimizer", optimizer)]
    other = next((o for o in each if type(o) not in _ELEMENTWISE), None)
    has_parts = any(type(label) is Shard for p in parameters if p.layout is not None for label in p.layout.labels)
    if other is not None and has_parts:
        raise OptionError(
            f"Trainer: bits='same' and ZeRO were given with {type(other).__name__}, which is not known to treat each "
            "element alone: it gets parts of the parameters, whose sizes depend on the number of ranks\n  fix: zero=0, "
            "or AdamW"
        )


def _double(array: Any) -> Any:
    """An array in float64, a complex one in complex128; integers and the like as they are."""
    if not is_inexact(array.dtype):
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _device_of(parameters: list[Parameter]) -> tuple[str, int]:
    """The device of the first parameter that is on a GPU, and the memory there that arrays may still take."""
    array = next((p.array for p in parameters if device_of(p.array) != "cpu"), None)
    runtime = runtime_of(type(array))
    if array is None or runtime is None:
        return "cpu" if array is None else device_of(array), 0
    memory = runtime.memory()
    return device_of(array), memory.free_bytes + memory.pooled_bytes


def _check(model: Any, loss: Any, mesh: Any, microbatches: Any, optimizer: Any) -> None:
    if not callable(model) or isinstance(model, nn.Module):
        raise ArgumentError(
            f"Trainer: model is {type(model).__name__}; needed: a function that makes the model for one process\n"
            "  fix: Trainer(lambda: nn.Sequential(...), ...)"
        )
    if not callable(optimizer) or isinstance(optimizer, optim.Optimizer):
        raise ArgumentError(
            f"Trainer: optimizer is {type(optimizer).__name__}; needed: a function that makes it of this rank's "
            "parameters, which the trainer divides\n"
            "  fix: optimizer=lambda parameters: optim.AdamW(parameters, lr=0.001)"
        )
    if not isinstance(loss, nn.Module) or loss.parameters():
        raise ArgumentError(
            f"Trainer: loss={loss!r} was given; needed: a Module without parameters\n  fix: "
            "nn.CrossEntropyLoss(reduction='sum'), or a Module of yours whose forward(outputs, targets) is the sum of "
            "the losses; and parameters in the model"
        )
    reduction = getattr(loss, "reduction", "sum")
    if reduction != "sum":
        raise OptionError(
            f"Trainer: the loss has reduction={reduction!r}; needed: the sum of the losses, which the trainer "
            "divides by their global number\n  fix: reduction='sum'"
        )
    if not isinstance(mesh, Mesh):
        raise MeshError(f"Trainer: mesh={mesh!r} was given; needed: a Mesh\n  fix: cc.Mesh.fit(...)")
    if isinstance(microbatches, bool) or not isinstance(microbatches, int) or microbatches < 1:
        raise OptionError(f"Trainer: microbatches={microbatches!r}; needed: an int of at least 1")
