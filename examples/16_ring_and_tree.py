"""All-reduce step by step: a ring, and a tree, each made of messages that a tape can follow.

    python examples/16_ring_and_tree.py                    four threads of one process
    python examples/16_ring_and_tree.py --ranks 5          any number of ranks
    mpiexec -n 4 python examples/16_ring_and_tree.py       four processes

At the beginning each rank has a vector of its own; at the end all have the sum. The tables show which ranks' addends
each part of each rank contains, after every step. Look for two things:

- The ring has 2 (p - 1) steps, and sends a part of the vector in each: 2 n (p - 1) / p numbers from each rank, whatever
  the number of ranks p. The tree has 2 lg p steps, and sends the whole vector in each. So a ring is better for long
  vectors, a tree for short ones.
- Nobody has written a backward pass here. Each step is a `cc.permute`, whose adjoint sends the cotangents back, so the
  tape runs the same steps in reverse. Together they are the adjoint of a sum: another sum.
"""

from __future__ import annotations

import argparse
import math
import os
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import autograd.numpy as anp
import collectives as cc

parser = argparse.ArgumentParser(description="Show the steps of an all-reduce by a ring and by a tree.")
parser.add_argument("--ranks", type=int, default=4, metavar="N", help="threads of this process, without mpiexec")
parser.add_argument("--numbers", type=int, default=12, metavar="M", help="numbers of each part in the comparison")


def ring(parts: Any, show: Any) -> Any:
    """The sum over the ranks of an array [parts, numbers], with a part for each rank."""
    on = cc.current_mesh().axis("dp")
    p, r = on.size, on.group.index
    right = [(rank, (rank + 1) % p) for rank in range(p)]
    mine = [parts[k] for k in range(p)]
    for step in range(2 * (p - 1)):
        sent, got = (r - step) % p, (r - step - 1) % p
        arrived = cc.permute(mine[sent], "dp", right)
        is_sum = step < p - 1  # then the parts that are complete go around once more
        mine[got] = mine[got] + arrived if is_sum else arrived
        show(f"step {step + 1}: {'add' if is_sum else 'copy'} what comes from the left", mine)
    return anp.stack(mine)


def tree(parts: Any, show: Any) -> Any:
    """The same by a binomial tree: to rank 0 and back, over distances 1, 2, 4, ... and ..., 4, 2, 1."""
    on = cc.current_mesh().axis("dp")
    p, r = on.size, on.group.index
    levels = [2**k for k in range(math.ceil(math.log2(p)))]
    for far in levels:
        up = [(rank + far, rank) for rank in range(0, p - far, 2 * far)]
        parts = parts + cc.permute(parts, "dp", up)  # zeros where nothing arrives
        show(f"up by {far}: {', '.join(f'{a} to {b}' for a, b in up)}", parts)
    for far in reversed(levels):
        down = [(rank, rank + far) for rank in range(0, p - far, 2 * far)]
        keeps = float(all(r != to for _, to in down))
        parts = parts * keeps + cc.permute(parts, "dp", down)
        show(f"down by {far}: {', '.join(f'{a} to {b}' for a, b in down)}", parts)
    return parts


def show_addends(title: str, parts: Any) -> None:
    """Print which addends each part of each rank contains. The addend of rank r is 2**r, so that a sum is a set."""
    group = cc.world()
    bits = np.array([int(part.numpy()[0]) for part in parts], np.int64)
    found = group.exchange(bits.tobytes())
    if group.rank == 0:
        print(f"  {title}")
        for rank, each in enumerate(found):
            sets = ["".join(str(r) for r in range(group.size) if n >> r & 1) for n in np.frombuffer(each, np.int64)]
            print(f"    rank {rank}   " + "".join(text.ljust(group.size + 2) for text in sets))


def compare(numbers: int) -> None:
    """Compare values and gradients with `cc.all_reduce`, and print the messages and bytes of a rank."""
    group, p = cc.world(), cc.world().size
    random = np.random.default_rng(int(group.rank))
    x, ct = random.normal(size=(2, p, numbers))
    traffic = cc.current_mesh().axis("dp").group.traffic
    expected, pull = ag.vjp(lambda x: cc.all_reduce(x, "dp"), x)
    gradient = pull(ag.tensor(ct, {"dp": cc.P}))
    for name, algorithm in (("ring", ring), ("tree", tree)):
        before = traffic.bytes
        y, pull = ag.vjp(lambda x, algorithm=algorithm: algorithm(x, lambda *_: None), x)
        forward = traffic.bytes - before
        found = pull(ag.tensor(ct, {"dp": cc.V}))
        backward = traffic.bytes - before - forward
        errors = [float(abs(a.numpy() - b.numpy()).max()) for a, b in ((y, expected), (found, gradient))]
        everyone = group.exchange(np.array([*errors, forward, backward]).tobytes())
        most = np.max([np.frombuffer(each) for each in everyone], axis=0)
        if group.rank == 0:
            print(f"{name}: largest difference to cc.all_reduce: value {most[0]:.0e}, gradient {most[1]:.0e}; a rank "
                  f"sends at most {most[2]:g} bytes forward, {most[3]:g} backward")  # fmt: skip


def program(numbers: int) -> None:
    """The program of every rank."""
    with cc.Mesh(dp=-1):
        group = cc.world()
        addend = ag.tensor(np.full((group.size, 1), 2.0 ** int(group.rank)))
        for name, algorithm in (("Ring", ring), ("Tree", tree)):
            if group.rank == 0:
                print(f"{name}: the ranks whose addends are in each part")
            show_addends("at the beginning", addend)
            algorithm(addend, show_addends)
        compare(numbers)


if __name__ == "__main__":
    options = parser.parse_args()
    if cc.world().size > 1:
        program(options.numbers)
    else:
        cc.run(program, options.ranks, options.numbers)
