"""Exercise 4: a schedule of a pipeline.

Two ranks have a stage each, and there are four microbatches. `SCHEDULE` has a line for each rank: its actions in order.
``0F2`` is the forward pass of stage 0 for microbatch 2, ``0B2`` the backward pass, which takes twice as long. The one
below is right, but rank 0 holds the activations of all four microbatches. Change it so that no rank holds those of more
than two, and both ranks are idle for at most 20 % of the time.

    python examples/exercises/4_schedule.py
"""

from __future__ import annotations

import autograd as ag
from parallel.pipeline import Costs, Schedule, draw, simulate

SCHEDULE = """
0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3
1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3
"""
MOST_HELD, MOST_IDLE = 2, 0.20


def check(text: str) -> str:
    """Simulate a schedule. Returns what is wrong; "" if nothing is."""
    try:
        schedule = Schedule.parse(text.strip())
        found = simulate(schedule, Costs(1, 1, 1))
    except ag.RingtapeError as error:
        return f"{type(error).__name__}: {error}"
    picture = draw(found)
    if (schedule.ranks, schedule.microbatches) != (2, 4):
        return f"{schedule.ranks} ranks and {schedule.microbatches} microbatches were given; needed: 2 and 4"
    for rank, held in enumerate(found.peak_activations):
        if held > MOST_HELD:
            return f"rank {rank} holds the activations of {held:g} microbatches; needed: at most {MOST_HELD}\n{picture}"
    if found.bubble_fraction > MOST_IDLE:
        idle = f"{found.bubble_fraction:.0%}"
        return f"the ranks are idle for {idle} of the time; needed: at most {MOST_IDLE:.0%}\n{picture}"
    return ""


if __name__ == "__main__":
    print(check(SCHEDULE) or f"right\n{draw(simulate(Schedule.parse(SCHEDULE.strip()), Costs(1, 1, 1)))}")
