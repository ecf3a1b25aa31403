"""Shared memory on real ranks; the first argument says what is done."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import autograd as ag
import collectives as cc
from autograd.errors import CollectiveMismatch
from collectives import shared_arrays
from collectives.transports.shared_memory import windows
from collectives.transports.shared_memory.communicator import SharedMemory, shared_memory

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))
from tests.collectives.transports.shared_memory_cases import DTYPES, SIZES, check_all, stress


def calls(memory: SharedMemory) -> None:
    for i, count in enumerate(SIZES):
        for dtype in DTYPES if count == 5003 else ("f4", "D"):
            check_all(memory, count, dtype, seed=i)


def on_tape() -> None:
    """Values and gradients along an axis are those of the transport, with cotangents that differ between ranks."""
    rng = np.random.default_rng(cc.world().rank)
    with cc.Mesh(dp=-1) as mesh:
        p = mesh.axis("dp").size
        x, rows = rng.standard_normal((6 * p, 5)), rng.standard_normal((4, 5))
        c, part = rng.standard_normal((6 * p, 5)), rng.standard_normal((6, 5))
        whole = rng.standard_normal((4 * p, 5))
        found = []
        for where in (shared_arrays.along("dp"), None):
            a, b = ag.tensor(x, requires_grad=True), ag.tensor(rows, requires_grad=True)
            if where is not None:
                where.__enter__()
            with ag.Tape() as tape:
                ys = [cc.all_reduce(a, "dp"), cc.reduce_scatter(a, "dp"), cc.all_gather(b, "dp")]
            duals = [{"dp": y.layout.dual["dp"]} for y in ys]
            cts = [ag.tensor(v, layout=dual) for v, dual in zip((c, part, whole), duals, strict=True)]
            tape.backward(ys, cts)
            if where is not None:
                where.__exit__(None, None, None)
            found.append([v.numpy().copy() for v in (*ys, a.grad, b.grad)])
        for ours, native in zip(*found, strict=True):
            np.testing.assert_allclose(ours, native, rtol=1e-12, atol=1e-12)


def buffers(memory: SharedMemory) -> None:
    """Many buffers, uneven, do not overlap; they are used again when all ranks have dropped them, and not before."""
    gc.collect()  # groups of before
    memory.trim()
    least = mapped_bytes()
    rng = np.random.default_rng(5)  # the same on all ranks
    held = []
    for i in range(200):
        n = int(rng.integers(0, 30_000)) * (memory.rank + 1)
        x = memory.empty(n, np.float32)
        x[...] = i
        held.append(x)
    memory.barrier()
    assert all((x == i).all() for i, x in enumerate(held))
    before = memory.buffer_bytes
    view = held[7][10:]
    del held, x
    gc.collect()
    memory.trim()
    assert 0 < memory.buffer_bytes < before / 50, "the one that a view holds is left"
    assert (view == 7).all()
    if memory.rank == 0:
        del view
    memory.trim()
    assert memory.buffer_bytes > 0, "freed, though other ranks hold it"
    view = None
    memory.trim()
    assert memory.buffer_bytes == 0
    assert mapped_bytes() == least, "only slots and flags are left"
    for _ in range(50):  # one at a time: no more memory than one takes
        x = memory.empty(1_000_003, np.float32)
        x[:] = memory.rank
        del x
    assert mapped_bytes() < least + 20_000_000 * memory.size
    big = memory.empty(9 << 20, np.float32)
    big[:] = memory.rank
    memory.all_reduce_in_place(big)
    assert (big == sum(range(memory.size))).all()
    assert mapped_bytes() > least + big.nbytes * memory.size
    del big
    memory.trim()
    assert mapped_bytes() == least
    memory.close()
    assert mapped_bytes() < least


def views(memory: SharedMemory) -> None:
    """Views that come and go at one place of Python's memory are not taken for one another."""
    rank, size, count = memory.rank, memory.size, 3000
    whole = memory.empty(4 * count, np.float32)
    for turn in range(3):
        whole[:] = rank + np.repeat(np.arange(4), count)
        for k in (2, 0, 3, 1):
            memory.all_reduce_in_place(whole[k * count : (k + 1) * count])  # dropped at once: the next may get its id
            expected = sum(range(size)) + size * k
            assert (whole[k * count : (k + 1) * count] == expected).all(), (turn, k)


def mapped_bytes() -> int:
    """What this process has mapped of shared windows, whose files have no name any more."""
    found = 0
    with open("/proc/self/maps") as file:
        for line in file:
            if "/dev/shm" in line and "(deleted)" in line:
                first, last = line.split()[0].split("-")
                found += int(last, 16) - int(first, 16)
    return found


def mismatch(memory: SharedMemory) -> None:
    """All ranks raise the error, and can continue."""
    for wrong in (
        lambda me: memory.all_reduce(np.ones(5 + (me == 1), np.float32)),
        lambda me: memory.all_reduce(np.ones(200_000 if me else 3)),
        lambda me: memory.all_reduce(np.ones(4, np.float32 if me else np.float64)),
        lambda me: memory.barrier() if me else memory.all_reduce(np.ones(4)),
        lambda me: memory.broadcast(np.ones(4), int(me == 1)),
    ):
        try:
            wrong(memory.rank)
        except CollectiveMismatch as error:
            assert "did not make the call" in str(error) or "different calls" in str(error), error
        else:
            raise AssertionError("a mismatch was not noticed")
        assert memory.all_reduce(np.ones(3))[0] == memory.size


def progress(memory: SharedMemory) -> None:
    """A rank that waits in shared memory lets a message go on for which another one waits."""
    world = cc.world()
    n = 4_000_000
    if world.rank == 0:
        world.send(np.ones(n), 1)
    elif world.rank == 1:
        assert world.recv(np.empty(n), 0).sum() == n
    memory.barrier()


def fenced() -> None:
    """With stores and loads ordered by MPI, as on processors that do not order them; on a channel of its own."""
    windows._FENCED = True
    memory = SharedMemory(cc.world().duplicate("fenced"))
    check_all(memory, 70_001, "f4", seed=1)
    stress(memory, 40)
    memory.close()


def fault(memory: SharedMemory, how: str) -> None:
    """Rank 1 is gone in the midst of calls while the others wait for it."""
    x = memory.empty(300_000, np.float32)
    for i in range(20):
        x.fill(1)
        memory.all_reduce_in_place(x)
        if i == 10 and memory.rank == 1:
            print(f"FAULT {time.time()}", flush=True)
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "stall":
                time.sleep(60)
            if how == "raise":
                raise ValueError("planted")
            sys.exit(0)
    print("WENT ON", flush=True)


def main(what: str, *args: str) -> None:
    memory = shared_memory(cc.world())
    assert memory is shared_memory(cc.world())
    if what == "all":
        calls(memory)
        on_tape()
        mismatch(memory)
        progress(memory)
        stress(memory, 100)
        fenced()
        views(memory)
        buffers(memory)
    else:
        fault(memory, what)
    print(f"RANK {memory.rank} DONE", flush=True)


main(*sys.argv[1:])
