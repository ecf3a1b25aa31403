"""Exercise 2: the indices of a ring all-reduce.

Each rank has a vector in p parts, one for each rank. In each of 2 (p - 1) steps it sends one part to its right
neighbour, and adds what comes from the left to one of its parts (first p - 1 steps), or takes it in the place of it
(last p - 1 steps). Write `sent` and `received`: the numbers of these two parts, for a rank and a step, counted from 0.

    python examples/exercises/2_ring.py

What a rank receives is what its left neighbour sends. After the first p - 1 steps each rank has one complete part;
`examples/16_ring_and_tree.py` prints such a ring.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import autograd as ag
import autograd.numpy as anp
import collectives as cc

Index = Callable[[int, int, int], int]


def sent(rank: int, step: int, ranks: int) -> int:
    """The part that a rank sends to the right at a step."""
    raise NotImplementedError("which part does the rank send?")


def received(rank: int, step: int, ranks: int) -> int:
    """The part that comes from the left at a step."""
    raise NotImplementedError("which part does the rank receive?")


def check(sent: Index, received: Index, ranks: tuple[int, ...] = (1, 2, 3, 5)) -> str:
    """Test the indices on several numbers of ranks. Returns what is wrong; "" if nothing is."""
    for p in ranks:
        for step in range(2 * (p - 1)):
            for rank in range(p):
                mine, theirs = received(rank, step, p), sent((rank - 1) % p, step, p)
                if mine != theirs:
                    return (f"{p} ranks, step {step}, rank {rank}: it receives part {mine}, and its left neighbour "
                            f"sends part {theirs}; needed: the same")  # fmt: skip
                if mine not in range(p):
                    return f"{p} ranks, step {step}, rank {rank}: part {mine} was given; needed: 0 to {p - 1}"

        def program(p: int = p) -> Any:
            with cc.Mesh(dp=-1) as mesh:
                rank = int(mesh.axis("dp").rank)
                x, ct = np.random.default_rng(rank).normal(size=(2, p, 2))
                y, pull = ag.vjp(lambda x: ring(x, rank, p, sent, received), x)
                return x, y.numpy(), ct, pull(ag.tensor(ct, {"dp": cc.V})).numpy()

        results = cc.run(program, p)
        for what, k, of in (("sum", 1, 0), ("cotangent", 3, 2)):
            expected = np.sum([each[of] for each in results], axis=0)
            for rank, each in enumerate(results):
                for part in range(p):
                    if not np.allclose(each[k][part], expected[part]):
                        return (f"{p} ranks, rank {rank}, part {part}: the {what} is {each[k][part]}; needed: "
                                f"{expected[part]}\n  a part must have passed all ranks before it is copied")
    return ""


def ring(parts: Any, rank: int, p: int, sent: Index, received: Index) -> Any:
    """Run the ring on Tensors, so that the tape derives its backward pass."""
    right = [(r, (r + 1) % p) for r in range(p)]
    mine = [parts[k] for k in range(p)]
    for step in range(2 * (p - 1)):
        arrived = cc.permute(mine[sent(rank, step, p)], "dp", right)
        k = received(rank, step, p)
        mine[k] = mine[k] + arrived if step < p - 1 else arrived
    return anp.stack(mine)


if __name__ == "__main__":
    print(check(sent, received) or "right: all ranks have the sum, and its backward pass is a sum, too")
