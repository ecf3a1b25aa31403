"""The door from autograd to the ranks: all that it asks of them, and the answers of one process.

``state.distribution`` is the current mesh (`collectives.Mesh`), or `ALONE`. It is the only way from the packages below
to those above: nothing registers itself here, so importing a module changes no other one.

==================  ================================================================================================
asked               when
==================  ================================================================================================
note_constant       an operation has used a number or an array that should be the same on all ranks
note_beside         a Varying operand has met the elements of a part
note_declaration    a leaf has got labels; a key, a norm or an order of data has been used
examine             an operation of the user is called with layouts that it has not met yet
compare_objective   before a sweep without given cotangents
compare_step        before an optimizer's step
progress            after each node of a sweep
group, gathered,    where the ranks hold parts, or values of their own: `optim`, `nn` and `transforms`
numbers_of_all, ...
plan                `Tape.plan`
==================  ================================================================================================
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..doors import door
from ..errors import MeshError
from ..layouts.layout import Layout

__all__ = ["ALONE", "Alone", "Distribution", "Group"]


class Group(Protocol):
    """Ranks that send each other bytes."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def index(self) -> int:
        """The place of this rank among them."""

    @property
    def ranks(self) -> Sequence[int]:
        """Their numbers in the world."""

    @property
    def dry(self) -> bool:
        """Whether they have no values: only one of them runs."""

    def exchange(self, data: bytes, of: str = "") -> list[bytes]:
        """The bytes of all ranks, in order. All of them call it. Reports name the call `of` that it is a part of."""


class Distribution(Protocol):
    """The door from autograd to the ranks. `Alone` answers for one process, `collectives.Mesh` for several."""

    @property
    def is_alone(self) -> bool:
        """Whether there is one rank, so that there is nothing to compare."""

    @property
    def progress(self) -> Callable[[], None] | None:
        """Makes progress on what is in flight, after a node of a sweep. None where nothing ever is."""

    @property
    def in_flight(self) -> tuple[Any, ...]:
        """Containers. While all are empty, there is nothing for `progress` to do."""

    @property
    def notes_lines(self) -> bool:
        """Whether the lines of means, and of products with the number of ranks, are noted on the tape."""

    @property
    def stage_axes(self) -> tuple[str, ...]:
        """The axes along which the ranks have different lists of parameters: those of pipelines."""

    # -- values that should be equal, or different, on the ranks ---------------------------------------------------
    def note_constant(self, name: str, layout: Layout, value: Any) -> None:
        """A number or an array that should be constant was used: by the operation `name`, whose result has `layout`.

        On axes where the result is R, I or P, all ranks must use the same value.
        """

    def note_beside(self, name: str, x: Any, out: Layout) -> None:
        """A Varying operand of an operation on elements has an element for each of a part beside it.

        `x` is the operand, a Tensor or an array, and `out` the layout of the result.
        """

    def note_declaration(self, how: str, x: Any) -> None:
        """A value was declared: "tensor", a leaf with explicit labels; "scalar", first, if it is made of one plain
        number; "constant"; "Parameter", with a Shard; "norm", which a function of the user has computed; "key", the
        name of a random key; "order", of a data set."""

    def examine(self, operation: Any, layouts: Sequence[Layout], arrays: Sequence[Any], options: Any) -> None:
        """An operation of the user is called for the first time with operands of these layouts, shapes and dtypes."""

    def compare_objective(self, outputs: Any, recording: Any) -> None:
        """A sweep without given cotangents starts from `outputs`. It is not asked where `is_alone`."""

    def compare_step(self, optimizer: Any) -> None:
        """An optimizer is about to make a step. It is not asked where `is_alone`."""

    def note_gradients(self, leaves: Sequence[Any]) -> None:
        """A sweep over a tape with something in `Recording.scale` has given these leaves their gradients."""

    def begin_run(self, recording: Any, run: Any) -> None:
        """The first run of a checkpointed function on `recording` begins, on a recording `run` of its own."""

    def is_norm_due(self) -> bool:
        """Count a norm that a function of the user has computed: whether it is compared with ours."""

    def quiet(self, is_quiet: bool, together: Sequence[str] = ()) -> None:
        """Begin, or end, that the ranks compare nothing but their calls, as in replays of a captured step. It is not
        asked where `is_alone`. Along the axes `together` no rank replays, so that they may be asked for values."""

    # -- values of all ranks ---------------------------------------------------------------------------------------
    def group(self, axes: Sequence[str] | None = None) -> Group:
        """The ranks along some axes; all ranks of the mesh without them."""

    def shapes(self, axes: Sequence[str], shape: Sequence[int]) -> tuple[list[tuple[int, ...]], int]:
        """The shape of a value on each rank along some axes, and this rank's index."""

    def numbers_of_all(self, number: float, axes: Sequence[str], call: str) -> list[float]:
        """The numbers of all ranks along some axes, in order. `call` describes the call to the other ranks."""

    def combinations_of_stages(self, found: set[tuple[str, ...]], call: str) -> set[tuple[str, ...]]:
        """The combinations of axes that occur on any rank along `stage_axes`, given those of this rank."""

    def gathered(self, array: Any, dim: int, axis: str, call: str) -> Any:
        """The ranks' host arrays, concatenated along a dimension; None if every rank gives None."""

    def plan(self, tape: Any) -> Any:
        """The ranks' tapes as one graph; see `Tape.plan`."""


class _One:
    """The group of one rank."""

    size, index, ranks, dry = 1, 0, (0,), False

    def exchange(self, data: bytes, of: str = "") -> list[bytes]:
        return [data]


class Alone:
    """The `Distribution` of one process without a mesh: nothing is compared, and each value is the whole."""

    is_alone = True
    progress: Callable[[], None] | None = None
    in_flight: tuple[Any, ...] = ()
    notes_lines = False
    stage_axes: tuple[str, ...] = ()

    def note_constant(self, name: str, layout: Layout, value: Any) -> None:
        pass

    def note_beside(self, name: str, x: Any, out: Layout) -> None:
        pass

    def note_declaration(self, how: str, x: Any) -> None:
        pass

    def examine(self, operation: Any, layouts: Sequence[Layout], arrays: Sequence[Any], options: Any) -> None:
        pass

    def compare_objective(self, outputs: Any, recording: Any) -> None:
        pass

    def compare_step(self, optimizer: Any) -> None:
        pass

    def note_gradients(self, leaves: Sequence[Any]) -> None:
        pass

    def begin_run(self, recording: Any, run: Any) -> None:
        pass

    def is_norm_due(self) -> bool:
        return False

    def quiet(self, is_quiet: bool, together: Sequence[str] = ()) -> None:
        pass

    def group(self, axes: Sequence[str] | None = None) -> Group:
        return _One()

    def shapes(self, axes: Sequence[str], shape: Sequence[int]) -> tuple[list[tuple[int, ...]], int]:
        return [tuple(shape)], 0

    def numbers_of_all(self, number: float, axes: Sequence[str], call: str) -> list[float]:
        return [float(number)]

    def combinations_of_stages(self, found: set[tuple[str, ...]], call: str) -> set[tuple[str, ...]]:
        return found

    def gathered(self, array: Any, dim: int, axis: str, call: str) -> Any:
        return array

    def plan(self, tape: Any) -> Any:
        if "collectives" not in sys.modules:
            raise MeshError("tape.plan() was called without collectives\n  fix: import collectives")
        return door("plans").plan(tape, None, (1,))


ALONE = Alone()
