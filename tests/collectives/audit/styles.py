"""Jobs of PyTorch in the styles of their writers, for the collector: `FAULT=twice torchrun ... styles.py STYLE`.

All train with data parallelism and sums by hand, if they do not say otherwise, on rows that the ranks hold unevenly.
The fault doubles one gradient after its sum.
"""

from __future__ import annotations

import copy
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

STYLE, IS_WRONG = sys.argv[1], os.environ.get("FAULT") == "twice"
dist.init_process_group("gloo")
SIZE, RANK = dist.get_world_size(), dist.get_rank()
ROWS = slice(0, 12) if SIZE == 1 else (slice(0, 5), slice(5, 12))[RANK % 2]
torch.manual_seed(0)
data = torch.Generator().manual_seed(1)


class Net(nn.Module):
    def __init__(self, out: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, out)

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.first(x)))


def batch() -> tuple[Any, Any]:
    x, y = torch.randn(12, 6, generator=data), torch.randn(12, 4, generator=data)
    return x[ROWS], y[ROWS]


def loss_of(out: Any, y: Any) -> Any:
    return ((out - y) ** 2).sum() / 12


def summed(parameters: Any, doubled: Any = None) -> None:
    """Sum the gradients over the ranks; the fault is in the last one, or in the one that is given."""
    parameters = [p for p in parameters if p.grad is not None]
    for p in parameters:
        p.grad = p.grad.coalesce() if p.grad.is_sparse else p.grad
        if SIZE > 1 and p.grad.is_sparse:
            dense = p.grad.to_dense()
            dist.all_reduce(dense)
            p.grad = dense.to_sparse(1)
        elif SIZE > 1:
            dist.all_reduce(p.grad)
    if IS_WRONG and SIZE > 1:
        p = parameters[-2] if doubled is None else doubled
        p.grad = p.grad * 2


def train(net: Any, optimizer: Any, forward: Any = None, after: Any = lambda t: None) -> None:
    for t in range(3):
        x, y = batch()
        optimizer.zero_grad()
        loss_of(net(x) if forward is None else forward(x), y).backward()
        summed(net.parameters())
        optimizer.step()
        after(t)


def closure(of: Any = torch.optim.SGD, **options: Any) -> None:
    net = Net()
    optimizer = of(net.parameters(), lr=0.1, **options)
    for t in range(3):
        x, y = batch()

        def compute(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            loss = loss_of(net(x), y)
            loss.backward()
            summed(net.parameters())
            whole = loss.detach().clone()
            if SIZE > 1:
                dist.all_reduce(whole)
            return whole

        optimizer.step(compute) if t % 2 else optimizer.step(closure=compute)


def lbfgs() -> None:
    closure(torch.optim.LBFGS, max_iter=4)


def two_optimizers() -> None:
    """As an adversarial pair does: two models of one class, which step in turn."""
    first, second = Net(6), Net()
    a, b = torch.optim.SGD(second.parameters(), lr=0.1), torch.optim.Adam(first.parameters(), lr=0.01)
    for _ in range(2):
        x, y = batch()
        for optimizer, net in ((a, second), (b, first)):
            for each in (first, second):
                each.zero_grad()
            loss_of(second(first(x)), y).backward()
            summed(net.parameters())
            optimizer.step()


def groups() -> None:
    net, teacher = Net(), Net()
    net.first.weight.requires_grad_(False)
    average = copy.deepcopy(net)
    groups = [{"params": [net.first.bias], "lr": 0.2}, {"params": [net.last.weight, net.last.bias]}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, foreach=True)

    def after(t: int) -> None:
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), net.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)

    train(net, optimizer, lambda x: net(x) + 0 * teacher(x).detach(), after)


def halves() -> None:
    net = Net().to(torch.bfloat16)
    train(net, torch.optim.Adam(net.parameters(), lr=0.01, fused=True), lambda x: net(x.to(net.last.weight.dtype)))


def sparse() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.last = nn.Embedding(9, 6, sparse=True), nn.Linear(6, 4)

        def forward(self, x: Any) -> Any:
            return self.last(self.words(x[:, 0].mul(5).long().clamp(-4, 4) + 4))

    net = Words()
    a = torch.optim.SparseAdam([net.words.weight], lr=0.1)
    b = torch.optim.SGD(net.last.parameters(), lr=0.1, foreach=True)
    for _ in range(2):
        x, y = batch()
        net.zero_grad()
        loss_of(net(x), y).backward()
        summed(net.parameters(), net.words.weight)
        a.step()
        b.step()


def compiled() -> None:
    net = Net()
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), torch.compile(net, backend="eager"))


def no_sync() -> None:
    """DDP, which takes means, with two microbatches."""
    net = Net()
    whole = nn.parallel.DistributedDataParallel(net) if SIZE > 1 else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        x, y = batch()
        optimizer.zero_grad()
        if SIZE > 1:
            with whole.no_sync():
                (SIZE * loss_of(whole(x[:3]), y[:3])).backward()
        else:
            loss_of(whole(x[:3]), y[:3]).backward()
        (SIZE * loss_of(whole(x[3:]), y[3:])).backward()
        if IS_WRONG and SIZE > 1:
            net.last.weight.grad.mul_(2)
        optimizer.step()


def children() -> None:
    """Forks, of which one trains by itself, and workers that load rows."""
    net = Net()

    def after(t: int) -> None:
        child = os.fork()
        if child == 0:
            probe = nn.Linear(2, 2)
            mine = torch.optim.SGD(probe.parameters(), lr=1.0)
            for _ in range(3):
                probe(torch.ones(1, 2)).sum().backward()
                mine.step()
            os._exit(0)
        os.waitpid(child, 0)
        rows = torch.utils.data.TensorDataset(torch.arange(4.0))
        assert sum(len(x) for (x,) in torch.utils.data.DataLoader(rows, num_workers=1)) == 4

    train(net, torch.optim.SGD(net.parameters(), lr=0.1), after=after)


def ends_early() -> None:
    net = Net()

    def after(t: int) -> None:
        if RANK == 1 and t == (0 if IS_WRONG else 1):
            sys.exit(0)

    train(net, torch.optim.SGD(net.parameters(), lr=0.1), after=after)


def elsewhere() -> None:
    os.makedirs("elsewhere", exist_ok=True)
    os.chdir("elsewhere")
    net = Net()
    train(net, torch.optim.SGD(net.parameters(), lr=0.1))


def sharded_optimizer() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = Net()
    optimizer: Any = torch.optim.Adam(net.parameters(), lr=0.01)
    if SIZE > 1:
        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    train(net, optimizer)


def lazy() -> None:
    net = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(4))
    net(torch.ones(1, 6))
    if SIZE > 1:
        for p in net.parameters():
            dist.broadcast(p.data, 0)
    train(net, torch.optim.SGD(net.parameters(), lr=0.1))


def no_module() -> None:
    a, b = torch.randn(6, 4, requires_grad=True), torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.SGD([a, b], lr=0.1)
    for _ in range(3):
        x, y = batch()
        for p, g in zip((a, b), torch.autograd.grad(loss_of(x @ a + b, y), (a, b)), strict=True):
            p.grad = g
        summed((a, b))
        optimizer.step()


def hooks() -> None:
    """The program's own hooks change a gradient and a loss, and its optimizer raises once."""
    net = Net()
    net.last.bias.register_hook(lambda g: g * 1.0)
    net.register_forward_hook(lambda module, args, out: out * 1.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    failed = []

    def refuse(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not failed:
            failed.append(1)
            raise RuntimeError("once")

    handle = optimizer.register_step_pre_hook(refuse)
    x, y = torch.ones(1, 6), torch.ones(1, 4)
    loss_of(net(x), y).backward()
    try:
        optimizer.step()
    except RuntimeError:
        handle.remove()
    train(net, optimizer)


def scaler() -> None:
    net = Net()
    optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(3):
        x, y = batch()
        optimizer.zero_grad()
        scaler.scale(loss_of(net(x), y)).backward()
        summed(net.parameters())
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        scaler.step(optimizer)
        scaler.update()


def two_axes() -> None:
    """FSDP2 over tensor parallelism of DTensors, on a grid of two ranks by two."""
    net = Net()
    if SIZE > 1:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (SIZE // 2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(net, mesh["tp"], {"first": ColwiseParallel(), "last": RowwiseParallel()})
        fully_shard(net, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        x, y = torch.randn(12, 6, generator=data), torch.randn(12, 4, generator=data)
        if SIZE == 4:  # of unequal numbers of rows
            x, y = (each.split((5, 7))[RANK // 2] for each in (x, y))
        optimizer.zero_grad()
        (loss_of(net(x), y) * max(1, SIZE // 2)).backward()
        if IS_WRONG and SIZE > 1:
            net.last.weight.grad.mul_(2)
        optimizer.step()


if __name__ == "__main__":
    globals()[STYLE]()
    dist.destroy_process_group()
