"""A layer norm on parts of the sequence, as in Megatron, whose weights have a part of their gradient on each rank.

    torchrun --nproc-per-node 2 sequence_parallel.py

Each rank normalizes its own positions, so the gradient of the norm's weights is a sum over the ranks. It is forgotten
here; `--fixed` takes it.
"""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()


def joined(x):
    parts = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, 1)


class Split(torch.autograd.Function):
    """This rank's positions: backward joins those of all ranks."""

    @staticmethod
    def forward(ctx, x):
        return x.chunk(size, 1)[rank].contiguous()

    @staticmethod
    def backward(ctx, gradient):
        return joined(gradient)


class Join(torch.autograd.Function):
    """The positions of all ranks, for what all compute alike: backward takes this rank's."""

    @staticmethod
    def forward(ctx, x):
        return joined(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(size, 1)[rank].contiguous()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(50, 16), nn.LayerNorm(16), nn.Linear(16, 50)

    def forward(self, words):
        return self.head(Join.apply(self.norm(Split.apply(self.words(words)))))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.Generator().manual_seed(1)
for step in range(20):
    words = torch.randint(50, (8, 12), generator=data)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(words).flatten(0, 1), (words * 7 % 50).flatten())
    loss.backward()
    if "--fixed" in sys.argv:
        for p in model.norm.parameters():
            dist.all_reduce(p.grad)
    optimizer.step()
    if rank == 0 and step % 5 == 4:
        print(f"step {step + 1}: loss {loss.item():.4f}")
dist.destroy_process_group()
