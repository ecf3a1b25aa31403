"""Forked children of a rank: they may compute, may not communicate, and their end is no event for the job."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import collectives as cc

from ..launch import launch


@pytest.mark.parametrize("on", ["here", "openmpi"])
def test_children_of_a_rank(on: str) -> None:
    """Refused calls, every way to end, and workers; the ranks' sums are right all the time, and nothing is printed."""
    outcome = launch("forked_children.py", 3, limit_s=100, on=on)
    assert (outcome.code, outcome.err, outcome.is_late) == (0, "", False), outcome
    assert all(f"DONE <{rank}>" in outcome.out for rank in range(3)), outcome


def test_children_of_a_rank_that_is_a_thread() -> None:
    def program() -> Any:
        with cc.Mesh(dp=3):
            world = cc.world()
            if world.rank == 1:
                read, write = os.pipe()
                pid = os.fork()
                if pid == 0:  # it has the thread of this rank only
                    text = ""
                    for call in (lambda: world.all_reduce(np.ones(3)), lambda: world.recv(np.ones(1), 0)):
                        try:
                            call()
                        except cc.CommunicationError as error:
                            text += f"<{error}>"
                    os.write(write, text.encode())
                    os._exit(0)
                os.close(write)
                with open(read) as pipe:
                    told = pipe.read()
                os.waitpid(pid, 0)
                assert told.count("A forked child is no rank") == 2 and "spawn" in told, told
            return world.all_reduce(np.ones(3)).tolist()

    assert cc.run(program, 3) == [[3.0] * 3] * 3


def test_child_of_a_program_of_one_rank_communicates_alone() -> None:
    assert cc.world().all_reduce(np.ones(2)).tolist() == [1, 1]
    pid = os.fork()
    if pid == 0:
        os._exit(int(cc.world().all_reduce(np.ones(2)).sum()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
