"""Programs of CUDA C++: reading their sources, the names of types, and launching a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...arrays import runtime_of
from ...arrays.device import dtype_name
from ...arrays.runtime import Program
from ...errors import DtypeError
from ..blocks import wide

__all__ = ["NULL", "TYPES", "has_type", "launch", "launch_known", "program", "program_of", "type_name", "wide"]

_TYPES = {"float32": "float", "float64": "double", "float16": "Half", "bfloat16": "BFloat16"}
TYPES = tuple(_TYPES.values())
"""The C++ types of elements that the kernels support. Those of 16 bits are computed in float32 and rounded once."""
_HOST = frozenset((np.ndarray, bool, int, float, complex))
NULL = np.uintp(0)
"""The address that is passed in the place of an array that a kernel leaves out."""


def program(name: str, kernels: tuple[str, ...], others: tuple[str, ...] = ()) -> Program:
    """The program of the file ``source/<name>.cu``, or of other files there, after the definitions of ``common.cuh``.

    Examples
    --------
    >>> from autograd.kernels.cuda import program
    >>> program("softmax", ("softmax<float>",)).kernels
    ('softmax<float>',)
    """
    return program_of(name, "".join(map(_source, others or (f"{name}.cu",))), kernels)


def program_of(name: str, text: str, kernels: tuple[str, ...]) -> Program:
    """The program of a text, after the definitions of ``common.cuh``."""
    return Program(name, _source("common.cuh") + text, kernels)


def _source(file: str) -> str:
    from importlib.resources import files  # loads a third of what NumPy does; few programs need it

    return (files(__package__) / "source" / file).read_text()


def type_name(dtype: Any) -> str:
    """The C++ type of a dtype's elements.

    Raises
    ------
    DtypeError
        The kernels do not support the dtype.
    """
    found = _TYPES.get(dtype_name(dtype))
    if found is None:
        raise DtypeError(f"a kernel for an array of dtype {dtype} was asked for; needed: one of {', '.join(_TYPES)}")
    return found


def has_type(dtype: Any) -> bool:
    """Whether the kernels support a dtype."""
    return dtype_name(dtype) in _TYPES


def launch(
    program: Program, kernel: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any],
    shared_bytes: int = 0,
) -> None:  # fmt: skip
    """Run a kernel on the current stream of the device of its first argument.

    Parameters
    ----------
    kernel : str
        One of ``program.kernels``.
    grid, block : tuple of int
        The numbers of blocks, and of threads in a block. With an empty grid nothing runs.
    arguments : sequence of arrays and NumPy scalars
        Device arrays are passed by address: the kernel must know their strides, or they are contiguous. Numbers have
        the parameters' exact types, such as ``np.int64`` for ``long long``.
    shared_bytes : int
        The dynamic shared memory of a block.
    """
    if 0 in grid:
        return
    runtime = runtime_of(type(arguments[0]))
    assert runtime is not None, f"{type(arguments[0]).__name__} has no runtime"
    assert kernel in program.kernels, f"{kernel} is not listed in the program {program.name}"
    assert _HOST.isdisjoint(map(type, arguments)), "a host array or number"
    runtime.launch(program, kernel, grid, block, arguments, shared_bytes)


class Launch(NamedTuple):
    """A launch but for its arrays: see `launch`. None stands for each array among the arguments."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: Sequence[Any]
    shared_bytes: int = 0


class _Known(dict[Any, Callable[[Sequence[Any]], None]]):
    """Prepared launches by program, kernel, array type and key; at most `_MOST_KNOWN`. To make one takes some 20 us."""

    def prepare(self, key: Any, program: Program, kernel: str, made: Launch) -> Callable[[Sequence[Any]], None]:
        """The prepared launch, which is kept under a key."""
        if len(self) >= _MOST_KNOWN:  # shapes change all the time
            self.clear()
        runtime = runtime_of(key[0])
        assert runtime is not None, f"{key[0].__name__} has no runtime"
        assert kernel in program.kernels, f"{kernel} is not listed in the program {program.name}"
        found = self[key] = _nothing if 0 in made.grid else runtime.prepare(program, kernel, *made)
        return found


def _nothing(given: Sequence[Any]) -> None:
    """A launch without blocks."""


_MOST_KNOWN = 4096
_KNOWN = _Known()


def launch_known(program: Program, kernel: str, key: Any, make: Callable[[], Launch], *given: Any) -> None:
    """Run a kernel as `launch` does. Its grid and its numbers are made once for each key, and then kept.

    Parameters
    ----------
    kernel : str
        One of ``program.kernels``.
    key : hashable
        Everything that `make` depends on: shapes, strides, and the limits of the device.
    make : callable
        Returns the `Launch`.
    *given : arrays on the device, or None
        The arrays, in the order of the kernel's parameters; the first is not None. None is the null address.
    """
    whole = given[0].__class__, kernel, key, program.text
    known = _KNOWN.get(whole)
    if known is None:
        known = _KNOWN.prepare(whole, program, kernel, make())
    known(given)
