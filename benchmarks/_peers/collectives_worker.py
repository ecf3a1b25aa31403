"""One rank of a world that `benchmarks/collectives.py` measures: ringtape, raw mpi4py, or gloo of PyTorch.

    collectives_worker.py ringtape|operations|mpi|gloo HOST:PORT TOKEN

It runs in the environment of the library that it measures, and needs NumPy. All ranks of all worlds are alive at the
same time and take turns. Each waits for requests on a socket, which uses no processor time. A request names calls, one
size, and the number of batches; the batches of the calls alternate. The answer is the time of one call in each batch,
in seconds, measured between barriers.

In calls whose data go one way (`ONE_WAY`) a rank need not wait for the others. In a batch of them the sender would run
ahead, and the time would be that of MPI's queue of early messages. So a barrier, which is not timed, stands between
these calls, as in the latency tests of OSU.

``ringtape`` measures shared memory, ``operations`` the recorded operations over MPI. Both use public names only,
so that they also measure another tree of ringtape.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ONE_WAY = ("broadcast", "reduce", "scan")

Call = tuple[Callable[[], Any], Callable[[], Any]]  # what is timed, and what is done before a batch


class Mpi:
    """In-place Allreduce of mpi4py on one buffer."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = MPI.COMM_WORLD
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self.about = MPI.Get_library_version().splitlines()[0].strip("\0 ")
        self.barrier = self._comm.Barrier

    def call(self, name: str, size_bytes: int) -> Call:
        x = np.empty(size_bytes // 4, np.float32)
        mpi, comm, rank = self._mpi, self._comm, self.rank
        check(lambda: comm.Allreduce(mpi.IN_PLACE, x), x, rank, self.size)
        return lambda: comm.Allreduce(mpi.IN_PLACE, x), lambda: x.fill(rank + 1)


class Gloo:
    """In-place all_reduce of torch.distributed over gloo."""

    def __init__(self) -> None:
        torch: Any = importlib.import_module("torch")
        distributed: Any = importlib.import_module("torch.distributed")
        torch.set_num_threads(1)
        assert torch.get_num_threads() == 1
        distributed.init_process_group("gloo")
        self._torch, self._distributed = torch, distributed
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.about = f"gloo of torch {torch.__version__}"
        self.barrier = distributed.barrier

    def call(self, name: str, size_bytes: int) -> Call:
        x = self._torch.empty(size_bytes // 4, dtype=self._torch.float32)
        run, rank = self._distributed.all_reduce, self.rank
        check(lambda: run(x), x.numpy(), rank, self.size)
        return lambda: run(x), lambda: x.fill_(rank + 1)


class Ringtape:
    """Shared memory: ``window`` in place in a window, ``transport`` and ``recorded`` on arrays outside it."""

    def __init__(self) -> None:
        from before import check_tree

        import autograd
        import collectives

        try:
            from collectives.shared_arrays import along
        except ModuleNotFoundError:  # in trees from before October 2026, which `--before` may name
            from collectives.shared import along

        check_tree()
        self._ag, self._cc = autograd, collectives
        collectives.check("off")
        world = collectives.world()
        collectives.Mesh(dp=-1).__enter__()  # both for the life of the process
        self._along = along("dp")
        self._memory = self._along.__enter__()
        self.rank, self.size = world.rank, world.size
        self.about = "ringtape"
        self.barrier = self._memory.barrier

    def call(self, name: str, size_bytes: int) -> Call:
        rank, memory = self.rank, self._memory
        if name == "window":
            w = memory.empty(size_bytes // 4, np.float32)
            check(lambda: memory.all_reduce_in_place(w), w, rank, self.size)
            return lambda: memory.all_reduce_in_place(w), lambda: w.fill(rank + 1)
        if name in _STREAMS:
            a, b = np.ones(size_bytes // 4, np.float32), np.ones(size_bytes // 4, np.float32)
            stream = _STREAMS[name][1]
            return lambda: stream(a, b), lambda: None
        x = np.full(size_bytes // 4, rank + 1, np.float32)
        if name == "transport":
            return lambda: memory.all_reduce(x), lambda: None
        assert name == "recorded"
        state: dict[str, Any] = {}
        leaf = self._ag.tensor(x, requires_grad=True)
        all_reduce = self._cc.all_reduce

        def begin() -> None:
            if "tape" in state:
                state.pop("tape").__exit__(None, None, None)
            state["tape"] = self._ag.Tape()
            state["tape"].__enter__()
            state["y"] = leaf * 1.0

        return lambda: all_reduce(state["y"], "dp"), begin


class Operations:
    """Recorded operations over MPI: forward on an open tape, or a tape with its backward."""

    def __init__(self) -> None:
        from before import check_tree

        import autograd
        import collectives

        check_tree()
        self._ag, self._cc = autograd, collectives
        world = collectives.world()
        collectives.Mesh(dp=-1).__enter__()  # for the life of the process
        self.rank, self.size = world.rank, world.size
        self.about = "ringtape"
        self.barrier = world.barrier

    def call(self, name: str, size_bytes: int) -> Call:
        ag, cc = self._ag, self._cc
        operation, _, how = name.partition(", ")
        layout, function, dual = self._operation(operation)
        x = ag.tensor(np.ones((2 * self.size, size_bytes // 8 // self.size)), {"dp": layout}, requires_grad=True)
        mode = how.removeprefix("checked ") if how.startswith("checked") else "off"
        if how == "with backward":
            y = function(x)
            cotangent = ag.tensor(np.ones(y.shape), {"dp": dual})

            def run() -> None:
                with ag.Tape() as tape:
                    y = function(x)
                tape.backward(y, cotangent, wanted=[x])

            return run, lambda: cc.check(mode)
        state: dict[str, Any] = {}

        def begin() -> None:
            if "tape" in state:
                state.pop("tape").__exit__(None, None, None)
            cc.check(mode)
            state["tape"] = ag.Tape()
            state["tape"].__enter__()

        return lambda: function(x), begin

    def _operation(self, name: str) -> tuple[Any, Callable[[Any], Any], Any]:
        """The operand's layout, the operation, and the layout of its result's cotangent."""
        cc, size = self._cc, self.size
        ring = [(rank, (rank + 1) % size) for rank in range(size)]
        table: dict[str, tuple[Any, Callable[[Any], Any], Any]] = {
            "all_reduce": (cc.P, lambda x: cc.all_reduce(x, "dp"), cc.P),
            "all_reduce_async": (cc.P, lambda x: cc.all_reduce_async(x, "dp").wait(), None),
            "all_gather": (cc.V, lambda x: cc.all_gather(x, "dp"), cc.P),
            "reduce_scatter": (cc.P, lambda x: cc.reduce_scatter(x, "dp"), cc.Shard(0)),
            "broadcast": (cc.Rooted(0), lambda x: cc.broadcast(x, "dp"), cc.P),
            "reduce": (cc.P, lambda x: cc.reduce(x, "dp"), cc.Rooted(0)),
            "all_to_all": (cc.V, lambda x: cc.all_to_all(x, "dp", 0, 0), cc.V),
            "permute": (cc.V, lambda x: cc.permute(x, "dp", ring), cc.V),
            "scan": (cc.V, lambda x: cc.scan(x, "dp"), cc.V),
            "cast": (cc.I, lambda x: cc.cast(x, "dp", to=cc.R), cc.P),
        }
        return table[name]


# name -> how many times the bytes of an array cross the memory bus, and the function that moves them
_STREAMS: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "copy": (2, np.copyto),
    "add": (3, lambda a, b: np.add(a, b, out=a)),
    "scale": (2, lambda a, b: np.multiply(a, np.float32(1), out=a)),
}


def check(run: Callable[[], Any], x: Any, rank: int, size: int) -> None:
    """Check the result of a call before it is timed."""
    x.fill(rank + 1)
    run()
    expected = size * (size + 1) / 2
    assert x.min() == x.max() == expected, f"rank {rank} of {size}: {x.min()} to {x.max()}; needed: {expected}"


def one(run: Callable[[], Any], barrier: Callable[[], Any]) -> float:
    """The time of one call, in seconds, and then a barrier."""
    start = time.perf_counter()
    run()
    found = time.perf_counter() - start
    barrier()
    return found


def main(kind: str, address: str, token: str) -> None:
    """Answer requests until the connection closes."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        assert os.environ.get(name) == "1", f"{name} must be 1 before anything is loaded"
    world: Any = {"ringtape": Ringtape, "operations": Operations, "mpi": Mpi, "gloo": Gloo}[kind]()
    host, port = address.split(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lines = connection.makefile("rw")
    hello = {"token": token, "rank": world.rank, "size": world.size, "about": world.about}
    lines.write(json.dumps(hello) + "\n")
    lines.flush()
    calls: dict[str, Call] = {}
    size = 0
    clock = time.perf_counter
    for line in lines:
        names, size_bytes, batches, count = json.loads(line)
        if size_bytes != size:
            calls, size = {}, size_bytes  # the arrays of one size at a time
        for name in names:
            if name not in calls:
                calls[name] = world.call(name, size_bytes)
        times: list[list[float]] = [[] for _ in names]
        for _ in range(batches):
            for name, found in zip(names, times):  # noqa: B905 - strict= is not known to every peer's interpreter
                run, before = calls[name]
                before()
                run()
                world.barrier()
                if name in ONE_WAY:
                    found.append(sum(one(run, world.barrier) for _ in range(count)) / count)
                    continue
                start = clock()
                for _ in range(count):
                    run()
                found.append((clock() - start) / count)
        lines.write(json.dumps(times) + "\n")
        lines.flush()
    os._exit(0) if kind == "gloo" else None  # gloo's threads may not end by themselves


if __name__ == "__main__":
    main(*sys.argv[1:])
