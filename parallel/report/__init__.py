"""Reports of training steps: the time of each phase, the overlap of communication, and the slowest rank.

=============  ============================================================
`step_report`  `StepReport`, which users call, and its table
`phases`       the time of each phase of a step, from the records of a rank
`drawing`      the drawing of a step
`stragglers`   which rank the others wait for, and why
=============  ============================================================
"""

from __future__ import annotations

from .step_report import StepReport

__all__ = ["StepReport"]
