"""Wrong gradients that users of public projects have reported, rebuilt small, each beside its right form.

    FAULT=1 torchrun --nproc-per-node 2 public_jobs.py NAME

`public.py` lists the reports. One process computes the reference of each. All parameters are replicated, if a map does
not say otherwise. Rows that ranks share are held unevenly.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collective
import torch.nn.functional as F
from torch import nn

NAME, IS_WRONG = sys.argv[1], bool(os.environ.get("FAULT"))
dist.init_process_group("gloo")
SIZE, RANK = dist.get_world_size(), dist.get_rank()
IS_ALONE = SIZE == 1
torch.manual_seed(RANK if NAME == "seeds" and IS_WRONG else 0)
data = torch.Generator().manual_seed(1)
ROWS = slice(0, 12) if IS_ALONE else (slice(0, 5), slice(5, 12))[RANK]


def all_reduced(x: Any) -> Any:
    x = x.contiguous().clone()
    dist.all_reduce(x)
    return x


class Copy(torch.autograd.Function):
    """A value that all ranks have, used by each for its part: backward sums."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return all_reduced(g)


class Sum(torch.autograd.Function):
    """The sum of the ranks' addends, used alike by all: backward is the identity."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return all_reduced(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


class Part(torch.autograd.Function):
    """This rank's part of dimension 1: backward joins the parts."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.chunk(SIZE, 1)[RANK].contiguous()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return joined(g)


class Join(torch.autograd.Function):
    """The parts of all ranks, used alike by all: backward takes this rank's part."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return joined(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g.chunk(SIZE, 1)[RANK].contiguous()


def joined(x: Any) -> Any:
    parts = [torch.empty_like(x) for _ in range(SIZE)]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, 1)


def sum_gradients(net: Any) -> None:
    """Over the ranks."""
    for p in net.parameters():
        if p.grad is not None and not IS_ALONE:
            dist.all_reduce(p.grad)


def train(net: Any, loss_of: Callable[[Any, Any], Any], after: Callable[[Any], Any] = sum_gradients, rows: Any = ROWS,
          width: tuple[int, ...] = (6,)) -> None:  # fmt: skip
    """Three steps; `after` runs between backward and the step."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        x, y = torch.randn(12, *width, generator=data), torch.randn(12, 4, generator=data)
        optimizer.zero_grad()
        loss_of(x[rows], y[rows]).backward()
        after(net)
        optimizer.step()


def perceptron() -> Any:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def square(out: Any, y: Any) -> Any:
    return ((out - y) ** 2).sum() / 12


# -- tensor and sequence parallelism: all ranks have all rows ----------------------------------------------------------
class OnParts(nn.Module):
    """A layer that works on parts of the sequence, between others on the whole of it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(6, 6), layer, nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        h = self.first(x)
        h = self.layer(h) if IS_ALONE else Join.apply(self.layer(Part.apply(h)))
        return (self.last(h) * torch.arange(1.0, 5.0)[:, None]).mean(1)  # so that positions differ


def on_parts(layer: nn.Module) -> None:
    net = OnParts(layer)
    after = (lambda net: None) if IS_WRONG or IS_ALONE else lambda net: sum_gradients(net.layer)
    train(net, lambda x, y: square(net(x), y), after, slice(None), (4, 6))


def norm_on_parts() -> None:
    on_parts(nn.LayerNorm(6))


class Router(nn.Module):
    """Two experts, which are fixed, weighted by a trained router."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 2, bias=False)

    def forward(self, x: Any) -> Any:
        a, b = self.router(x).softmax(-1).split(1, -1)
        return a * torch.tanh(x) + b * x.abs()


def router_on_parts() -> None:
    on_parts(Router())


class Divided(nn.Module):
    """Two layers after a whole one; the first of them is cut by columns, the second by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.up, self.down = nn.Linear(6, 6), nn.Linear(6, 8, bias=False), nn.Linear(8, 4)
        if not IS_ALONE:
            self.up.weight = nn.Parameter(self.up.weight.data.chunk(SIZE, 0)[RANK].clone())
            self.down.weight = nn.Parameter(self.down.weight.data.chunk(SIZE, 1)[RANK].clone())

    def forward(self, x: Any, enter: Any = Copy.apply) -> Any:
        h = self.first(x)
        if IS_ALONE:
            return self.down(torch.tanh(self.up(h)))
        h = F.linear(torch.tanh(self.up(enter(h))), self.down.weight)
        return Sum.apply(h) + self.down.bias


def local_of_replicated() -> None:
    """A DTensor's `to_local`, which takes the gradient of a replicated one for replicated, if nothing is said."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate

    mesh = init_device_mesh("cpu", (SIZE,))

    def enter(h: Any) -> Any:
        whole = DTensor.from_local(h, mesh, [Replicate()])
        return whole.to_local() if IS_WRONG else whole.to_local(grad_placements=[Partial()])

    net = Divided()
    train(net, lambda x, y: square(net(x, enter), y), lambda net: None, slice(None))


def replicas_in_norm() -> None:
    """The norm by which gradients are clipped."""
    net = Divided()

    def clip(net: Any) -> None:
        cut = {id(net.up.weight), id(net.down.weight)}
        squares = {id(p): (p.grad**2).sum() for p in net.parameters()}
        shared = sum(each for key, each in squares.items() if key in cut)
        own = sum(each for key, each in squares.items() if key not in cut)
        if not IS_ALONE:
            shared, own = (all_reduced(shared + own), 0) if IS_WRONG else (all_reduced(shared), own)
        for p in net.parameters():
            p.grad.mul_(0.2 / torch.sqrt(shared + own))

    train(net, lambda x, y: square(net(x), y), clip, slice(None))


class Fused(nn.Module):
    """Queries, keys and values in one matrix, of which each rank has two heads of four."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 24, bias=False), nn.Linear(8, 4, bias=False)
        if not IS_ALONE:
            thirds = self.qkv.weight.data.chunk(1 if IS_WRONG else 3, 0)
            self.qkv.weight = nn.Parameter(torch.cat([each.chunk(SIZE, 0)[RANK] for each in thirds]).clone())
            self.out.weight = nn.Parameter(self.out.weight.data.chunk(SIZE, 1)[RANK].clone())

    def forward(self, x: Any) -> Any:
        q, k, v = (each.unflatten(-1, (-1, 2)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        h = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).mean(1))
        return h if IS_ALONE else Sum.apply(h)


def fused_cut_evenly() -> None:
    net = Fused()
    train(net, lambda x, y: square(net(x), y), lambda net: None, slice(None), (4, 6))


# -- data parallelism --------------------------------------------------------------------------------------------------
def loss_on_each_rank() -> None:
    """The sum of the losses by `torch.distributed.nn.functional.all_reduce`, whose backward sums the ranks' seeds."""
    net = perceptron()

    def loss_of(x: Any, y: Any) -> Any:
        loss = square(net(x), y)
        return collective.all_reduce(loss) if IS_WRONG and not IS_ALONE else loss

    train(net, loss_of)


def features_of_all_ranks() -> None:
    """A contrastive loss of the features of all rows, which each rank computes whole."""
    net = perceptron()

    def loss_of(x: Any, y: Any) -> Any:
        out = net(x)
        if not IS_ALONE:
            padded = F.pad(out, (0, 0, 0, 7 - len(out)))
            parts = collective.all_gather(padded)
            out = torch.cat([part[:n] for part, n in zip(parts, (5, 7), strict=True)])
        loss = F.cross_entropy(out @ out.T / 2, torch.arange(11, -1, -1))
        return loss if IS_WRONG or IS_ALONE else loss / SIZE

    train(net, loss_of)


def mean_of_means() -> None:
    net = perceptron()
    train(net, lambda x, y: square(net(x), y) * (12 / len(x) / SIZE if IS_WRONG and not IS_ALONE else 1))


def clip_before_sum() -> None:
    net = perceptron()

    def after(net: Any) -> None:
        if IS_WRONG:
            nn.utils.clip_grad_norm_(net.parameters(), 0.2)
        sum_gradients(net)

    train(net, lambda x, y: square(net(x), y), after)


def moving_average() -> None:
    """Accumulation in which each microbatch divides all that is there."""
    net = perceptron()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        x, y = torch.randn(12, 6, generator=data)[ROWS], torch.randn(12, 4, generator=data)[ROWS]
        optimizer.zero_grad()
        for some, theirs in ((x[:3], y[:3]), (x[3:], y[3:])):
            (square(net(some), theirs) * (2 if IS_WRONG else 1)).backward()
            for p in net.parameters():
                p.grad = p.grad / 2 if IS_WRONG else p.grad
        sum_gradients(net)
        optimizer.step()


def seeds() -> None:
    net = perceptron()
    train(net, lambda x, y: square(net(x), y))


def used_on_one_rank() -> None:
    """A parameter that the rows of one rank do not reach has no gradient there, and the others' is not given to it."""
    net = nn.ModuleDict({"all": nn.Linear(6, 4), "some": nn.Linear(6, 4)})

    def loss_of(x: Any, y: Any) -> Any:
        out = net["all"](x)
        is_used = IS_ALONE or RANK == 0
        rows = slice(0, 5) if IS_ALONE else slice(None)
        if is_used:
            out = torch.cat([out[rows] + net["some"](x[rows]), out[len(out[rows]) :]])
        elif not IS_WRONG:
            out = out + 0 * net["some"](x)
        return square(out, y)

    def after(net: Any) -> None:
        for p in net.parameters():
            if IS_ALONE:
                continue
            g = p.grad if p.grad is not None else torch.zeros_like(p)
            dist.all_reduce(g)

    train(net, loss_of, after)


def sum_of_a_copy() -> None:
    """A sum in place of what `contiguous` returns, which is a copy where the array is transposed."""
    net = perceptron()

    def after(net: Any) -> None:
        for p in net.parameters():
            if not IS_ALONE:
                turned = p.grad.T if p.ndim == 2 else p.grad
                dist.all_reduce(turned.contiguous() if IS_WRONG else p.grad)

    train(net, lambda x, y: square(net(x), y), after)


# -- context and expert parallelism ------------------------------------------------------------------------------------
def context_factor_twice() -> None:
    """Each rank has half of each sequence, and the number of parts is in the loss and in the mean of the gradients."""
    net = OnParts(nn.Tanh())

    def loss_of(x: Any, y: Any) -> Any:
        out = net.last(torch.tanh(net.first(x if IS_ALONE else x.chunk(SIZE, 1)[RANK])))
        return ((out - y[:, None]) ** 2).sum() / 48 * (SIZE if IS_WRONG else 1) * (1 if IS_ALONE else SIZE)

    def after(net: Any) -> None:
        for p in net.parameters():
            if not IS_ALONE:
                dist.all_reduce(p.grad)
                p.grad /= SIZE

    train(net, loss_of, after, slice(None), (4, 6))


class Experts(nn.Module):
    """Two experts after a whole layer; each rank has one of them, and takes the tokens of all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.experts = nn.Linear(6, 6), nn.Parameter(torch.randn(2, 6, 4) / math.sqrt(6))
        if not IS_ALONE:
            self.experts = nn.Parameter(self.experts.data[RANK : RANK + 1].clone())

    def forward(self, x: Any) -> Any:
        h = self.first(x)
        if IS_ALONE:
            return torch.tanh(h @ self.experts[0]) + torch.tanh(h @ self.experts[1])
        whole = Gather.apply(h)
        return Scatter.apply(torch.tanh(whole @ self.experts[0]))


class Gather(torch.autograd.Function):
    """The tokens of all ranks, of which each needs a gradient of each rank: backward sums, and takes this rank's."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return joined(x.T).T

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return (g if NAME == "slice_of_gathered" and IS_WRONG else all_reduced(g)).chunk(SIZE, 0)[RANK]


class Scatter(torch.autograd.Function):
    """The sum over the experts, of this rank's tokens: backward joins the parts."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return all_reduced(x).chunk(SIZE, 0)[RANK]

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return joined(g.T).T


def of_experts(divide: bool) -> None:
    net = Experts()

    def after(net: Any) -> None:
        if not IS_ALONE:
            sum_gradients(net.first)
            if divide:
                net.experts.grad /= SIZE

    rows = slice(None) if IS_ALONE else slice(6 * RANK, 6 * RANK + 6)
    train(net, lambda x, y: square(net(x), y), after, rows)


def experts_divided() -> None:
    of_experts(IS_WRONG)


def slice_of_gathered() -> None:
    of_experts(False)


if __name__ == "__main__":
    globals()[NAME]()
    dist.destroy_process_group()
