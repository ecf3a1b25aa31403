"""Tests for collectives: prove that a collective, ringtape's or your own, has a correct adjoint.

A `Case` is one collective on one pair of layouts, with a serial NumPy reference; a `Setting` is the mesh, the axes that
the collective runs along, and the operand's labels on the other axes. `check` runs cases on threads, one per rank, and
returns the failures of these checks:

==========  ==================================================================================================
check       what it proves
==========  ==================================================================================================
forward     the result equals the reference's
adjoint     the cotangent of the operand equals the reference's
pairing     ``<F* ct, x'> = <ct, F x'>``, where x' is independent of the operand x, and ``<a, b>`` is the sum
            over the ranks of local dot products, counted once along Invariant axes
tangent     forward mode gives ``F x'``
second      a Hessian-vector product through the collective, reverse over reverse, equals the reference's
mixed       the same product, forward over reverse
layout      the result has the case's labels, and the adjoint returns the dual layout of the operand, or one that
            the reverse sweep may relabel to it
ownership   no input was written to, and the gradient shares no memory with an input
error       no rank raised an exception
==========  ==================================================================================================

Operands, tangents and cotangents are random and non-contiguous, and differ between ranks wherever the layout allows it.
"""

from __future__ import annotations

from .check import CheckFailed, Report, check, check_collective
from .links import slow_link
from .proof import (
    Case,
    Failure,
    Setting,
    Skip,
    check_everywhere,
    judge,
    mutated,
    observe,
    operand,
    prepare,
    run_cases,
)

__all__ = [
    "Case", "CheckFailed", "Failure", "Report", "Setting", "Skip", "check", "check_collective", "check_everywhere",
    "judge", "mutated", "observe", "operand", "prepare", "run_cases", "slow_link",
]  # fmt: skip
