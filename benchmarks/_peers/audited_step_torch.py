"""Training steps of a perceptron in torch, on one process or under DDP; prints the milliseconds of each."""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

steps, rows = map(int, sys.argv[1:])
torch.manual_seed(0)
torch.set_num_threads(1)
model: nn.Module = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 64))
size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
if size > 1:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x, y = torch.randn(rows, 512), torch.randint(0, 64, (rows,))
times = []
for _ in range(steps):
    begin = time.perf_counter()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    times.append(1e3 * (time.perf_counter() - begin))
if rank == 0:
    print(json.dumps(times))
if size > 1:
    dist.destroy_process_group()
