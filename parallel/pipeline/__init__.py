"""Pipeline parallelism: each rank runs some of a model's layers, on one microbatch after another."""

from __future__ import annotations

from .microbatches import Microbatches
from .randomness import layer_state
from .report import PipelineReport, Record
from .run import Pipeline
from .schedules import SCHEDULES, Action, Message, Schedule, Task, gpipe, interleaved, one_f_one_b, zb_h1, zb_v
from .simulator import Costs, Simulation, simulate
from .stages import measured_costs, parameter_costs, partition

__all__ = [
    "Action", "Costs", "Message", "Microbatches", "Pipeline", "PipelineReport", "Record", "SCHEDULES", "Schedule",
    "Simulation", "Task", "gpipe", "interleaved", "layer_state", "measured_costs", "one_f_one_b", "parameter_costs",
    "partition", "simulate", "zb_h1", "zb_v",
]  # fmt: skip
