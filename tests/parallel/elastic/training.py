"""The training programs of the tests of `elastic.run`, and their comparison with a serial run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
from autograd import data, nn, optim, random
from collectives.testing import faults
from parallel import Column, DataParallel, Row, Trainer, elastic

STEPS = 5
X = np.random.default_rng(0).standard_normal((STEPS, 12, 4))
Y = np.random.default_rng(1).integers(0, 2, (STEPS, 12))
PLAN: dict[str, Any] = {"0": Column("tp"), "2": Row("tp")}


def with_tp(n: int) -> dict[str, int]:
    return {"dp": n // 2, "tp": 2} if n > 1 else {"dp": 1, "tp": 1}


def with_pp(n: int) -> dict[str, int]:
    return {"pp": 2, "dp": n // 2} if n > 1 else {"pp": 1, "dp": 1}


listeners: list[Callable[[elastic.Run], object]] = []
"""Called at each start of a program when its state is restored."""
CASES: dict[str, dict[str, Any]] = {
    "dp": {}, "ZeRO-1": {"zero": 1}, "ZeRO-2": {"zero": 2}, "ZeRO-3": {"zero": 3},
    "dp, tp": {"mesh": with_tp}, "pp, dp": {"mesh": with_pp}, "pp, dp, ZeRO-1": {"mesh": with_pp, "zero": 1},
    "same bits": {"bits": "same"}, "same bits, ZeRO-1": {"bits": "same", "zero": 1},
    "same bits, pp": {"bits": "same", "mesh": with_pp}, "a loop of its own": {},
    "nested": {"zero": 1, "nested": True}, "window": {"zero": 1, "window": True},
}  # fmt: skip


def model() -> nn.Sequential:
    key = random.Key(0, "model")
    return nn.Sequential(
        nn.Linear(4, 8, dtype=float, key=key.fold("first")), nn.Tanh(),
        nn.Linear(8, 6, dtype=float, key=key.fold("second")), nn.Tanh(),
        nn.Linear(6, 2, dtype=float, key=key.fold("third")),
    )  # fmt: skip


def trained(run: elastic.Run, case: dict[str, Any]) -> Any:
    """A Trainer's steps on one global batch each: the losses, this rank's parameters as wholes, and the report."""
    trainer = made(run.mesh, case)
    window = run.mesh.ranks.window(np.zeros(1)) if case.get("window") else None  # without the spares
    own: dict[str, Any] = {"trainer": trainer, "random": random, "losses": []}
    run.restore({"all": [own, (random, 7)]} if case.get("nested") else own)
    for listener in listeners:
        listener(run)
    for step in run.steps(STEPS):
        if window is not None:
            for owner in range(run.mesh.ranks.size):
                window.fetch_and_add(1.0, owner, 0)
                window.get(owner, 0, 1)
        own["losses"].append(trainer.step(X[step], Y[step]))
    return own["losses"], trainer.pipeline.state_dict(), run.report


def made(mesh: cc.Mesh, case: dict[str, Any]) -> Trainer:
    bits = case.get("bits")
    return Trainer(
        model, nn.CrossEntropyLoss(reduction="sum"), mesh, PLAN if "tp" in mesh.names else None, clip=0.5,
        zero=case.get("zero", 0), bits=bits, microbatches=6 if bits else 2,
        optimizer=lambda parameters: optim.AdamW(parameters, lr=0.01),
    )  # fmt: skip


def looped(run: elastic.Run, case: dict[str, Any]) -> Any:
    """Steps with a loader, dropout, a buffer, a schedule, and a communication after the optimizer's step."""
    random.seed(3)
    net = model()
    net.layers.insert(2, nn.Dropout(0.25))
    parallel = DataParallel(net, "dp", zero=case.get("zero", 0))
    optimizer = optim.AdamW(net.parameters(), lr=lambda step: 0.01 / (1 + step))
    loader = data.DataLoader(
        data.TensorDataset(X.reshape(-1, 4)[:36], Y.reshape(-1)[:36]), 12, shuffle=True, axis="dp",
        key=random.Key(5),
    )  # fmt: skip
    state: dict[str, Any] = {"net": net, "optimizer": optimizer, "loader": loader, "random": random, "losses": []}
    run.restore(state)
    for listener in listeners:
        listener(run)
    batches = iter(loader)
    for _ in run.steps(STEPS):
        batch = next(batches, None)
        if batch is None:  # three batches are an epoch
            batches = iter(loader)
            batch = next(batches)
        with ag.Tape() as tape:
            loss = nn.cross_entropy(parallel(batch[0]), batch[1], reduction="sum") / 12
            loss = cc.all_reduce(loss, "dp", to=cc.I)
        optimizer.zero_grad()
        tape.backward(loss)
        optimizer.step()
        state["losses"].append(loss.item())
        run.mesh.ranks.barrier()  # a death here finds all optimizers ahead of the last commit
    return state["losses"], net.state_dict(), run.report


def program(name: str, **options: Any) -> Any:
    case = CASES[name]
    train = looped if name == "a loop of its own" else trained
    return elastic.run(lambda run: train(run, case), mesh=case.get("mesh", {"dp": -1}), **options)


@cache
def serial(name: str) -> Any:
    with cc.World("threads", 1, policy="raise") as world:
        return world.run(program, name)[0]


def on_threads(name: str, ranks: int, plan: Any, **options: Any) -> tuple[list[Any], elastic.ElasticReport]:
    """Run a program with faults, and compare what the survivors have with the serial run."""
    with faults.injected(plan), cc.World("threads", ranks, policy="raise") as world:
        found = world.run(lambda: program(name, **options))
    return found, compare(name, found)


def compare(name: str, found: list[Any]) -> elastic.ElasticReport:
    losses, parameters, _ = serial(name)
    is_same = CASES[name].get("bits") == "same"
    results = [each for each in found if each is not None]
    assert results
    whole: dict[str, Any] = {}
    for each in results:
        assert len(each[0]) == len(losses)
        whole |= each[1]
        np.testing.assert_allclose(each[0], losses, rtol=0 if is_same else 1e-10)
    assert set(whole) == set(parameters)
    for key, value in parameters.items():
        np.testing.assert_allclose(whole[key], value, rtol=0 if is_same else 1e-10, atol=0 if is_same else 1e-12)
    return results[0][2]
