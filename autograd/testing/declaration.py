"""`check_declaration`: the properties that the declaration of an operation states, tested on its function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engine import events
from ..engine.primitive import Primitive
from ..engine.tensor import TENSORS, Tensor
from ..errors import typed_errors
from ..layouts.properties import dims_fault, is_testable, linear_fault, repeatable_fault
from .coordinates import Function, from_any_rank, raw
from .report import DeclarationMismatch

__all__ = ["check_declaration", "check_users_declarations"]


@typed_errors
def check_declaration(operation: Primitive, *args: Any, options: tuple[Any, ...] = (), seed: int = 0) -> None:
    """Test the properties that an operation's declaration states, and that the rules for layouts rely on.

    - A letter other than N and S: the function is linear in the operands of that letter, jointly, so that its results
      on the addends of a Partial value add up. It is tested at random values of these operands.
    - ``dims``: where a dimension is kept, the results on two parts are the parts of the result; where it is summed
      over, they are its addends. This includes elementwise operations.
    - ``neutral_zero``: a last operand 0 leaves the first unchanged.
    - Two calls give the same result, as on ranks with equal copies, and leave the operands as they were.

    `check_grads` and `check_adjoint` make this test for the user's operations that the tested function calls.

    Parameters
    ----------
    operation : Primitive
        Made by `op`.
    *args : array_like
        The operands, with at least two elements along the dimensions to be tested.
    options : tuple
        Further arguments of the function.
    seed : int
        Seed of the random values.

    Raises
    ------
    DeclarationMismatch
        A property does not hold. The message names it, the operands and the difference.

    Examples
    --------
    >>> import numpy
    >>> from autograd.extend import broadcast, op
    >>> from autograd.testing import check_declaration
    >>> shifted = op("shifted (example)", "a", lambda x: x + 1, lambda ct, y, x: ct, dims=broadcast)
    >>> try:
    ...     check_declaration(shifted, numpy.ones(3))
    ... except AssertionError as error:
    ...     print(str(error).partition(":")[0])
    shifted (example), declared with the letters 'a'
    """
    arrays = [raw(x) if isinstance(raw(x), np.ndarray | np.generic | int | float | complex) else np.asarray(raw(x))
              for x in args]  # fmt: skip
    if fault := _fault(operation, arrays, options, seed):
        raise DeclarationMismatch(fault)


def _fault(operation: Primitive, arrays: Sequence[Any], options: tuple[Any, ...], seed: int) -> str:
    """Return the first property of a declaration that does not hold; "" for none."""
    letters = operation.letters(len(arrays))
    fault = repeatable_fault(operation, arrays, options)
    for letter in dict.fromkeys(letters):
        if letter not in "NS":
            fault = fault or linear_fault(operation, letter, arrays, options, seed)
    fault = fault or dims_fault(operation, arrays, options)
    if fault is None and operation.neutral_zero:
        y = operation.function(*arrays[:-1], 0, *options)
        if not np.array_equal(np.asarray(y), np.asarray(arrays[0]), equal_nan=True):
            fault = "neutral_zero=True states that a last operand 0 leaves the first unchanged, and it does not"
    return f"{operation.name}, declared with the letters {' '.join(letters)!r}: {fault}" if fault else ""


class _Seen:
    """Collects the calls of the user's operations."""

    def __init__(self) -> None:
        self.calls: list[tuple[Primitive, Sequence[Any], tuple[Any, ...]]] = []

    def __call__(self, *event: Any) -> None:
        """Nothing is collected without facts."""

    def see(self, phase: str, direction: str, name: str, facts: tuple[Any, ...]) -> None:
        if phase == "end" and direction == "forward" and isinstance(facts[0], Primitive):
            operation, xs, _, options = facts
            if not operation.declared.is_own:
                self.calls.append((operation, xs, options))


Called = tuple[Primitive, list[Any], tuple[Any, ...]]
"""A call of an operation: the operands as arrays, and the options."""


def check_users_declarations(f: Function, args: Sequence[Any], seed: int = 0) -> list[Called]:
    """Call `f`, and test the declarations of the user's operations that it calls, with the operands that they get.

    Under a mesh all ranks raise the error of the first rank that has one. Returns the calls.
    """
    seen = _Seen()
    given = [x if x.__class__ in TENSORS else Tensor(x.copy()) for x in args]
    for x in given:
        if isinstance(x.array, np.ndarray):
            x.array.flags.writeable = False  # an operation that changes its operand raises
    with events.listening(seen):
        f(*given)
    fault, calls = "", []
    for operation, operands, options in seen.calls:
        arrays = [x.array if x.__class__ in TENSORS else np.asarray(x) for x in operands]
        calls.append((operation, arrays, options))
        if is_testable(arrays) and not fault:
            fault = _fault(operation, arrays, options, seed)
    if fault := from_any_rank(fault):
        raise DeclarationMismatch(fault)
    return calls
