"""Pipeline parallelism: each rank runs some of a model's layers, on one microbatch after another.

==================  ================================================================================================
`schedules`         schedules as data: GPipe, 1F1B, interleaved, ZB-H1, ZB-V, and own ones; their messages
`simulator`         deadlock, time, idle time by its causes, and live activations of a schedule
`drawing`           timelines as text and PNG; the bubble against the memory of activations
`stages`            which layers each stage has, balanced by their costs; which parameters several ranks use
`microbatches`      the parts of a batch, with their labels on the mesh
`randomness`        the random state of a layer, the same for any number of stages
`transfers`         activations and cotangents between ranks
`run`               `Pipeline`, which runs a model by a schedule
`same_bits`         steps whose bits do not depend on the number of ranks
`report`            idle share and live activations of a step, measured and predicted
==================  ================================================================================================
"""

from __future__ import annotations

from .drawing import draw, plot, plot_tradeoff, tradeoff
from .microbatches import Microbatches
from .randomness import layer_state
from .report import PipelineReport, Record
from .run import Pipeline
from .schedules import SCHEDULES, Action, Message, Schedule, Task, gpipe, interleaved, one_f_one_b, zb_h1, zb_v
from .simulator import Costs, Simulation, simulate
from .stages import measured_costs, parameter_costs, partition

__all__ = [
    "Action", "Costs", "Message", "Microbatches", "Pipeline", "PipelineReport", "Record", "SCHEDULES", "Schedule",
    "Simulation", "Task", "draw", "gpipe", "interleaved", "layer_state", "measured_costs", "one_f_one_b",
    "parameter_costs", "partition", "plot", "plot_tradeoff", "simulate", "tradeoff", "zb_h1", "zb_v",
]  # fmt: skip
