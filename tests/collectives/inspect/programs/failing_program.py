"""A few steps of training in which one rank does something wrong: a kind of fault, its rank, its step and its place.

    failing_program.py FAULT RANK STEP PLACE ALGORITHM ZERO

After each step a rank prints its loss and a digest of its weights. A line with a fault ends with a comment, its name.
"""

import hashlib
import sys

import numpy

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn, optim, random
from parallel import DataParallel

FAULT, RANK, STEP, PLACE, ALGORITHM, ZERO = sys.argv[1:7]


def is_due(fault: str, rank: int, step: int, place: str) -> bool:
    return (fault, rank, step, place) == (FAULT, int(RANK), int(STEP), PLACE)


def square(rank: int, step: int, place: str) -> ag.Tensor:
    return ag.tensor(numpy.full((), -1.0 if is_due("nan", rank, step, place) else 1.0, "float32"))


def trouble(mesh: cc.Mesh, rank: int, step: int, place: str) -> None:
    if is_due("exception", rank, step, place):
        raise ValueError(f"no data in step {step}")  # exception
    if is_due("mismatch", rank, step, place):
        cc.barrier("dp")  # mismatch
    if is_due("deadlock", rank, step, place):
        other = (rank + 1) % int(mesh.ranks.size)
        cc.world().recv(numpy.empty(3), other)  # deadlock


def main() -> None:
    key, rng = random.Key(0), numpy.random.default_rng(5)
    with cc.Mesh(dp=-1, algorithm=ALGORITHM) as mesh:
        rank, size = int(mesh.ranks.rank), int(mesh.ranks.size)
        layers = nn.Linear(6, 10, key=key.fold("a")), nn.Tanh(), nn.Linear(10, 3, key=key.fold("b"))
        first, last = nn.Sequential(*layers[:2]), layers[2]
        net = nn.Sequential(first, last)
        model = DataParallel(net, "dp", zero=int(ZERO))
        optimizer = optim.AdamW(net.parameters(), lr=0.01)
        for step in range(5):
            rows = numpy.array_split(rng.normal(size=(12, 6)).astype("float32"), size)[rank]
            optimizer.zero_grad()
            trouble(mesh, rank, step, "begin")
            x = cc.from_local(rows, {"dp": cc.Shard(0)})
            with ag.Tape() as tape:
                x = x * anp.sqrt(square(rank, step, "input"))  # nan input
                y = model(x)
                trouble(mesh, rank, step, "forward")
                y = y * anp.sqrt(square(rank, step, "output"))  # nan output
                squares = y * y * anp.sqrt(square(rank, step, "loss"))  # nan loss
                loss = cc.all_reduce(squares.sum(), "dp", to=cc.I) / 12
            tape.backward(loss)
            trouble(mesh, rank, step, "end")
            optimizer.step()
            digest = hashlib.sha256()
            for p in net.parameters():
                digest.update(numpy.ascontiguousarray(p.array).tobytes())
            text = f"rank {rank}: step {step} {float(loss.numpy()).hex()} {digest.hexdigest()[:16]}"
            print(f"{text}\n", end="", flush=True)


main()
