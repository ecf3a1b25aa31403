"""Random SPMD programs as data: generate them, run them on ranks, and compare their gradients with serial ones.

=================  ==========================================================================================
module             contents
=================  ==========================================================================================
form               leaves and statements of a program, and its text as Python that can be pasted and run
rules              which statements are legal, and the layouts of their results: a second, independent
                   implementation of ringtape's rules
serial             the program evaluated in NumPy without ranks, with gradients by the complex step
execute            the program run in ringtape, on threads; `faults` compares it with the serial evaluation
generate           random correct programs; `strategies` generates them by Hypothesis instead
shrinking          reduce a program to a smaller one that still satisfies a condition
shapes             correct programs written by hand: data, tensor and sequence parallelism, and others
unlabelled         the program run without any check of layouts; used by `mutation`
=================  ==========================================================================================
"""

from __future__ import annotations

from .execute import draw, execute, faults, faults_everywhere, hand_over, judge, run_program
from .form import LeafForm, Program, Statement
from .generate import build, generate, meshes
from .rules import Illegal, Kind, kinds
from .serial import Answer, dense
from .shrinking import is_correct, shrink

__all__ = [
    "Answer", "Illegal", "Kind", "LeafForm", "Program", "Statement", "build", "dense", "draw", "execute", "faults",
    "faults_everywhere", "generate", "hand_over", "is_correct", "judge", "kinds", "meshes", "run_program", "shrink",
]  # fmt: skip
