"""DistributedDataParallel, and a parameter that it does not know of: `--fixed` gives the parameter to it.

    torchrun --nproc-per-node 2 ddp.py

The scale joins the model after DistributedDataParallel is made, so its gradient is not summed over the ranks, and its
copies drift apart. The loss falls all the same. The guide of audits finds it; ringtape is not imported here.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
if "--fixed" in sys.argv:
    model.register_parameter("scale", nn.Parameter(torch.ones(4)))
ddp = nn.parallel.DistributedDataParallel(model)
if "--fixed" not in sys.argv:
    model.register_parameter("scale", nn.Parameter(torch.ones(4)))

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.Generator().manual_seed(1)
for step in range(20):
    x = torch.randn(32, 16, generator=data)  # the rows of all ranks, of which each takes its own
    y = x[:, :4].sin()
    mine = slice(rank, None, size)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(ddp(x[mine]) * model.scale, y[mine])
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 5 == 4:
        print(f"step {step + 1}: loss {loss.item():.4f}")
dist.destroy_process_group()
