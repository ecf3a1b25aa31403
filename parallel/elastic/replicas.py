"""Silent corruption: every n steps the ranks compare the replicas of a run's state, and repair the one that differs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autograd.arrays.device import move, to_host
from autograd.engine.state import state
from autograd.errors import OptionError, ReplicaMismatch, ReplicaWarning, typed_errors, warn
from autograd.nn import Module

from ..checkpoint.disk import bytes_of, value_digest
from ..checkpoint.ownership import name_of_replicas
from ..checkpoint.replicas import (
    Difference,
    copies_of,
    differ,
    differences,
    digest_of_text,
    exchanged,
    ranks_text,
)
from ..checkpoint.tree import encode, objects_of, on_a_mesh, parts_of

__all__ = ["Replicas"]

_CALL = "Replicas.check"
_LOSS, _GATHERED = ", the loss", ", as gathered from rank "  # of what is no state


@typed_errors
class Replicas:
    """The replicas of a run's state, which the ranks compare every so many steps.

    A value that is Invariant or Replicated along axes of the mesh is on each of their ranks: the parameters and the
    optimizer's state of data parallelism, of each tensor-parallel part too, and those of ZeRO along the axes
    ``replicate``. A fault of a memory or a processor changes one of these replicas, and nothing else notices it. If
    more than half of the replicas are equal, those that differ are overwritten with their value.

    Parameters
    ----------
    objects : mapping of str to object, or an object
        Modules, optimizers, a `Trainer`: as for `checkpoint.save`.
    every : int
        `check` compares at the steps that this number divides.
    repair : bool
        Whether replicas that differ from the majority are overwritten. Otherwise an error names them.

    Raises
    ------
    OptionError
        `every` is less than 1.

    Notes
    -----
    With ZeRO 1 and 2 the copies of the parameters that the last step has gathered are compared, too, though they are no
    state, and of a `Trainer` the loss that its last step has returned. If these differ, the step was computed with
    wrong values, and there is nothing to repair: it is a `ReplicaMismatch`. From the first check on each rank computes
    a digest of its part when it is gathered. What a rank alone has cannot be compared, as its part of a reduce-scatter.

    A comparison reads this rank's replicas once, and sends a digest of 12 bytes for each set of axes to each rank; only
    if they differ, a digest of each value. Values of which a rank has the only copy are not compared: the parts of ZeRO
    without ``replicate``, running statistics that each rank has for itself, plain numbers.

    A repair makes the replicas equal again. It does not undo that gradients were computed with a wrong value since the
    last comparison; a smaller `every` bounds these steps. The comparisons of ``RINGTAPE_CHECK`` (`docs/checking.md`) at
    some steps of an optimizer raise `ReplicaMismatch` before a repair, if they come first.

    Examples
    --------
    >>> import warnings
    >>> import numpy, collectives as cc
    >>> from autograd import nn, random
    >>> from parallel.elastic import Replicas
    >>> def program():
    ...     with cc.Mesh(dp=3) as mesh:
    ...         net = nn.Linear(2, 1, key=random.Key(0))
    ...         mesh.check_replicas(net.parameters())
    ...         replicas = Replicas({"net": net}, every=10)
    ...         if mesh.ranks.rank == 1:
    ...             net.weight.array.view(numpy.uint32)[0, 0] ^= 1 << 30
    ...         return [(each.path, each.others) for each in replicas.check(20)]
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     cc.run(program, ranks=3)[0]
    [('net/weight', (1,))]
    """

    def __init__(self, objects: Any, *, every: int = 1, repair: bool = True):
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise OptionError(f"Replicas: every={every!r} was given; needed: a whole number of at least 1")
        self.objects: Mapping[str, Any] = objects if isinstance(objects, Mapping) else {"state": objects}
        self.every, self.repair = every, repair

    def __repr__(self) -> str:
        return f"Replicas({', '.join(self.objects)}, every={self.every}, repair={self.repair})"

    def check(self, step: int) -> list[Difference]:
        """Compare the replicas, if it is the turn of this step, and repair those that differ from the majority.

        All ranks of the mesh call it, outside of the block of a tape.

        Returns
        -------
        list of Difference
            The values that were repaired, the same on all ranks.

        Raises
        ------
        ReplicaMismatch
            On all ranks: replicas differ, and there is no majority, or `repair` is False, or a value cannot be written.
            Nothing was repaired but in the last case.
        """
        if step % self.every:
            return []
        with on_a_mesh(self.objects):
            group = state.distribution.group()
            if group.size == 1 or state.dry:
                return []
            pieces = encode(self.objects).pieces
            copies = copies_of(pieces)
            if not _differ({**copies, **(passing := self._passing())}, group):
                return []
            found = differences({**copies, **passing}, group, _CALL)
            of_step = [each for each in found if each.path.endswith(_LOSS) or _GATHERED in each.path]
            if of_step:
                raise ReplicaMismatch(
                    f"{_text(step, of_step[0])}{_others_text(of_step)}\n  A fault of a memory, a processor or the "
                    "network has changed it, and the last step was computed with it: all parameters are wrong since\n"
                    "  fix: go on from the last checkpoint"
                )
            undecided = [each for each in found if not each.is_decided]
            if undecided or not self.repair:
                found = undecided or found
                raise ReplicaMismatch(
                    f"{_text(step, found[0])}{_others_text(found)}\n  fix: go on from the last checkpoint"
                    + ("" if self.repair else "\n  or:  Replicas(..., repair=True), which overwrites what differs")
                )
            self._repair(found, pieces, group)
            if _differ(copies_of(encode(self.objects).pieces), group):
                raise ReplicaMismatch(
                    f"{_text(step, found[0])}{_others_text(found)}\n  The value of the majority could not be written: "
                    "an array is read-only, as one that a tape has saved\n  fix: call check outside of the tape's block"
                )
            if group.index == 0:
                for each in found:
                    warn(
                        f"{_text(step, each)}. It has been repaired from rank {each.usual[0]}\n  A fault of the memory "
                        "or the processor changes a value so, or a program that does not do the same on all ranks: "
                        f"test the host of {ranks_text(each.others)} if it occurs again", ReplicaWarning,
                    )
            return found

    def _passing(self) -> dict[str, dict[str, str]]:
        """The digests of values of the last step that are no state, in the form of `copies_of`."""
        found: dict[str, dict[str, str]] = {}
        for path, x in objects_of(self.objects).items():
            loss = getattr(x, "last_loss", None)
            if isinstance(loss, float) and state.grid is not None:
                found.setdefault(f"{'*'.join(state.grid.names)} of the loss", {})[path + _LOSS] = repr(loss)
        for path, x, _ in parts_of(self.objects):
            for name, module in x.named_modules() if isinstance(x, Module) else ():
                if not hasattr(module, "gathered_copies"):
                    continue
                names = {p: each for each, p in module.named_parameters(name)}
                for p, on, k, digest in module.gathered_copies(value_digest):
                    key = f"{name_of_replicas(p.layout, on.names)}, part {k}"
                    found.setdefault(key, {})[f"{path}/{names[p]}{_GATHERED}{on.group.ranks[k]}"] = digest
        return found

    def _repair(self, found: Sequence[Difference], pieces: Mapping[str, Any], group: Any) -> None:
        """Send each value from the first rank of the majority to those that differ. `send` returns at once."""
        lane, me = group.lane("replicas"), int(group.ranks[group.index])
        for each in found:
            if me == each.usual[0]:
                host = np.ascontiguousarray(to_host(pieces[each.path][0].array))
                for rank in each.others:
                    lane.send(np.frombuffer(bytes_of(host), np.uint8), group.ranks.index(rank))
            elif me in each.others:
                array = pieces[each.path][0].array
                like = to_host(array)
                flat = lane.recv(np.empty(like.nbytes, np.uint8), group.ranks.index(each.usual[0]))
                try:
                    array[...] = move(flat.view(like.dtype).reshape(like.shape), array)
                except (TypeError, ValueError):  # read-only: `check` finds that it differs still
                    pass


def _differ(copies: Mapping[str, Mapping[str, str]], group: Any) -> bool:
    mine = {name: digest_of_text(json.dumps(each)) for name, each in copies.items()}
    return differ(exchanged(group, json.dumps(mine), _CALL))


def _text(step: int, each: Difference) -> str:
    """The value, and the ranks on which it differs."""
    text = f"{_CALL}, step {step}: {each.path} is one value for {ranks_text(each.ranks)} (axis {each.axes!r}), and "
    if each.is_decided:
        return f"{text}on {ranks_text(each.others)} it is another one than on {ranks_text(each.usual)}"
    held = ", ".join(
        "nothing" if digest is None else digest.rpartition(")")[2] for digest in each.digests
    )
    return f"{text}none is that of more than half of them; digests: {held}"


def _others_text(found: Sequence[Difference]) -> str:
    more = len(found) - 1
    return f"\n  and {more} more value{'s' * (more > 1)} differ{'s' * (more == 1)}: " + ", ".join(
        f"{each.path} on {ranks_text(each.others)}" for each in found[1:9]
    ) + ", ..." * (more > 8) if more else ""
