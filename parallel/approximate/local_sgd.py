"""Local SGD and DiLoCo: ranks train copies of a model by themselves, and average them now and then.

Between two synchronisations the parameters are V: each rank has a value of its own, and trains it on a loss of its own.
The objective is the sum of the ranks' losses (`declare_partial`, which sends nothing). Its gradient with respect to a
V parameter is the gradient of the rank's own loss, so backward and the optimizer's step send nothing either.

A synchronisation averages *parameters*. The mean is the definition of these algorithms. Nothing else in ringtape
averages: gradients are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from autograd.arrays.capture import refuse_recorded
from autograd.arrays.device import to_host
from autograd.engine.leaves import Parameter
from autograd.engine.locks import step_check
from autograd.engine.tensor import Tensor
from autograd.errors import ArgumentError, OptionError, typed_errors
from autograd.layouts.layout import I
from autograd.layouts.messages import describe
from autograd.nn import Module
from autograd.optim import SGD, Optimizer
from autograd.optim.groups import matching
from autograd.optim.hyperparameters import check_count, check_numbers
from autograd.whole import part_of
from collectives.checks.modes import is_due
from collectives.checks.sanitizer import Copy, digest_of
from collectives.mesh import Axis
from collectives.replicas import settle

from .own_copies import OwnCopies, assign, numbers_of, weighted_means

__all__ = ["DiLoCo", "LocalSGD"]

Array = np.ndarray[Any, Any]


@typed_errors
class LocalSGD:
    """Give each rank of `axis` a copy of `module`'s parameters, I -> V, and average the copies every `every` steps.

    Inside ``with LocalSGD(...) as local:`` each rank trains its own copy: its tape's objective is its own loss, made
    one number by ``cc.declare_partial(loss, axis)``, and `step` is the optimizer's step followed, each `every`-th time,
    by a synchronisation. At the end of the block the copies are averaged once more, if a rank has stepped since, and
    the parameters are I again.

    Parameters
    ----------
    module : Module
        Its parameters are I along `axis`, and equal on its ranks.
    axis : str or sequence of str
        The mesh axes whose ranks train copies.
    optimizer : Optimizer
        Of parameters of `module`; any optimizer. Its state stays this rank's own, synchronisations leave it as it is.
    every : int
        The number of steps between two synchronisations, H in the papers.
    weight : float
        The weight of this rank's copy in the mean: ``sum(w_r x_r) / sum(w_r)``. The default weighs all ranks alike.
        Federated averaging uses each rank's number of rows. A rank with weight 0 takes the mean of the others. It may
        be assigned at any time, and counts for the next synchronisation.
    bucket_bytes : int
        The largest size of one all-reduce; larger models are averaged in several. It bounds the additional memory.

    Attributes
    ----------
    version : int
        The number of synchronisations. Copies of one version are equal when they are made.
    local_steps : int
        The steps that this rank has taken since.

    Raises
    ------
    LayoutError
        At the start of the block: a parameter is not I along `axis`. A model that `DataParallel` wraps raises it at a
        call, because its parameters are now V.
    ReplicaMismatch
        The parameters differ at the start of the block; or copies differ after a synchronisation.
    CollectiveMismatch
        At a synchronisation: the ranks are at different versions, or only some of them synchronise.
    OptionError
        `every` or `bucket_bytes` is less than 1, `weight` is negative; or at a synchronisation all weights are 0.
    ArgumentError
        `module` is no Module, or `optimizer` no optimizer of its parameters.

    See Also
    --------
    DiLoCo : The same with an outer optimizer.

    Notes
    -----
    A synchronisation sends one all-reduce for each bucket of parameters and buffers and each dtype, each with the
    weight as one element more. So with `every` = H, a step sends 1/H of the bytes of synchronous training on average.
    Backward and the optimizer send nothing.

    Formula: after the H-th local step ``x_r <- sum_r(w_r x_r) / sum_r(w_r)``. With ``every=1``, plain SGD and equal
    weights, p ranks take a step of the mean of their gradients: the step of synchronous SGD with the learning rate
    divided by p, as gradients are summed there.

    Buffers, such as the running statistics of `nn.BatchNorm1d`, are averaged like parameters, integer ones with the
    result rounded. The mean of running variances is not the variance of all rows: it lacks the variance between the
    ranks' means.

    The ranks compare their version at each synchronisation, and digests of the averaged values after the 1st, 2nd,
    4th, 8th, ... and each 100th one.

    The optimizer's state differs between the ranks when the block ends. To go on synchronously with the same
    optimizer raises `ReplicaMismatch` at its next step, unless it has no state; make a new one.

    Sources: Stich, Local SGD converges fast and communicates little (ICLR 2019), algorithm 1; the weights are those of
    McMahan et al., Communication-efficient learning of deep networks from decentralized data (AISTATS 2017).

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> from autograd import nn, optim
    >>> from parallel import LocalSGD
    >>> def program():
    ...     with cc.Mesh(dp=2) as mesh:
    ...         model = nn.Linear(1, 1, bias=False)
    ...         model.weight.data = [[0.0]]
    ...         optimizer = optim.SGD(model.parameters(), lr=0.5)
    ...         x = ag.tensor([[1.0 + mesh.axis("dp").rank]], dtype="float32")  # V: the rows of this rank
    ...         with LocalSGD(model, "dp", optimizer, every=2) as local:
    ...             for _ in range(2):
    ...                 optimizer.zero_grad()
    ...                 with ag.Tape() as tape:
    ...                     loss = cc.declare_partial(model(x).sum(), "dp")
    ...                 tape.backward(loss)
    ...                 local.step()
    ...         return model.weight.layout["dp"], model.weight.item()
    >>> cc.run(program, ranks=2)
    [(I, -1.5), (I, -1.5)]
    """

    def __init__(
        self, module: Module, axis: str | Sequence[str], optimizer: Optimizer, every: int = 8, *, weight: float = 1.0,
        bucket_bytes: int = 25 << 20,
    ):  # fmt: skip
        caller = type(self).__name__
        self._copies = OwnCopies(caller, module, axis, optimizer)
        check_count(caller, least=1, every=every, bucket_bytes=bucket_bytes)
        self.optimizer = optimizer
        self.every = every
        self.bucket_bytes = bucket_bytes
        self.version = 0
        self.local_steps = 0
        self.weight = weight
        self._compared = 0  # synchronisations of this object, unlike `version` not part of its state
        self._calls = 0  # of the optimizer's step, the last one by `step`
        self._on: Axis | None = None

    def __repr__(self) -> str:
        held = f"version {self.version} and {self.local_steps} steps"
        return f"{type(self).__name__}(axis={self._copies.axis!r}, every={self.every}): {held}"

    @property
    def weight(self) -> float:
        """The weight of this rank's copy in the mean."""
        return self._weight

    @weight.setter
    def weight(self, value: float) -> None:
        check_numbers(type(self).__name__, weight=value)
        self._weight = float(value)

    # -- the block -------------------------------------------------------------------------------------------------
    def __enter__(self) -> LocalSGD:
        self._start()
        return self

    def _start(self) -> Axis:
        on = self._on = self._copies.part()
        self._calls = self.optimizer.calls
        return on

    def __exit__(self, error: Any, *_: Any) -> None:
        if error is None:
            on = self._axis("the end of the block")
            flag = np.array([self.local_steps > 0], np.float32)
            on.group.agree(lambda: f"the end of the block of {type(self).__name__} (axis={'*'.join(on.names)!r})")
            if on.group.all_reduce(flag)[0]:
                self._synchronise("at the end of the block")
            self._copies.join(on)
        self._on = None

    def _axis(self, call: str) -> Axis:
        if self._on is None:
            name = type(self).__name__
            raise OptionError(
                f"{call} outside of the block of {name}; needed: with {name}(...) as local:, in which the ranks have "
                "copies of their own"
            )
        return self._on

    # -- steps -----------------------------------------------------------------------------------------------------
    def step(self) -> None:
        """Take the optimizer's step on this rank's copy; each `every`-th time all ranks synchronise.

        A rank without rows calls it too, without gradients, so that all ranks synchronise at the same steps. It should
        set `weight` to 0 if it has not stepped at all.

        Raises
        ------
        SavedArrayError
            A tape still needs the value of a parameter.
        CollectiveMismatch
            The ranks synchronise at different versions.
        """
        refuse_recorded("LocalSGD.step")
        self._axis("step")
        if self.optimizer.calls != self._calls:
            raise OptionError(
                f"{type(self).__name__}.step: the optimizer has taken a step by itself; needed: local.step() in the "
                "place of optimizer.step(), which it calls"
            )
        self.optimizer.step()
        self._calls = self.optimizer.calls
        self.local_steps += 1
        if self.local_steps >= self.every:
            self._synchronise(f"every {self.every} steps")

    def synchronise(self) -> None:
        """Average the copies of all ranks now. All ranks of the axis call it, after any number of steps each."""
        self._axis("synchronise")
        self._synchronise("as asked")

    def _synchronise(self, why: str) -> None:
        on, name, copies = self._axis("synchronise"), type(self).__name__, self._copies
        for p in copies.learned:
            step_check(p)
        values = [numbers_of(p) for p in copies.learned] + [numbers_of(x) for x in copies.averaged_buffers()]
        self.version += 1
        self._compared += 1
        call = f"synchronisation {self.version} of {name}, {why}"
        on.group.agree(lambda: f"{call} (axis={'*'.join(on.names)!r} {sum(x.size for x in values)} elements)")
        means = weighted_means(call, values, self._weight, on, self.bucket_bytes)
        self._apply(means[: len(copies.learned)])
        copies.set_buffers(means[len(copies.learned) :], on)
        self.local_steps = 0
        if on.size > 1 and is_due(self._compared, every=100):
            self._compare(on)

    def _apply(self, means: list[Array]) -> None:
        """Replace this rank's copies. Subclasses override it."""
        for p, mean in zip(self._copies.learned, means, strict=True):
            assign(p, mean)

    def _compare(self, on: Axis) -> None:
        """Compare the copies of this version, which are equal on all ranks."""
        names = self._copies.names
        place = f"after synchronisation {self.version} of {type(self).__name__}"
        copies = [
            Copy(f"{name} {place}", f"{name}: {describe(p.array, p.array.shape, p.layout)}", digest_of(p.array))
            for name, p in zip(names, self._copies.learned, strict=True)
        ]
        settle(on.group, f"the comparison {place}", copies)

    # -- state -----------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """The version and the number of local steps.

        A checkpoint between two synchronisations holds values of one rank: the parameters and the optimizer's state
        are its own. Each rank saves a file of its own, with ``nn.save({"model": ..., "optimizer": ..., "local": ...},
        path)`` inside the block, and loads it inside the block. After a synchronisation the parameters are equal.
        """
        return {"version": self.version, "local_steps": self.local_steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict`.

        Raises
        ------
        ArgumentError
            Entries are missing or unknown.
        """
        self.prepare_state_dict(state_dict)()

    def prepare_state_dict(self, state_dict: Mapping[str, Any]) -> Callable[[], None]:
        """Check a `state_dict`, and return the function that sets it. `nn.load` calls it."""
        needed = set(self.state_dict())
        if set(state_dict) != needed:
            raise ArgumentError(
                f"{type(self).__name__}.load_state_dict: {sorted(state_dict)} was given; needed: {sorted(needed)}"
            )
        numbers = {name: state_dict[name] for name in ("version", "local_steps")}
        check_count(f"{type(self).__name__}.load_state_dict", **numbers)
        return lambda: vars(self).update(numbers)


@typed_errors
class DiLoCo(LocalSGD):
    """Local SGD whose synchronisation is a step of an outer optimizer on the shared parameters: SGD with Nesterov.

    Each rank also holds the shared parameters, I along `axis`, as they were at the last synchronisation. The outer
    gradient is their difference to the mean of the copies, ``d = shared - mean``. A synchronisation takes a step of SGD
    with Nesterov momentum along it, and all ranks go on from the new shared parameters. The outer optimizer runs on
    each rank alike, and compares its parameters, gradients and state between the ranks as every optimizer does.

    Parameters
    ----------
    module, axis, optimizer, every, weight, bucket_bytes
        See `LocalSGD`. The paper uses AdamW as the inner optimizer, whose state stays this rank's own, and 500 steps.
    outer_lr, outer_momentum : float
        Of the outer optimizer. With 1 and 0 the algorithm is that of `LocalSGD`, up to rounding.

    Attributes
    ----------
    outer : SGD
        The outer optimizer. Its learning rate may be set.
    shared : list of Parameter
        The shared parameters, in the order of the optimizer's.

    Raises
    ------
    OptionError
        A number is out of range.

    See Also
    --------
    LocalSGD : The form of a program, other errors, and the bytes that are sent.

    Notes
    -----
    Formula: ``v <- outer_momentum v + d``, ``shared <- shared - outer_lr (d + outer_momentum v)``. The bytes and
    messages are those of `LocalSGD`; the memory is that of the parameters twice more, for the shared parameters and the
    velocity.

    Source: Douillard et al., DiLoCo: Distributed low-communication training of language models (2023), algorithm 1.

    Examples
    --------
    >>> import collectives as cc
    >>> from autograd import nn, optim
    >>> from parallel import DiLoCo
    >>> def program():
    ...     with cc.Mesh(dp=2) as mesh:
    ...         model = nn.Linear(1, 1, bias=False)
    ...         model.weight.data = [[0.0]]
    ...         inner = optim.AdamW(model.parameters())
    ...         with DiLoCo(model, "dp", inner, every=500, outer_lr=0.5, outer_momentum=0.5) as local:
    ...             model.weight.data = [[1.0 + mesh.axis("dp").rank]]  # in the place of 500 steps
    ...             local.synchronise()
    ...         return model.weight.item()
    >>> cc.run(program, ranks=2)
    [1.125, 1.125]
    """

    def __init__(
        self, module: Module, axis: str | Sequence[str], optimizer: Optimizer, every: int = 500, *,
        outer_lr: float = 0.7, outer_momentum: float = 0.9, weight: float = 1.0, bucket_bytes: int = 25 << 20,
    ):  # fmt: skip
        super().__init__(module, axis, optimizer, every, weight=weight, bucket_bytes=bucket_bytes)
        self.shared = [Parameter(p.array, name=f"shared {name}")
                       for p, name in zip(optimizer.parameters, self._copies.names, strict=True)]  # fmt: skip
        self.outer = SGD(self.shared, lr=outer_lr, momentum=outer_momentum, nesterov=outer_momentum > 0)

    def __enter__(self) -> DiLoCo:
        on = self._start()
        for shared, p in zip(self.shared, self._copies.learned, strict=True):
            assert p.layout is not None
            shared.layout = p.layout.replace(on.names, I)
            assign(shared, p.array)
        return self

    def _apply(self, means: list[Array]) -> None:
        for shared, mean in zip(self.shared, means, strict=True):
            assert shared.layout is not None
            change = shared.array - mean.astype(shared.array.dtype)
            shared.grad = Tensor(change.conj(), shared.layout.dual)  # the step is along the conjugate of it
        self.outer.step()
        for shared, p in zip(self.shared, self._copies.learned, strict=True):
            shared.grad = None
            assign(p, shared.array)

    def state_dict(self) -> dict[str, Any]:
        """The version, the number of local steps, the shared parameters and the state of the outer optimizer."""
        state = super().state_dict()
        state["shared"] = [np.array(to_host(p.array)) for p in self.shared]
        state["outer"] = self.outer.state_dict()
        return state

    def prepare_state_dict(self, state_dict: Mapping[str, Any]) -> Callable[[], None]:
        """Check a `state_dict`, and return the function that sets it. `nn.load` calls it."""
        steps = [super().prepare_state_dict(state_dict), self.outer.prepare_state_dict(state_dict["outer"])]
        _, places = matching(self.outer, state_dict["outer"].get("names"))
        if len(state_dict["shared"]) != len(self.shared):
            raise ArgumentError(
                f"DiLoCo.load_state_dict: {len(state_dict['shared'])} shared parameters were given; needed: "
                f"{len(self.shared)}"
            )
        parts = [part_of(state_dict["shared"][k], p.array, None, "DiLoCo.load_state_dict", p.name)
                 for k, p in zip(places, self.shared, strict=True)]  # fmt: skip

        def commit() -> None:
            for step in steps:
                step()
            for p, part in zip(self.shared, parts, strict=True):
                p.data = part

        return commit
