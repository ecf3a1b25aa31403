"""A deadlock in ten lines of send and recv, and why a backward pass cannot have one of its own.

    python examples/17_deadlock.py                    three threads of one process
    python examples/17_deadlock.py --ranks 5          any number of ranks from 2 on
    mpiexec -n 3 python examples/17_deadlock.py       three processes; the wrong program runs last, and ends the job

Each rank passes a vector to its right neighbour. In the first program all receive before they send, so that all wait
for ever; in ringtape that is an error on every rank, which says for whom each rank waits. In the second program they
send first. A send does not wait for its receiver, so it ends.

The backward pass has nothing of that kind to get wrong. A tape runs the adjoints in reverse order, and the adjoint of a
recv is a send, that of a send a recv: where each rank sent before it received, it sends before it receives again. So
a program that ended forwards ends backwards, too. The plan shows both directions before anything is sent backwards.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import collectives as cc

parser = argparse.ArgumentParser(description="Show a deadlock, its error, and the order of messages in backward.")
parser.add_argument("--ranks", type=int, default=3, metavar="N", help="threads of this process, without mpiexec")


def wrong() -> None:
    """All ranks receive first: none of them comes to its send."""
    with cc.Mesh(ring=-1) as mesh:
        rank, size = int(mesh.ranks.rank), mesh.ranks.size
        y = cc.recv("ring", (rank - 1) % size)
        cc.send(y + 1.0, "ring", (rank + 1) % size)


def right() -> None:
    """All ranks send first, and receive then."""
    with cc.Mesh(ring=-1) as mesh:
        rank, size = int(mesh.ranks.rank), mesh.ranks.size
        x = ag.tensor(np.full(2, 1.0 + rank), requires_grad=True)
        with ag.Tape() as tape:
            cc.send(x, "ring", (rank + 1) % size)
            y = cc.recv("ring", (rank - 1) % size)
            loss = cc.all_reduce((y * y).sum() / 2, "ring", to=cc.I)
        plan = tape.plan()  # all ranks compare their tapes; a deadlock in backward would be an error here
        tape.backward(loss)
        for each in range(size):
            mesh.ranks.barrier()
            if each == rank:
                print(f"[rank {rank}] sent {x.numpy()} to the right, received {y.numpy()} from the left; backward: "
                      f"sent {y.numpy()} to the left, received {x.grad.numpy()} from the right", flush=True)
        mesh.ranks.barrier()
        if rank == 0:
            print(f"\n{plan}")


def show(ranks: int) -> None:
    """Run both programs on threads."""
    try:
        cc.run(wrong, ranks)
    except cc.DeadlockError as error:
        print(f"All receive first:\n\n{error}\n")
    print("All send first:\n")
    cc.run(right, ranks)


if __name__ == "__main__":
    options = parser.parse_args()
    if cc.world().size == 1:
        if options.ranks < 2:
            parser.error("--ranks: a rank does not send to itself; needed: at least 2")
        show(options.ranks)
    else:
        right()
        wrong()
