"""Programs whose replay is equal, although they read the clock, draw random numbers, or hash: one by its name."""

import os
import random as python_random
import sys
import tempfile
import time

import numpy as np

import autograd as ag
import collectives as cc
from autograd import data, nn, optim, random
from parallel import DataParallel, Trainer, checkpoint


def rows_of(rank, size, n=12):
    return np.array_split(np.random.default_rng(0).normal(size=(n, 4)).astype("float32"), size)[rank]


def train(mesh, steps=3, make=None, zero=0, algorithm="", dropout=0.0, accumulate=1, adam=False):
    rank, size = int(mesh.ranks.rank), int(mesh.ranks.size)
    random.seed(3)
    net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(dropout), nn.Tanh(), nn.Linear(6, 2))
    model = DataParallel(net, "dp", zero=zero)
    optimizer = (optim.AdamW if adam else optim.SGD)(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        rows = rows_of(rank, size) if make is None else make(step)
        for _ in range(accumulate):
            x = cc.from_local(rows.astype("float32"), {"dp": cc.Shard(0)})
            with ag.Tape() as tape:
                loss = cc.all_reduce((model(x) ** 2).sum(), "dp", to=cc.I) / (12 * accumulate)
            tape.backward(loss)
        optimizer.step()
    return net, optimizer, float(loss.numpy())


def plain():
    with cc.Mesh(dp=-1) as mesh:
        cc.in_order(repr(train(mesh)[2]))


def clock():
    with cc.Mesh(dp=-1) as mesh:
        begin = time.perf_counter()
        loss = train(mesh)[2]
        cc.in_order(f"{loss!r} in {time.perf_counter() - begin} s at {time.time()}, process {os.getpid()}")


def hashes():
    with cc.Mesh(dp=-1) as mesh:
        names = {f"name {k}" for k in range(20)}
        loss = train(mesh)[2]
        cc.in_order(f"{list(names)[:3]} {sum(len(name) for name in names)} {loss!r}")


def seeded():
    with cc.Mesh(dp=-1) as mesh:
        rank = int(mesh.ranks.rank)
        np.random.seed(rank)
        python_random.seed(rank + 1)
        loss = train(mesh, 4, lambda step: np.random.normal(size=(3, 4)) + python_random.random())[2]
        cc.in_order(repr(loss))


def dropout():
    with cc.Mesh(dp=-1) as mesh:
        cc.in_order(repr(train(mesh, dropout=0.4, adam=True)[2]))


def loader():
    with cc.Mesh(dp=-1) as mesh:
        rank, size = int(mesh.ranks.rank), int(mesh.ranks.size)
        dataset = data.TensorDataset(np.random.default_rng(0).normal(size=(60, 4)).astype("float32"))
        batches = iter(data.DataLoader(dataset, 12, shuffle=True, key=random.Key(5, "train"), axis=()))
        loss = train(mesh, 3, lambda step: np.array_split(next(batches)[0].numpy(), size)[rank])[2]
        cc.in_order(repr(loss))


def temporary():
    with cc.Mesh(dp=-1) as mesh, tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.npy")
        np.save(path, rows_of(int(mesh.ranks.rank), int(mesh.ranks.size)))
        cc.in_order(repr(train(mesh, 3, lambda step: np.load(path))[2]) + folder)


def environment():
    with cc.Mesh(dp=-1) as mesh:
        loss = train(mesh)[2]
        cc.in_order(f"{loss!r} {os.environ.get('PMI_RANK')} {len(os.environ)} {os.environ.get('UNRELATED')}")


def zero1():
    with cc.Mesh(dp=-1) as mesh:
        cc.in_order(repr(train(mesh, zero=1, adam=True)[2]))


def zero3():
    with cc.Mesh(dp=-1) as mesh:
        cc.in_order(repr(train(mesh, zero=3, adam=True)[2]))


def accumulated():
    with cc.Mesh(dp=-1) as mesh:
        cc.in_order(repr(train(mesh, accumulate=3)[2]))


def ring():
    with cc.Mesh(dp=-1, algorithm="ring") as mesh:
        cc.in_order(repr(train(mesh)[2]))


def automatic():
    with cc.Mesh(dp=-1, algorithm="auto") as mesh:
        cc.in_order(repr(train(mesh)[2]))


def trainer():
    with cc.Mesh(dp=-1) as mesh:
        made = Trainer(
            lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)), nn.CrossEntropyLoss(reduction="sum"),
            mesh, None, microbatches=2, optimizer=lambda parameters: optim.AdamW(parameters, lr=0.01),
        )  # fmt: skip
        rng, size = np.random.default_rng(0), int(mesh.ranks.size)
        for _ in range(3):
            loss = made.step(rng.normal(size=(4 * size, 4)).astype("float32"), rng.integers(0, 2, 4 * size))
        cc.in_order(repr(float(loss)))


def saved():
    with cc.Mesh(dp=-1) as mesh:
        net, optimizer, loss = train(mesh)
        path = os.path.join(os.environ["SAVED"], "weights")
        checkpoint.save(path, {"net": net, "optimizer": optimizer}, 1, overwrite=True)
        checkpoint.load(path, {"net": net, "optimizer": optimizer})
        cc.in_order(repr(loss))


def worlds():
    for k in range(3):
        with cc.World(), cc.Mesh(dp=-1) as mesh:
            cc.in_order(repr(train(mesh, 1 + k)[2]))


def meshes():
    losses = []
    for _ in range(6):
        with cc.Mesh(dp=-1) as mesh:
            losses.append(train(mesh, 1)[2])
    with cc.Mesh(dp=-1):
        cc.in_order(repr(losses))


def block():
    with cc.Mesh(dp=-1) as mesh:
        data = os.environ["BLOCK_DATA"] == "1"
        before = 0.0 if data else train(mesh, 1)[2]
        with cc.record(os.environ["BLOCK"], data=data):
            loss = train(mesh, 2)[2]
        cc.in_order(f"{before!r} {loss!r} {train(mesh, 1)[2]!r}")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
