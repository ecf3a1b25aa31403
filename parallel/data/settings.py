"""Settings of `DataParallel`: `Bucketing`, how gradients are summed, and `Zero`, what is divided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from autograd.errors import OptionError

__all__ = ["Bucketing", "Zero", "axis_names", "bucketing_of", "refuse_measured", "stage_of", "zero_of"]

_FIRST_BYTES = 1 << 20


@dataclass(frozen=True)
class Bucketing:
    """The layout of the gradients of a `DataParallel` model in the buckets that are summed.

    Parameters
    ----------
    bucket_bytes, first_bucket_bytes : int
        Gradients are summed in flat buckets of about this size, the first of which may be smaller, so that its sum
        starts early. With ``bucket_bytes=0`` each gradient is summed by itself. With ``bucket_bytes="measured"`` the
        ranks choose both after the first steps, from the times at which gradients are complete and from the measured
        link, where sums overlap with backward: between hosts. Another run may choose other sizes, which changes the
        rounding of sums; ``model.bucketing`` has the sizes, to give them from then on.
    buffers : int
        The number of buffers that each bucket keeps. Gradients are views of the buckets. A program that still holds
        those of the last step during the next backward pass needs 2, or else that pass allocates new buffers.

    Raises
    ------
    OptionError
        A size is negative, or `buffers` is less than 1.

    Examples
    --------
    >>> from autograd import nn
    >>> from parallel import Bucketing, DataParallel
    >>> model = DataParallel(nn.Linear(4, 2), "dp", bucketing=Bucketing(bucket_bytes=4 << 20, buffers=2))
    """

    bucket_bytes: int | Literal["measured"] = 25 << 20
    first_bucket_bytes: int = _FIRST_BYTES
    buffers: int = 1

    def __post_init__(self) -> None:
        _check_sizes("Bucketing", vars(self))


@dataclass(frozen=True)
class Zero:
    """A stage of ZeRO, and the axes along which the parts are repeated.

    Parameters
    ----------
    stage : {0, 1, 2, 3}
        The state of which each rank keeps only a part. 0: none; 1: the optimizer's; 2: the gradients, too; 3: the
        parameters, too.
    replicate : str or tuple of str
        More axes over which the batch is divided, along which the parameters are not.

    Raises
    ------
    OptionError
        The stage is another number, or `replicate` is given with stage 0.

    Examples
    --------
    >>> from parallel import Zero
    >>> Zero(2, replicate="hosts")
    Zero(stage=2, replicate='hosts')
    """

    stage: int = 0
    replicate: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        _check_stage("Zero", "stage", self.stage)
        _check_axes("Zero", "replicate", self.replicate)
        if self.replicate and not self.stage:
            raise OptionError(
                f"Zero: replicate={self.replicate!r} was given with stage=0, which divides no parameters\n"
                "  fix: a stage of 1, 2 or 3"
            )


def bucketing_of(caller: str, given: Bucketing | None, **sizes: Any) -> Bucketing:
    """The argument `bucketing`, or the `Bucketing` of its parts, given one by one. Both together are refused."""
    _check_sizes(caller, sizes)
    if given is None:
        return Bucketing(**sizes)
    if not isinstance(given, Bucketing):
        raise OptionError(
            f"{caller}: bucketing={given!r} was given; needed: a Bucketing\n  fix: Bucketing(bucket_bytes=4 << 20)"
        )
    both = [f"{f.name}={sizes[f.name]!r}" for f in fields(Bucketing) if sizes[f.name] != f.default]
    if both:
        raise OptionError(
            f"{caller}: bucketing={given!r} and {', '.join(both)} were given; needed: one of the two\n  fix: "
            f"bucketing=Bucketing({', '.join(both)})"
        )
    return given


def zero_of(caller: str, zero: int | Zero, axis: Any, replicate: Any) -> Zero:
    """The arguments `zero` and `replicate` of a model whose batch is divided over `axis`, as one `Zero`."""
    _check_axes(caller, "replicate", replicate)
    both = zero.replicate if isinstance(zero, Zero) else replicate
    twice = [name for name in axis_names(both) if both and name in axis_names(axis)]
    if twice:
        raise OptionError(
            f"{caller}: axis {twice[0]!r} was given in axis={axis!r} and in replicate={both!r}; needed: parts that are "
            f"divided along one axis and repeated along others\n  fix: leave {twice[0]!r} out of replicate"
        )
    if isinstance(zero, Zero):
        if replicate:
            raise OptionError(
                f"{caller}: zero={zero!r} and replicate={replicate!r} were given; needed: one of the two\n  fix: "
                f"zero=Zero({zero.stage}, replicate={replicate!r})"
            )
        return zero
    _check_stage(caller, "zero", zero)
    if replicate and not zero:
        raise OptionError(
            f"{caller}: replicate={replicate!r} was given with zero=0, which divides no parameters\n  fix: "
            f"DataParallel(module, {(*axis_names(replicate), *axis_names(axis))}), to divide the batch over all these "
            "axes"
        )
    return Zero(zero, replicate)


def refuse_measured(caller: str, zero: int, reduction: Any) -> None:
    """Raise OptionError for measured sizes with an option whose state depends on the buckets."""
    other = f"zero={zero}" if zero else "a reduction" if reduction is not None else ""
    if other:
        raise OptionError(
            f"{caller}: bucket_bytes='measured' and {other} were given. Measured buckets change after the first steps, "
            "and its state is kept by bucket\n  fix: bucket_bytes=1 << 20, or the size that a model without it has "
            "chosen (model.bucketing)"
        )


def stage_of(zero: int | Zero) -> int:
    """The stage that an argument `zero` gives."""
    return zero.stage if isinstance(zero, Zero) else zero


def axis_names(axis: Any) -> tuple[str, ...]:
    """Names of axes as a tuple."""
    return tuple(axis) if isinstance(axis, tuple | list) else (axis,)


def _check_sizes(caller: str, sizes: dict[str, Any]) -> None:
    for name, n in sizes.items():
        least = int(name == "buffers")
        if name == "bucket_bytes" and isinstance(n, str):
            if n != "measured":
                raise OptionError(f"{caller}: bucket_bytes={n!r} was given; needed: an int, or 'measured'")
            if sizes.get("first_bucket_bytes", _FIRST_BYTES) != _FIRST_BYTES:
                raise OptionError(
                    f"{caller}: bucket_bytes='measured' and first_bucket_bytes={sizes['first_bucket_bytes']!r} were "
                    "given; needed: one of the two, because the first bucket is measured, too"
                )
            continue
        if isinstance(n, bool) or not isinstance(n, int) or n < least:
            text = f"{caller}: {name}={n!r} was given; needed: an int of at least {least}"
            raise OptionError(text)


def _check_axes(caller: str, name: str, axes: Any) -> None:
    if not all(isinstance(axis, str) for axis in axis_names(axes)):
        raise OptionError(f"{caller}: {name}={axes!r} was given; needed: the name of an axis, or a tuple of names")


def _check_stage(caller: str, name: str, stage: Any) -> None:
    if isinstance(stage, bool) or not isinstance(stage, int | np.integer) or stage not in (0, 1, 2, 3):
        raise OptionError(f"{caller}: {name}={stage!r} was given; needed: 0, 1, 2 or 3")
