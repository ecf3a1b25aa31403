"""Every kind of communication once, and steps of training: the program that `replay_cases` changes in one place."""

import os
import sys

import numpy as np
import replay_helper

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from parallel import DataParallel

ROOT, STEPS, SCALE = 0, int(sys.argv[1]), float(os.environ.get("SCALE", "1"))
DATA = np.load("data.npy")
random.seed(0)

with cc.Mesh(dp=-1) as mesh:
    rank, size = int(mesh.axis("dp").rank), int(mesh.axis("dp").size)
    group = mesh.axis("dp").group
    net = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.2), nn.Tanh(), nn.Linear(5, 2))
    model = DataParallel(net, "dp")
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        rows = np.array_split(DATA[step], size)[rank].astype("float32") * SCALE
        x = cc.from_local(rows.astype("float32"), {"dp": cc.Shard(0)})
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = cc.all_reduce((model(x) ** 2).sum(), "dp", to=cc.I) / 14
        tape.backward(loss)
        optimizer.step()
    mine = np.arange(1.0, 5.0) + rank
    # own values
    total = cc.all_reduce(ag.tensor(mine, {"dp": cc.V}), "dp", to=cc.I)
    first = group.all_reduce(mine * 2)
    second = group.all_reduce(mine * 3)
    best = group.all_reduce(mine, "sum")
    large = group.all_reduce(np.outer(np.arange(64.0), np.ones(64)).ravel() + rank)
    given = group.broadcast(mine.copy(), ROOT)
    summed = group.reduce(mine, 0)
    parts = group.all_gather(mine, [4] * size)
    pieces = group.reduce_scatter(np.arange(2.0 * size) + rank, [2] * size)
    group.send(mine, (rank + 1) % size)
    received = group.recv(np.empty(4), (rank - 1) % size)
    pending = group.start(cc.Communicator.run.__globals__["Request"]("all_reduce", mine * 5))
    waited = pending.wait()
    texts = group.exchange(bytes([rank, 7]))
    with cc.Mesh(a=1, b=-1) as other:
        here = cc.all_reduce(ag.tensor(mine, {"b": cc.V}), "b", to=cc.I)
    last = group.all_reduce(mine * replay_helper.FACTOR)
    digest = sum(float(np.sum(p.array)) for p in net.parameters())
    cc.in_order(f"{digest!r} {float(np.sum(total.numpy()))!r} {last.tolist()}")
