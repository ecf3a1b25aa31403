"""Tensor parallelism by hand, and a norm that counts replicated parameters on each rank; `--fixed` counts them once.

    torchrun --nproc-per-node 2 tensor_parallel.py

The first layer is cut by columns, the second one by rows. All gradients are right, but they are clipped by a norm that
is too large, so each step is too short. `shards.toml` tells the audit how the layers are cut.
"""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()


class Enter(torch.autograd.Function):
    """A replicated value that each rank uses for its part: backward sums."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient


class Sum(torch.autograd.Function):
    """The sum of the ranks' addends: backward gives each the same gradient."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 4)
        self.up.weight = nn.Parameter(self.up.weight.chunk(size, 0)[rank].clone())
        self.up.bias = nn.Parameter(self.up.bias.chunk(size, 0)[rank].clone())
        self.down.weight = nn.Parameter(self.down.weight.chunk(size, 1)[rank].clone())

    def forward(self, x):
        hidden = F.gelu(self.up(Enter.apply(self.norm(x))))
        return Sum.apply(F.linear(hidden, self.down.weight)) + self.down.bias


torch.manual_seed(0)
model = Block()
divided = {model.up.weight, model.up.bias, model.down.weight}
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
data = torch.Generator().manual_seed(1)
for step in range(20):
    x = torch.randn(32, 16, generator=data)
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), x[:, :4].sin())
    loss.backward()
    square = torch.stack([(p.grad**2).sum() for p in divided]).sum()
    replicated = torch.stack([(p.grad**2).sum() for p in model.parameters() if p not in divided]).sum()
    if "--fixed" not in sys.argv:
        square, replicated = square + replicated, torch.zeros(())
    dist.all_reduce(square)
    for p in model.parameters():
        p.grad.mul_(0.1 / torch.sqrt(square + replicated))
    optimizer.step()
    if rank == 0 and step % 5 == 4:
        print(f"step {step + 1}: loss {loss.item():.4f}")
dist.destroy_process_group()
