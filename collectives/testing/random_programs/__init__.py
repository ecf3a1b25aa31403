"""Random SPMD programs as data: written, run on ranks, evaluated without ranks, and compared.

=================  ==========================================================================================
part               what it does
=================  ==========================================================================================
form               leaves and statements; prints as Python that can be pasted
rules              which statements are legal, and the labels they give: the grammar, written a second time
serial             the program's meaning in dense NumPy, with exact gradients by the complex step
execute            the program in ringtape, on threads; `faults` compares the two
generate           random correct programs; `testing.strategies` makes Hypothesis choose, and shrink
shrinking          a smaller program that still shows what a larger one does
shapes             correct programs by hand: data, tensor and sequence parallelism, and others
unlabelled         what the ranks would compute if nobody looked at labels; `testing.mutation` asks it
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
