"""A module is not changed while a model runs it: another thread that looks at it finds the parameters."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, random
from parallel import DataParallel, Sequence, parallelize


class Watched(nn.Module):
    """A layer that calls `during` inside its forward."""

    def __init__(self, during: Any, key: int):
        self.inner, self.during = nn.Linear(3, 3, key=random.Key(key), dtype=float), during

    def forward(self, x: Any) -> Any:
        self.during(self)
        return self.inner(x)


def shown(module: nn.Module) -> list[tuple[int, str, int]]:
    """What `vars` has for each parameter and method of a module and those below, by identity."""
    return [(id(m), name, id(x)) for m in module.modules() for name, x in vars(m).items()]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("fails", [False, True])
def test_the_module_is_unchanged_during_a_call_and_after_an_error(zero: int, fails: bool) -> None:
    def program() -> list[bool]:
        found: list[bool] = []
        seen: list[Any] = []

        def during(layer: Any) -> None:
            thread = threading.Thread(target=lambda: found.append(shown(net) == seen[0]))
            thread.start()
            thread.join()
            found.append(not isinstance(layer.inner.weight, ag.Parameter))  # here it has entered
            if fails and layer is net[1]:
                raise OSError("no data")

        net = nn.Sequential(Watched(during, 0), Watched(during, 1))
        with cc.Mesh(dp=-1) as mesh:
            model = DataParallel(net, "dp", zero=zero)
            seen.append(shown(net))
            x = cc.from_local(np.full((2, 3), 1.0 + mesh.axis("dp").rank), {"dp": cc.Shard(0)})
            with ag.Tape() as tape:
                if fails:
                    with pytest.raises(OSError, match="no data"):
                        model(x)
                else:
                    tape.backward(cc.all_reduce(model(x).sum(), "dp", to=cc.I))
                    found.append(all(p.grad is not None for p in model.parameters()))
        found.append(shown(net) == seen[0])
        return found

    for found in cc.run(program, 2):
        assert all(found) and len(found) == (5 if fails else 6)


def test_the_style_sequence_leaves_its_module_unchanged() -> None:
    found: list[bool] = []

    class Norm(nn.Module):
        def __init__(self) -> None:
            self.weight = ag.Parameter([1.0, 2.0])

        def forward(self, x: Any) -> Any:
            found.append(vars(self)["weight"] is not self.weight and isinstance(vars(self)["weight"], ag.Parameter))
            return x * self.weight * self.weight

    def program() -> np.ndarray:
        with cc.Mesh(tp=-1) as mesh:
            model = parallelize(nn.Sequential(Norm()), {"0": Sequence("tp")})
            rows = np.array([[1.0, 2.0]]) * (1 + mesh.axis("tp").rank)
            with ag.Tape() as tape:
                y = model(cc.from_local(rows, {"tp": cc.Shard(0)}))
                tape.backward(cc.all_reduce(y.sum(), "tp", to=cc.I))
            return model.parameters()[0].grad.numpy()

    for gradient in cc.run(program, 2):
        assert np.allclose(gradient, 2 * np.array([1.0, 2.0]) * np.array([3.0, 6.0]))
    assert found == [True, True]
