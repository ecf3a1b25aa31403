"""A training program of `training` as a job of processes, of which some are killed.

    elastic_program.py CASE DIRECTORY RANK@SECONDS,... [stop] [spares=N]

Each victim ends by a signal so long after its first step has begun, wherever it is then. Faults of RINGTAPE_FAULTS come
in addition. Each rank that is left prints its losses, the digest of its parameters, and how the run went on.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time

import numpy as np

import collectives as cc
from parallel import elastic
from tests.parallel.elastic import training


def write(line: str) -> None:
    """Write a line at once, so that the lines of several ranks do not mix."""
    os.write(1, f"{line}\n".encode())


def main(name: str, folder: str, victims: dict[int, float], number: signal.Signals, spares: int) -> None:
    with cc.World(policy="raise") as world:
        me = world.communicator.index

        def die() -> None:
            write(f"DIES {me} {time.monotonic()}")
            os.kill(os.getpid(), number)

        def restored(run: elastic.Run) -> None:
            if run.starts > 1:
                write(f"RESTORED {me} {run.starts} {time.monotonic()}")
            elif me in victims:
                threading.Timer(victims[me], die).start()

        training.listeners.append(restored)
        found = training.program(name, copies=2, directory=folder, every=2, spares=spares)
        if found is None:
            write(f"RESULT {me} null")
            return
        losses, parameters, report = found
        digest = hashlib.sha256()
        for key in sorted(parameters):
            digest.update(np.ascontiguousarray(parameters[key]).tobytes())
        died = [[sorted(each.died), each.step, each.source, each.seconds] for each in report.recoveries]
        meshes = [each.mesh for each in report.recoveries]
        write(f"RESULT {me} {json.dumps([losses, digest.hexdigest(), died])}")
        write(f"MESHES {me} {json.dumps(meshes)}")


if __name__ == "__main__":
    case, directory, plan, *rest = sys.argv[1:]
    times = {int(rank): float(at) for rank, at in (each.split("@") for each in plan.split(",") if each)}
    waiting = sum(int(each.removeprefix("spares=")) for each in rest if each.startswith("spares="))
    main(case, directory, times, signal.SIGSTOP if "stop" in rest else signal.SIGKILL, waiting)
