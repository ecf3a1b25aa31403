"""Ranks that work, first without a world and then in one, until the file that is named exists.

attacked.py FOLDER [child | world]
    Rank 0 writes FOLDER/start once it has imported the package, and waits for FOLDER/go. In the world it writes
    FOLDER/world, and works until FOLDER/stop exists. The files contain the name of the supervisor's socket. With
    `world` it does not wait for FOLDER/go.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

import collectives as cc
from collectives.job import launcher, supervisor_client

folder = Path(sys.argv[1])
rank = launcher.launched_rank()
name = supervisor_client.names(supervisor_client.launcher_process())[0]


def write(what: str) -> None:
    (folder / f"{what}.part{rank}").write_text(f"{name[1:]} {os.getpid()}")
    (folder / f"{what}.part{rank}").rename(folder / f"{what}{rank}")


write("start")
while not (folder / "go").exists() and len(sys.argv) < 3:
    time.sleep(0.01)
world = cc.world()
write("world")
while world.all_reduce(np.array([float((folder / "stop").exists())]))[0] == 0:
    assert world.all_reduce(np.arange(3.0))[2] == 2.0 * world.size
    time.sleep(0.01)
os.write(1, f"DONE on rank {rank}\n".encode())
