"""Updates of many parameters on a device in few launches: which parameters are updated together, and their tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arrays.capture import current_capture
from ..arrays.device import runtime_of
from ..errors import CaptureError
from ..kernels import functions

__all__ = ["ON_HOST", "Rounding", "Tables", "contiguous", "is_supported", "squares"]


ON_HOST = frozenset((np.ndarray, type(None)))
"""The types of gradients of parameters on the host, or without one."""


class Rounding(NamedTuple):
    """The loss scale and the rounded copies in an update of master weights."""

    copies: list[Any]  # for each parameter the array of 16 bits that its rounded value is written to, or None
    scale: float  # gradients are multiplied by it
    lost: Any  # on the device, one float64: set to 1 where a rounded value is infinite or NaN


class Tables:
    """The tables on the device of the arrays that are updated together, kept from step to step."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, ...], Any] = {}  # by the indices of parameters that a kernel updates together

    def update(
        self, optimizer: Any, kernel: str, kind: str, members: Sequence[int], gradients: Sequence[Any],
        state: Sequence[str | None], numbers: Callable[[], dict[str, Any]], advance: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """Update some parameters of an optimizer by a kernel of the types `kind`, which has the name of its file.

        `state` has the name of the state for each column of the kernel, or None, and `numbers` returns the
        hyperparameters that it takes. `advance` is called before each replay of a captured step.
        """
        rounding, group = optimizer.rounding, optimizer._group
        copies = None if rounding is None or kind.startswith("double") else [rounding.copies[i] for i in members]

        def columns() -> list[Any]:
            lists = [None if name is None else getattr(optimizer, name) for name in state]  # as they are at present
            of_state = [None if each is None else [each[i] for i in members] for each in lists]
            return [[optimizer.parameters[i].array for i in members], *of_state, copies]

        def options() -> dict[str, Any]:
            with optimizer.using(group):
                return numbers()

        p = optimizer.parameters[members[0]].array
        key = tuple(members)
        batch = self._found.get(key)
        if batch is None or not batch.holds(*columns()):
            batch = self._found[key] = functions("batch", type(p)).Batch(*columns())
        on_device = functions(kernel, type(p))

        def check() -> None:
            if not batch.holds(*columns()):
                raise CaptureError(
                    "a captured step was called after parameters or the optimizer's state were assigned, as "
                    "load_state_dict does: the captured work updates the arrays from before\n  fix: ag.capture(step), "
                    "which captures the step again"
                )

        def values() -> np.ndarray:
            return on_device.values(p.dtype, **options())

        on_replay = None  # the numbers of a captured step, which are written anew before each replay
        if (capture := current_capture()) is not None:
            on_replay = batch.numbers[: len(values())]
            store = functions("values", type(on_replay)).store
            capture.before_replay(check=check, advance=advance, write=lambda: store(on_replay, values()))
        getattr(on_device, kernel)(
            batch, [contiguous(gradients[i]) for i in members], **options(),
            scale=1.0 if rounding is None else rounding.scale, lost=None if rounding is None else rounding.lost,
            numbers=on_replay,
        )  # fmt: skip

    def __reduce__(self) -> Any:
        return Tables, ()


def is_supported(x: Any) -> bool:
    """Whether an array is on a device with a runtime, whose kernels sum the squares of such an array."""
    return runtime_of(type(x)) is not None and functions("squares", type(x)).is_supported(x)


def squares(xs: Sequence[Any], outs: Sequence[Any] | None = None, scale: Any = 1.0, **options: Any) -> Any:
    """The sum of the squares of arrays of one dtype on a device, in one launch; see `kernels.cuda.squares`."""
    return functions("squares", type(xs[0])).squares(xs, outs, scale, **options)


def contiguous(x: Any) -> Any:
    """An array in C order: itself, or a copy. NumPy's function does not call that of another library."""
    return x if x.flags.c_contiguous else x.copy()
