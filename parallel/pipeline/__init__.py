"""Pipeline parallelism: each rank runs some of a model's layers, on one microbatch after another."""

from __future__ import annotations

from .schedules import SCHEDULES, Action, Message, Schedule, Task, gpipe, interleaved, one_f_one_b, zb_h1, zb_v
from .simulator import Costs, Simulation, simulate

__all__ = [
    "Action", "Costs", "Message", "SCHEDULES", "Schedule", "Simulation", "Task", "gpipe", "interleaved", "one_f_one_b",
    "simulate", "zb_h1", "zb_v",
]  # fmt: skip
