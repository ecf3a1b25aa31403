"""Proof that a collective keeps the pairing: the machinery of ringtape's own tests, for collectives of your own.

A `Case` is one collective on one pair of layouts, with a dense serial reference: plain functions from the list of all
ranks' operands to the list of all ranks' results, and from all cotangents back. A `Setting` says along which axes of
which mesh it runs, and what it holds on the other axes. `check` runs cases in a local world and returns what failed:

==========  ==================================================================================================
check       what it proves
==========  ==================================================================================================
forward     the result equals the dense reference's
adjoint     the cotangent of the operand equals the dense reference's
pairing     ``<F* ct, x'> = <ct, F x'>`` with x' independent of the point: summed over the ranks, once for I
tangent     forward mode gives ``F x'``
second      a Hessian-vector product through the collective, reverse over reverse, equals the dense one
mixed       the same, forward over reverse
layout      the result's labels are the case's, and the adjoint leads to what a sweep may relabel to the dual
ownership   no input was written to, and the gradient shares no memory with an input
error       nothing was raised on any rank
==========  ==================================================================================================

Whole programs are tested too, and so are the checks themselves (all of it loaded when it is asked for):

=============================  ===============================================================================
`generate`, `programs`         random correct SPMD programs; `programs` are Hypothesis's and shrink (its own extra)
`faults`, `shrink`             a program's gradients beside its dense meaning; the smallest that still shows a fault
`mutants`, `mutation_run`      a correct program's collectives and casts spoiled one by one, and which check says so
=============================  ===============================================================================

Operands, tangents and cotangents are random, non-contiguous, and differ between the ranks wherever their layout says
that ranks may differ: equal copies only for R and I.
"""

from __future__ import annotations

import importlib
from typing import Any

from .check import CheckFailed, Report, check, check_collective
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
    "judge", "mutated", "observe", "operand", "prepare", "run_cases",
]  # fmt: skip

_LATER = {
    **dict.fromkeys(("LeafForm", "Program", "Statement", "draw", "faults", "generate", "hand_over", "is_correct",
                     "shrink"), "random_programs"),
    **dict.fromkeys(("Mutant", "false_alarm", "mutants", "mutation_run"), "mutation"),
    **dict.fromkeys(("minimal", "programs"), "strategies"),
}  # fmt: skip
"""Names that are loaded when they are first asked for, and the module that holds each."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_LATER[name]}", __package__), name)
