"""`DataParallel`, a module that runs another module on each rank's part of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal
from weakref import ref

import numpy as np

from autograd.engine.distribution import ALONE
from autograd.engine.leaves import Parameter
from autograd.engine.state import state
from autograd.engine.tape import Tape
from autograd.engine.tensor import Tensor
from autograd.errors import ArgumentError, MeshError, OptionError, TapeError, typed_errors
from autograd.nn.module import Module
from autograd.nn.substitution import ASSIGNED, VALUES, substitutable, substituted
from collectives.mesh import Axis, Mesh, current_mesh

from .buckets import Reduction
from .entry import ENTRY, Entry, entered_axes, plan_entry, plan_sharded_entry
from .layers import Arena, Layers, layers_of
from .settings import Bucketing, Zero, axis_names, bucketing_of, refuse_measured, zero_of
from .sharded import SHARDED_ENTRY, division, shard_parameter

__all__ = ["DataParallel"]


@typed_errors
class DataParallel(Module):
    """Run `module` with its parameters cast from I to R along `axis`, so that gradients are summed over its ranks.

    All parameters enter together at each call (`enter`), and the adjoint of this entry is the all-reduce of their
    gradients. The caller divides the batch: inputs are V or Shard(0) along `axis`. Gradients are summed and never
    averaged, so the loss contains the normalisation: sum the losses over the ranks and divide by the global count.

    Parameters
    ----------
    module : Module
        Its parameters are I along `axis`. One that is Shard along some of the axes enters along the others only: along
        those each rank has its own part, whose gradient is not summed over them. Such are the experts of a
        `parallel.expert.MixtureOfExperts`.
    axis : str or tuple of str
        The mesh axes over which the batch is divided.
    bucket_bytes, first_bucket_bytes : int
        Gradients are summed in flat buckets of about this size, the first of which may be smaller, so that its sum
        starts early. With ``bucket_bytes=0`` each gradient is summed by itself. With ``bucket_bytes="measured"`` the
        ranks choose both after the first steps; see `Bucketing`.
    buffers : int
        The number of buffers that each bucket keeps. Gradients are views of the buckets. A program that still holds
        those of the last step during the next backward pass needs 2, or else that pass allocates new buffers.
    reduction : Reduction, optional
        How a bucket is summed, for example a compression. By default it is summed exactly. `nn.save` of the model
        includes its state.
    zero : {0, 1, 2, 3} or Zero
        The stage of ZeRO: what each rank keeps only a part of. 1: the optimizer's state; 2: the gradients, too; 3: the
        parameters, too. From 1 on the parameters of the module are replaced, here, by this rank's rows of them, with
        the label ``Shard(0)``: make the optimizer from ``model.parameters()`` afterwards. A mesh must be current. Where
        another axis divides the rows, as tensor parallelism does, the next dimension is divided; a parameter without
        such a dimension stays whole.
        Parameters that are Shard along some of the axes are not divided further: they enter along the others.
    replicate : str or tuple of str, optional
        With `zero`: more axes over which the batch is divided, along which the parameters are not. So a mesh of
        ``hosts`` and ``inside`` divides them among the ranks of a host, and sums the gradients of the parts over the
        hosts: ``DataParallel(module, "inside", zero=2, replicate="hosts")``, or ``zero=Zero(2, replicate="hosts")``.
    bucketing : Bucketing, optional
        `bucket_bytes`, `first_bucket_bytes` and `buffers` as one object, which several models can share.

    Raises
    ------
    ReplicaMismatch
        At the first call: the parameters differ between ranks.
    LayoutError
        At a call: a parameter is neither I nor Shard along an axis.
    ArgumentError, MeshError
        `module` is no Module, `axis` is no name, or `reduction` has no method ``reduce``.
    OptionError
        A size is negative, or `buffers` is less than 1; or settings are given twice, by themselves and in an object.

    Notes
    -----
    Backward sums n bytes of gradients and one flag per parameter, which tells whether any rank has used it: about
    ``2 n (p-1)/p`` bytes per rank in about n / `bucket_bytes` all-reduces. Between hosts they overlap with the backward
    pass (Li et al., PyTorch Distributed, VLDB 2020, section 3.2). On one host the ranks add the buckets in shared
    memory.

    Examples
    --------
    >>> import autograd as ag, collectives as cc, numpy
    >>> from autograd import nn
    >>> from parallel import DataParallel
    >>> def program():
    ...     with cc.Mesh(dp=2) as mesh:
    ...         model = DataParallel(nn.Linear(1, 1, bias=False), "dp")
    ...         rows = numpy.ones((2, 1), "float32") * (mesh.axis("dp").rank + 1)
    ...         x = cc.from_local(rows, {"dp": cc.Shard(0)})
    ...         with ag.Tape() as tape:
    ...             loss = cc.all_reduce(model(x).sum(), "dp", to=cc.I)
    ...         tape.backward(loss)
    ...         return model.parameters()[0].grad.item()
    >>> cc.run(program, ranks=2)
    [6.0, 6.0]
    """

    _keeps_names = "module"

    def __init__(
        self,
        module: Module,
        axis: str | Sequence[str],
        *,
        bucket_bytes: int | Literal["measured"] = 25 << 20,
        first_bucket_bytes: int = 1 << 20,
        buffers: int = 1,
        reduction: Reduction | None = None,
        zero: int | Zero = 0,
        replicate: str | Sequence[str] = (),
        bucketing: Bucketing | None = None,
    ):
        if not isinstance(module, Module):
            raise ArgumentError(f"DataParallel: {module!r} was given; needed: a Module")
        names = axis_names(axis)
        if not names or not all(isinstance(name, str) for name in names):
            raise MeshError(f"DataParallel: axis={axis!r} was given; needed: the name of an axis")
        sizes = bucketing_of(
            "DataParallel", bucketing, bucket_bytes=bucket_bytes, first_bucket_bytes=first_bucket_bytes, buffers=buffers
        )
        self.module = module
        self.axis = axis
        divides = zero_of("DataParallel", zero, axis, replicate)
        if reduction is not None and (isinstance(reduction, type) or not callable(getattr(reduction, "reduce", None))):
            raise ArgumentError(
                f"DataParallel: reduction={reduction!r} was given; needed: an object with a method reduce(bucket, "
                "group)\n  fix: reduction=PowerSGD(rank=2), an object that this model alone uses"
            )
        if divides.stage and reduction is not None:
            raise OptionError(
                f"DataParallel: zero={divides.stage} and a reduction were given. A reduction sums whole gradients, and "
                "here each rank gets a part of the sum\n  fix: zero=0, or no reduction"
            )
        if sizes.bucket_bytes == "measured":
            refuse_measured("DataParallel", divides.stage, reduction)
        self.zero, self.replicate = divides.stage, axis_names(divides.replicate)
        self._buckets = {**vars(sizes), "reduction": reduction}
        self._begin()
        if self.zero:
            self._divide()

    def _begin(self) -> None:
        """Set the attributes in `_PREPARED`, as they are before the first call."""
        self._parameters: list[Parameter] = []
        self._owners: list[tuple[dict[str, Any], str, int]] | None = None  # (attributes, name, index of the parameter)
        self._is_counted = True  # whether `ASSIGNED` counts for all of these attributes
        self._assigned = -1  # its number when they were looked at
        self._checked = False
        self._entries: list[Entry] = []  # recorded where the module is called
        self._layers: Layers | None = None  # entries of stage 3, recorded where a layer is called
        # Of the last entries: the gathered arrays, the recording, and the places there.
        self._at: tuple[list[Any] | None, Any, list[int]] | None = None
        self._entered: list[Any] | None = None  # the parameters inside, in a block of `accumulate`

    def __getstate__(self) -> dict[str, Any]:
        """The attributes for a copy and for pickle, without those that the first call of the copy makes again."""
        if self.zero:
            raise OptionError(
                f"a DataParallel model with zero={self.zero} was to be copied or pickled: its parameters are the rows "
                "of this rank. Needed: the module before it was divided\n  fix: DataParallel(copy.deepcopy(module), "
                f"..., zero={self.zero}) before, and copied.load_state_dict(model.state_dict())\n  or:  nn.save(...)"
            )
        return {name: value for name, value in vars(self).items() if name not in _PREPARED}

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        vars(self).update(attributes)
        self._begin()

    def attached(self) -> Iterator[tuple[str, Any]]:
        reduction = self._buckets["reduction"]
        if reduction is not None:
            yield "reduction", reduction

    def kept_buffers(self) -> list[Any]:
        """The buffers of gradients that are kept from one backward pass to the next."""
        layers = [] if self._layers is None else self._layers.entries
        return [flat for entry in (*self._entries, *layers) for flat in entry.kept_buffers()]

    @property
    def bucketing(self) -> Bucketing:
        """The sizes of the buckets: with ``bucket_bytes="measured"`` those in use, once the model was called."""
        found = [entry.bucketing for entry in self._entries]
        given = Bucketing(**{name: self._buckets[name] for name in ("bucket_bytes", "first_bucket_bytes", "buffers")})
        return next((each for each in found if each is not None), given)

    def gathered_arrays(self) -> list[Any]:
        """The memory into which layers are gathered (stage 3)."""
        return [] if self._layers is None else self._layers.arena.buffers

    def gathered_copies(self, digest: Callable[[Any], str]) -> Iterator[tuple[Parameter, Axis, int, str]]:
        """Copies of other ranks' parts that the last gather has left here (stages 1 and 2), for `elastic.Replicas`.

        Yields a parameter, the axis along which it is divided, the rank of this axis whose part it is, and the digest.
        """
        for entry in self._entries:
            if (runs := entry.gathers) is not None:
                for i, k, found in runs.gathered_copies(digest):
                    yield runs.shards[i], runs.on, k, found

    def whole_arrays(self) -> dict[Parameter, Any]:
        """The whole array of each parameter, at this time. All ranks call it, while no tape is recording."""
        if self._owners is None:
            self._register()
        found = {p: x.array for p, x in zip(self._parameters, self._enter(), strict=True)}
        return found if self._layers is None else found | self._layers.whole_arrays()

    def _register(self) -> None:
        """Find all attributes that hold a parameter. A parameter that several attributes hold enters once."""
        index: dict[int, int] = {}
        self._owners = []
        for path, owner, attribute, parameter in self.module.named_owners():
            if id(parameter) not in index:
                index[id(parameter)] = len(self._parameters)
                parameter.name = parameter.name or path
                self._parameters.append(parameter)
            self._owners.append((vars(owner), attribute, index[id(parameter)]))
            self._is_counted &= substitutable(owner, attribute)

    def _divide(self) -> None:
        """Replace the parameters of the module by this rank's rows of them."""
        self._register()
        parameters, mesh = self._parameters, current_mesh()
        on, owners = mesh.axis(self.axis), self._owners or []
        self._check(mesh)
        names = axis_names(self.axis)
        divided = [entered_axes(p, mesh, names) == names and division(p, on) is not None for p in parameters]
        layers = layers_of(self.module, [each for each in owners if divided[each[2]]]) if self.zero == 3 else []
        freed = {k for layer in layers for k in layer.indices}
        wholes: dict[int, Any] = {}
        arena = Arena([[parameters[k].array for k in layer.indices] for layer in layers])
        for n, layer in enumerate(layers):
            wholes.update(zip(layer.indices, arena.arrays(n), strict=True))
        for k, p in enumerate(parameters):
            if divided[k]:
                kept = None if k in freed else wholes.setdefault(k, np.empty_like(p.array))
                parameters[k] = shard_parameter(p, mesh, on, kept)
        for attributes, name, k in owners:
            attributes[name] = parameters[k]
        ASSIGNED.n += 1
        self._entries = self._whole_entries(mesh, [k for k, is_part in enumerate(divided) if not is_part])
        kept_whole = [k for k in wholes if k not in freed]
        if kept_whole:
            self._entries.append(self._entry(kept_whole, wholes))
        if layers:
            entries = [self._entry(layer.indices, wholes, keeps_wholes=False) for layer in layers]
            self._layers = Layers(layers, entries, arena, parameters)

    def _whole_entries(self, mesh: Mesh, indices: list[int]) -> list[Entry]:
        """The entries of parameters that this model does not divide: one for each set of axes along which they enter.

        A parameter that is Shard along all axes does not enter.
        """
        names = *self.replicate, *axis_names(self.axis)
        options: dict[str, Any] = self._buckets
        groups: dict[tuple[str, ...], list[int]] = {}
        for k in indices:
            groups.setdefault(entered_axes(self._parameters[k], mesh, names), []).append(k)
        return [
            Entry(ENTRY, mine, partial(plan_entry, axis=axes, **options)) for axes, mine in groups.items() if axes
        ]

    def _entry(self, indices: list[int], wholes: dict[int, Any], keeps_wholes: bool = True) -> Entry:
        """The entry of divided parameters, given the arrays for the whole ones."""
        options, copies = self._buckets, self.replicate
        into = [wholes[k] for k in indices]
        kept: dict[str, Any] = {"keeps_gradients": self.zero == 1, "keeps_wholes": keeps_wholes}
        return Entry(
            SHARDED_ENTRY, indices,
            lambda parameters: plan_sharded_entry(parameters, self.axis, into, copies, **kept, **options),
            Entry(ENTRY, indices, lambda parameters: plan_entry(parameters, copies, **options)) if copies else None,
        )  # fmt: skip

    def _check(self, mesh: Mesh) -> None:
        """Compare the parameters between the ranks, at their first use."""
        if not self._checked:
            for p in self._parameters:
                p.labelled(mesh.grid)
            mesh.check_replicas(self._parameters)
            self._checked = True

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        if self._assigned != ASSIGNED.n:
            self._look_at_owners()
        layers = self._layers
        entered = self._enter() if self._entered is None else self._entered
        contexts, outer, at = state.contexts, VALUES.get(), self._at
        if at is not None:
            state.contexts = (*contexts, partial(self._reuse_entry, *at))
        try:
            values = dict(zip(self._parameters, entered))  # noqa: B905  `strict` costs as much as the rest
            VALUES.set(values if outer is None else {**outer, **values})  # `substituted`, without its calls
            if layers is None:
                y: Tensor = self.module.forward(*args, **kwargs)  # or several
            else:
                with layers.entering():
                    y = self.module.forward(*args, **kwargs)
            return y
        finally:
            VALUES.set(outer)
            state.contexts = contexts

    def _look_at_owners(self) -> None:
        """Find the attributes that hold a parameter; OptionError if one no longer holds that which it held."""
        assigned = ASSIGNED.n
        if self._owners is None:
            self._register()
        for attributes, name, k in self._owners or ():
            p = self._parameters[k]
            if attributes.get(name) is not p:
                raise OptionError(
                    f"DataParallel: another value was assigned to {name!r} of a module, in the place of {p.name}, "
                    "after the model was called or its parameters were divided. Needed: the parameters that it knows\n"
                    f"  fix: assign to the parameter's data, or replace {p.name} before DataParallel(module, ...)"
                )
        if self._is_counted:
            self._assigned = assigned

    def _enter(self) -> list[Any]:
        """Record the entry of the parameters, and return them as they are inside; those of layers as they are."""
        mesh: Any = state.distribution  # `current_mesh()`, without a call
        parameters = self._parameters
        if mesh is ALONE:
            mesh = current_mesh()  # raises
        if not self._checked:
            self._check(mesh)
        if not self._entries and not self.zero:
            self._entries = self._whole_entries(mesh, list(range(len(parameters))))
        recording: Any = state.recording
        places: list[int] = []
        entered: list[Any]
        if len(self._entries) == 1 and len(self._entries[0].indices) == len(parameters):
            entered = self._entries[0].record(mesh, parameters)
            places.append(entered[0].node)
        else:
            entered = list(parameters)
            for entry in self._entries:
                made = entry.record(mesh, parameters)
                places.append(made[0].node)
                for k, x in zip(entry.indices, made, strict=True):
                    entered[k] = x
        if self._layers is not None:
            self._layers.forget()
        held = [x.array for x in entered] if self.zero else None  # the others are those of the parameters
        self._at = None if recording is None else (held, ref(recording), places)
        return entered

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """A block of several microbatches: parameters enter once, and their gradients are summed once, at its end.

        Every microbatch has a tape and a backward pass of its own in the block. The cotangents of the microbatches are
        added on each rank (P), and the block's end sums them over the ranks. The ranks may have different numbers of
        microbatches, or none, if nothing in a microbatch communicates.

        Raises
        ------
        TapeError
            A tape is recording where the block begins, or another block of the model is open. Inside: a gradient of
            the model was read, as `clip_grad_norm_` and optimizers do.

        Notes
        -----
        The loss carries the normalisation: divide the loss of each microbatch by the number of rows of the whole batch,
        on all ranks and in all microbatches together. The gradient is then that of the whole batch, also if the
        microbatches have different numbers of rows.

        Examples
        --------
        >>> import autograd as ag, collectives as cc, numpy
        >>> from autograd import nn
        >>> from parallel import DataParallel
        >>> def program():
        ...     with cc.Mesh(dp=2) as mesh:
        ...         model = DataParallel(nn.Linear(1, 1, bias=False), "dp")
        ...         with model.accumulate():
        ...             for rows in ([[1.0], [2.0]], [[3.0]]):       # on each of two ranks: 6 rows in all
        ...                 x = cc.from_local(numpy.array(rows, "float32"), {"dp": cc.Shard(0)})
        ...                 with ag.Tape() as tape:
        ...                     loss = model(x).sum() / 6
        ...                 tape.backward(loss)
        ...         return model.parameters()[0].grad.item()
        >>> cc.run(program, ranks=2)
        [2.0, 2.0]
        """
        if state.recording is not None or self._entered is not None:
            what = "another block of this model is open" if self._entered is not None else "a tape is recording"
            raise TapeError(
                f"accumulate: {what}. Needed: a block around all microbatches, with a tape for each microbatch inside\n"
                "  fix: with model.accumulate(): for x in microbatches: with ag.Tape() as tape: ..."
            )
        if self._owners is None:
            self._register()
        with Tape() as tape:
            self._entered = self._enter()
        entries = (*self._entries, *(() if self._layers is None else self._layers.entries))
        pending = [self._parameters[k] for entry in entries for k in entry.indices]
        try:
            for p in pending:
                p.pending = "model.accumulate()"
            with current_mesh().accumulating():
                yield
        except BaseException:
            tape.recording.abandon()
            raise
        finally:
            self._entered = None
            for p in pending:
                p.pending = ""
        tape.backward()

    @contextmanager
    def _reuse_entry(self, held: list[Any] | None, recording: Callable[[], Any], places: list[int]) -> Iterator[None]:
        """Give the module the parameters of an earlier entry, for the recomputation of a part of it (checkpointing)."""
        parameters = self._parameters
        arrays = [p.array for p in parameters] if held is None else held
        values: dict[Any, Any] = {}
        for entry, first in zip(self._entries, places, strict=True):
            entered = entry.again([arrays[k] for k in entry.indices], recording(), first)
            values.update((parameters[k], x) for k, x in entered.items())
        with substituted(values), nullcontext() if self._layers is None else self._layers.entering():
            yield


_PREPARED = frozenset((
    "_parameters", "_owners", "_is_counted", "_assigned", "_checked", "_entries", "_layers", "_at", "_entered",
))  # fmt: skip
"""The attributes of a model that its first call sets, or with `zero` its division."""
