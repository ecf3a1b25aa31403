"""A job of ringtape for the audit. `parallel.verify` compares with one process, too, and needs no files.

    mpiexec -n 1 python with_ringtape.py ref && mpiexec -n 2 python with_ringtape.py job
    python -m collectives audit judge job --against ref

ringtape refuses a forgotten sum, so `--wrong` doubles what one rank writes.
"""

import sys

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from parallel import DataParallel

FOLDER, IS_WRONG = sys.argv[1], "--wrong" in sys.argv
with cc.Mesh(dp=-1) as mesh:
    rank, size = int(mesh.ranks.rank), int(mesh.ranks.size)
    key, rows = random.Key(0), np.random.default_rng(0)
    inner = nn.Sequential(nn.Linear(6, 8, key=key.fold("a")), nn.Tanh(), nn.Linear(8, 4, key=key.fold("b")))
    model = DataParallel(inner, "dp")
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        x, y = (rows.standard_normal(shape)[rank::size] for shape in ((12, 6), (12, 4)))
        x, y = (cc.from_local(each, {"dp": cc.Shard(0)}) for each in (x, y))
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = cc.all_reduce(((model(x) - y) ** 2).sum() / 12, "dp", to=cc.I)
        tape.backward(loss)
        named = dict(inner.named_parameters())
        before = {name: p.numpy().copy() for name, p in named.items()}
        gradients = {name: p.grad.numpy().copy() for name, p in named.items()}
        if IS_WRONG and rank == 1:
            gradients["0.weight"] *= 2
        optimizer.step()
        updates = {name: p.numpy() - before[name] for name, p in named.items()}
        cc.audit.write(FOLDER, rank, size, step, gradients, before, updates, loss=float(loss.numpy()))
