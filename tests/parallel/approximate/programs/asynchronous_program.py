"""A parameter server and local SGD under mpiexec: the results of serial programs, or a failure of rank 1."""

from __future__ import annotations

import sys

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, optim
from parallel.approximate.local_sgd import LocalSGD
from parallel.approximate.parameter_server import ParameterServer


def backward(model: nn.Module, rank: int) -> None:
    """The gradient of the sum of the weights, times the rank and one."""
    with ag.Tape() as tape:
        loss = cc.declare_partial(model.weight.sum() * (rank + 1.0) + model.bias.sum() * 0.5, "dp")
    tape.backward(loss)


def make() -> tuple[nn.Module, optim.Optimizer]:
    model = nn.Linear(3, 2, dtype=float)
    model.weight.data, model.bias.data = np.zeros((3, 2)), np.zeros(2)
    return model, optim.SGD(model.parameters(), lr=0.25)  # exact in binary


def main(how: str) -> None:
    with cc.Mesh(dp=-1) as mesh:
        axis = mesh.axis("dp")
        rank, size = int(axis.rank), axis.size
        for bound, steps in ((None, rank), (0, 5), (2, 7)):
            model, optimizer = make()
            with ParameterServer(model, "dp", optimizer, staleness=bound) as server:
                for step in range(steps):
                    server.read()
                    if rank == 1 and step == 3 and how == "raise":
                        raise ValueError("no data")
                    if rank == 1 and step == 3 and how == "exit":
                        sys.exit(3)
                    if rank == 1 and step == 3 and how == "deadlock":
                        axis.group.barrier()
                    backward(model, rank)
                    server.push()
                counts = list(range(size)) if bound is None else [steps] * size
                axis.group.barrier()
                assert sum(server.histogram().values()) == sum(counts)
            expected = -0.25 * sum((r + 1) * n for r, n in enumerate(counts))
            assert np.array_equal(model.weight.numpy(), np.full((3, 2), expected)), (bound, model.weight)
            assert np.array_equal(model.bias.numpy(), np.full(2, -0.125 * sum(counts)))
        script = [rank for rank in (0, 1, 2, 1, 0, 2) for _ in range(1)] * 2
        model, optimizer = make()
        with ParameterServer(model, "dp", optimizer, script=script) as server:
            staleness = []
            for _ in range(2):
                server.read()
                backward(model, rank)
                server.push()
                staleness.append(server.last.staleness)  # type: ignore[union-attr]
        assert staleness == [[1, 1], [0, 0], [2, 2]][rank], staleness
        model, optimizer = make()
        with LocalSGD(model, "dp", optimizer, every=2) as local:
            for _ in range(4):
                optimizer.zero_grad()
                backward(model, rank)
                local.step()
        assert np.allclose(model.weight.numpy(), -0.25 * 4 * (size + 1) / 2, rtol=1e-15)
        print("as the serial program")


if __name__ == "__main__":
    main(sys.argv[1])
