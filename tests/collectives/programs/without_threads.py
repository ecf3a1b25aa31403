"""One rank where Python has no threads, processes, MPI or modules of POSIX, as in WebAssembly; and `run`, refused."""

import _thread
import os
import sys
import threading
from typing import Any

ABSENT = {
    "_multiprocessing", "_posixshmem", "_posixsubprocess", "cupy", "fcntl", "grp", "mpi4py", "numba", "pwd", "resource",
    "syslog", "termios",
}  # fmt: skip


class Absent:
    """The finder of modules that are not there."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def no_thread(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("can't start new thread")


for module in [name for name in sys.modules if name.split(".")[0] in ABSENT]:
    del sys.modules[module]
sys.meta_path.insert(0, Absent())
for owner, name in ((_thread, "start_new_thread"), (_thread, "start_joinable_thread"),
                    (threading, "_start_new_thread"), (threading, "_start_joinable_thread")):  # fmt: skip
    if hasattr(owner, name):
        setattr(owner, name, no_thread)
del os.fork

import numpy

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from parallel import DataParallel

rows = numpy.random.default_rng(0).normal(size=(8, 3))


def train(ranks: int = -1) -> float:
    with cc.Mesh(dp=ranks):
        model = DataParallel(nn.Linear(3, 2, dtype=float, key=random.Key(0, "linear")), "dp")
        optimizer = optim.Adam(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            with ag.Tape() as tape:
                y = model(cc.from_local(rows, {"dp": cc.Shard(0)}))
                loss = cc.all_reduce((y**2).sum(), "dp", to=cc.I) / 8
            tape.backward(loss)
            optimizer.step()
    return float(loss)


first = train()
for ranks in (1, 3):
    try:
        cc.run(train, ranks)
    except cc.MeshError as error:
        assert f"rank 0 of {ranks} has no thread" in str(error) and "program()" in str(error), error
    else:
        raise SystemExit(f"{ranks} ranks ran without threads")
assert train() == first  # the refused calls left no world behind
print(f"loss {first:.6f}")
