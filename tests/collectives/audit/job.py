"""A job of PyTorch with a fault to plant: a transformer block, trained for three steps on one process or several.

    FAULT=no_sum torchrun --nproc-per-node 2 job.py dp

The first argument says how it is divided: dp (sums by hand), ddp, fsdp, tp (by hand), sp (tp, and the last norm on
parts of the sequence), dtensor, cp (context), ep (experts), dp_tp. Options follow: bfloat16, accumulate, clip, hand
(clipping by hand), max (the infinity norm), adam, dropout, tied, frozen. The audit needs nothing from it.
"""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

HOW, *OPTIONS = sys.argv[1:]
FAULT = os.environ.get("FAULT", "")
dist.init_process_group(os.environ.get("BACKEND", "gloo"))
SIZE, RANK = dist.get_world_size(), dist.get_rank()
TP = {"tp": SIZE, "sp": SIZE, "dtensor": SIZE, "dp_tp": 2 if SIZE > 1 else 1}.get(HOW, 1)
CP = SIZE if HOW == "cp" else 1
EP = SIZE if HOW == "ep" else 1
DP = SIZE // (TP * CP * EP)
DP_RANK, TP_RANK = divmod(RANK, TP) if DP * TP > 1 else (0, 0)
if SIZE > 1 and DP * TP == SIZE:
    rows = [list(range(i * TP, (i + 1) * TP)) for i in range(DP)]
    columns = [list(range(i, SIZE, TP)) for i in range(TP)]
    TP_GROUP = [dist.new_group(each) for each in rows][RANK // TP]
    DP_GROUP = [dist.new_group(each) for each in columns][RANK % TP]
DIM, HEADS, WORDS, LENGTH, ROWS = 16, 4, 20, 8, 8


def summed(x, group=None):
    x = x.contiguous().clone()
    if SIZE > 1:
        dist.all_reduce(x, group=group or (TP_GROUP if TP > 1 else None))
    return x


class Copy(torch.autograd.Function):
    """Replicated into a region of shards: the sum is backward."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g if FAULT == "tp_no_copy_sum" else summed(g)


class Reduce(torch.autograd.Function):
    """The sum of the shards' addends."""

    @staticmethod
    def forward(ctx, x):
        return summed(x)

    @staticmethod
    def backward(ctx, g):
        return summed(g) if FAULT == "tp_reduce_twice" else g


class Gather(torch.autograd.Function):
    """The whole sequence from the ranks' parts; `is_sum`: backward sums what the ranks need of it."""

    @staticmethod
    def forward(ctx, x, is_sum):
        ctx.is_sum = is_sum
        parts = [torch.empty_like(x) for _ in range(SIZE)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx, g):
        return (summed(g, dist.group.WORLD) if ctx.is_sum else g).chunk(SIZE, 1)[RANK], None


class Split(torch.autograd.Function):
    """This rank's part of the sequence."""

    @staticmethod
    def forward(ctx, x):
        return x.chunk(SIZE, 1)[RANK].contiguous()

    @staticmethod
    def backward(ctx, g):
        parts = [torch.empty_like(g) for _ in range(SIZE)]
        dist.all_gather(parts, g.contiguous())
        return torch.cat(parts, 1)


def copy(x):
    return Copy.apply(x) if TP > 1 and HOW != "dtensor" else x


def reduce(x):
    return Reduce.apply(x) if TP > 1 and HOW != "dtensor" else x


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM)

    def forward(self, x):
        h = copy(x)
        heads = HEADS // TP if HOW != "dtensor" else HEADS
        q, k, v = (each.view(*each.shape[:2], heads, -1).transpose(1, 2) for each in self.qkv(h).chunk(3, -1))
        causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        if CP > 1:
            is_sum = FAULT != "cp_no_sum_of_keys"
            k, v = (Gather.apply(each.transpose(1, 2), is_sum).transpose(1, 2) for each in (k, v))
            causal = causal.chunk(CP, 0)[RANK]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=causal)
        y = y.transpose(1, 2).flatten(2)
        if FAULT == "tp_bias_each":
            return reduce(F.linear(y, self.out.weight, self.out.bias))
        return reduce(F.linear(y, self.out.weight)) + self.out.bias


class Experts(nn.Module):
    """Two experts and a gate; with `ep` each rank has one of them, and all tokens."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(DIM, 2, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(2, DIM, DIM) / 4), nn.Parameter(torch.randn(2, DIM, DIM) / 4)

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        if EP > 1:
            if FAULT != "ep_gate_not_summed":
                weights = Copy.apply(weights)
            x = Copy.apply(x)
            return Reduce.apply(weights[..., RANK : RANK + 1] * (F.gelu(x @ self.up[0]) @ self.down[0]))
        return sum(weights[..., i : i + 1] * (F.gelu(x @ self.up[i]) @ self.down[i]) for i in range(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, DIM)
        self.norm1, self.attention, self.scale = nn.LayerNorm(DIM), Attention(), nn.Parameter(torch.ones(DIM))
        self.norm2 = nn.LayerNorm(DIM)
        if HOW == "ep":
            self.experts = Experts()
        else:
            self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)
        self.last = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, WORDS, bias=False)
        if "tied" in OPTIONS:
            self.head.weight = self.words.weight
        if "frozen" in OPTIONS:
            self.norm1.weight.requires_grad_(False)

    def forward(self, tokens):
        x = self.words(tokens)
        x = x + self.attention(self.norm1(x)) * self.scale
        if "dropout" in OPTIONS:  # by a key: the same mask for the same rows, on any number of ranks
            x = x * (torch.cos(tokens[..., None] * 7.0 + torch.arange(DIM)) > -0.8) * 1.25
        if HOW == "ep":
            x = x + self.experts(self.norm2(x))
        else:
            h = F.gelu(self.up(copy(self.norm2(x)))) if HOW != "dtensor" else F.gelu(self.up(self.norm2(x)))
            down = self.down(h) if HOW == "dtensor" else reduce(F.linear(h, self.down.weight)) + self.down.bias
            x = x + down
        if FAULT == "zero_on_rank_1" and RANK == 1:
            x = self.last(x.detach() + 0 * x)
        elif HOW == "sp" and TP > 1:
            x = Gather.apply(self.last(Split.apply(x)), FAULT == "sp_gather_sums")
        else:
            x = self.last(x)
        return self.head(x)


torch.manual_seed(RANK if FAULT == "seeds" else 0)
model = Block()
with torch.no_grad():
    for p in model.parameters():
        p.add_(0.1 * torch.randn_like(p))
SHARDED = set()


def cut(linear, name, dim, parts=1):
    weight = linear.weight.data
    if dim == 0 and FAULT == "tp_fused_even" and parts > 1:
        pieces = [weight.chunk(TP, 0)[TP_RANK]]
    else:
        rank = TP - 1 - TP_RANK if FAULT == "tp_order" and name == "up" else TP_RANK
        pieces = [each.chunk(TP, dim)[rank] for each in weight.chunk(parts, dim)]
    linear.weight = nn.Parameter(torch.cat(pieces, dim).clone())
    SHARDED.add(f"{name}.weight")
    if dim == 0 and linear.bias is not None:
        linear.bias = nn.Parameter(linear.bias.data.chunk(TP, 0)[TP_RANK].clone())
        SHARDED.add(f"{name}.bias")


if TP > 1 and HOW != "dtensor":
    cut(model.attention.qkv, "attention.qkv", 0, 3)
    cut(model.attention.out, "attention.out", 1)
    cut(model.up, "up", 0)
    cut(model.down, "down", 1)
if EP > 1:
    for name in ("up", "down"):
        setattr(model.experts, name, nn.Parameter(getattr(model.experts, name).data[RANK : RANK + 1].clone()))
        SHARDED.add(f"experts.{name}")
whole = model
if HOW == "dtensor" and SIZE > 1:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (SIZE,), mesh_dim_names=("tp",))
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
if HOW == "ddp" and SIZE > 1:
    late = nn.Parameter(torch.ones(DIM)) if FAULT == "late_parameter" else None
    if late is not None:
        late.data.copy_(model.scale.data)
        model.register_parameter("scale", None)
        whole = nn.parallel.DistributedDataParallel(model)
        model.register_parameter("scale", late)
    else:
        whole = nn.parallel.DistributedDataParallel(model)
if HOW == "fsdp" and SIZE > 1:
    from torch.distributed.fsdp import fully_shard

    ignored = {model.scale} if FAULT == "ignored_parameter" else None
    whole = fully_shard(model, ignored_params=ignored) if ignored else fully_shard(model)
    if FAULT == "divide_factor":
        whole.set_gradient_divide_factor(1.0)

used = [p for name, p in model.named_parameters() if not (FAULT == "left_out" and name == "norm2.weight" and SIZE > 1)]
rate = 0.2 if FAULT == "rate_of_rank_1" and RANK == 1 else 0.1
optimizer = torch.optim.Adam(used, lr=0.01) if "adam" in OPTIONS else torch.optim.SGD(used, lr=rate)
data = torch.Generator().manual_seed(5 + (RANK if FAULT == "tp_other_data" else 0))
BATCHES = 2 if "accumulate" in OPTIONS else 1
old = {}


def loss_of(tokens, labels, count):
    autocast = torch.autocast("cpu", torch.bfloat16, enabled="bfloat16" in OPTIONS)
    with autocast:
        scores = whole(tokens)
    loss = F.cross_entropy(
        scores.reshape(-1, WORDS).to(torch.get_default_dtype()), labels.reshape(-1), ignore_index=-100, reduction="sum"
    )
    mine = (labels != -100).sum()
    if FAULT == "mean_of_means" and SIZE > 1:
        return loss / mine / (1 if HOW in ("ddp", "fsdp") else DP * CP)
    if FAULT == "sum_of_means" and SIZE > 1:
        return loss / mine
    if FAULT == "mean_of_batches":
        return loss / mine / BATCHES / DP
    if HOW in ("ddp", "fsdp"):
        loss = loss * (1 if FAULT == "no_world" else DP)  # their mean over the ranks
    return loss / count


for step in range(3):
    tokens = torch.randint(0, WORDS, (ROWS, LENGTH), generator=data)
    labels = torch.randint(0, WORDS, (ROWS, LENGTH), generator=data)
    labels[0, 1:], labels[1, 3:], labels[6, 5:] = -100, -100, -100
    count = (labels != -100).sum()
    if DP > 1:
        tokens, labels = tokens.chunk(DP)[DP_RANK], labels.chunk(DP)[DP_RANK]
    if CP > 1:
        tokens, labels = tokens.chunk(CP, 1)[RANK], labels.chunk(CP, 1)[RANK]
    if FAULT != "not_cleared" or step == 0:
        optimizer.zero_grad()
    for some, theirs in zip(tokens.chunk(BATCHES), labels.chunk(BATCHES), strict=True):
        if FAULT == "last_batch_only":
            optimizer.zero_grad()
        is_alone = HOW == "ddp" and SIZE > 1 and (FAULT == "no_sync" or (FAULT == "no_sync_later" and step >= 1))
        with whole.no_sync() if is_alone else contextlib.nullcontext():
            loss = loss_of(some, theirs, count)
            if FAULT == "divided_twice":
                loss = loss / BATCHES
            if FAULT == "loss_scale":
                loss = loss * 1024
            if FAULT == "sign":
                loss = -loss
            if FAULT == "world_loss":
                loss = loss * SIZE
            loss.backward()
    if HOW == "sp" and TP > 1 and FAULT != "sp_norm_not_summed":
        for p in model.last.parameters():
            dist.all_reduce(p.grad)
    if FAULT == "clip_first":
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    if FAULT == "clip_first_by_hand":
        norm = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters()))
        for p in model.parameters():
            p.grad.mul_(0.3 / norm)
    local = (
        torch.sqrt(sum((p.grad.double() ** 2).sum() for p in model.parameters() if p.grad is not None))
        if FAULT == "norm_before_sum"
        else None
    )
    if HOW in ("dp", "dp_tp", "cp") and SIZE > 1:
        group = DP_GROUP if HOW == "dp_tp" else None
        for name, p in model.named_parameters():
            if p.grad is None:
                continue
            if FAULT == "no_grad_on_rank_1" and name == "norm1.bias" and RANK == 1:
                dist.all_reduce(p.grad)
                p.grad = None
                continue
            if (
                FAULT == "no_sum"
                or (FAULT == "no_sum_later" and step >= 2)
                or (FAULT == "one_missing" and name == "up.weight")
            ):
                continue
            if FAULT == "bias_missing" and name.endswith("bias") or FAULT == "shards_missing" and name in SHARDED:
                continue
            if FAULT == "rank_0_all" or (FAULT == "rank_0_only" and name == "words.weight"):
                dist.broadcast(p.grad, 0)
                continue
            at_fault = "wrong_group" if name in SHARDED else "world_sum"
            is_of_world = at_fault == FAULT
            dist.all_reduce(p.grad, group=None if is_of_world else group)
            if FAULT == "twice" and name == "down.weight":
                dist.all_reduce(p.grad, group=group)
            if FAULT == "divided":
                p.grad /= DP * CP
            if FAULT == "times" and name == "head.weight":
                p.grad *= DP
            if FAULT == "minus_one" and name == "last.weight":
                p.grad.neg_()
            if FAULT == "rank_1_scaled" and name == "last.bias" and RANK == 1:
                p.grad *= 3
            if FAULT in ("stale", "stale_all") and (FAULT == "stale_all" or name == "down.weight"):
                new, last = p.grad.clone(), old.get(name, p.grad)
                p.grad.copy_(last)
                old[name] = new
    if HOW == "ddp" and FAULT == "divided":
        for p in model.parameters():
            p.grad /= DP
    if FAULT == "dtensor_twice" and SIZE > 1:
        p = model.norm2.weight
        dist.all_reduce(p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad)
    if FAULT == "ep_experts_summed" and EP > 1:
        for p in (model.experts.up, model.experts.down):
            dist.all_reduce(p.grad)
    if FAULT == "ep_divided" and EP > 1:
        for p in (model.experts.up, model.experts.down):
            p.grad /= EP
    if "clip" in OPTIONS and HOW in ("dp", "ddp", "fsdp") and "hand" not in OPTIONS:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3, float("inf") if "max" in OPTIONS else 2.0)
    elif "hand" in OPTIONS:
        own = lambda p: p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
        parameters = [(name, p) for name, p in model.named_parameters() if p.grad is not None]
        is_cut = lambda name, p: name in SHARDED or (HOW == "fsdp" and SIZE > 1)
        if "max" in OPTIONS:
            norm = torch.stack([own(p).abs().max() for _, p in parameters]).max()
            if SIZE > 1 and FAULT != "max_local":
                dist.all_reduce(norm, op=dist.ReduceOp.MAX)
        else:
            cut_square = sum(((own(p) ** 2).sum() for name, p in parameters if is_cut(name, p)), torch.zeros(()))
            square = sum(((own(p) ** 2).sum() for name, p in parameters if not is_cut(name, p)), torch.zeros(()))
            if FAULT == "norm_twice":
                cut_square, square = cut_square + square, torch.zeros(())
            if SIZE > 1 and FAULT != "norm_local" and (TP > 1 or HOW in ("fsdp", "ep") or FAULT == "norm_twice"):
                cut_square = summed(
                    cut_square,
                    dist.group.WORLD if HOW in ("fsdp", "ep") or FAULT in ("norm_twice", "norm_of_world") else None,
                )
            if FAULT == "norm_of_shards":
                square = torch.zeros(())
            norm = torch.sqrt(cut_square + square)
        if local is not None:
            norm = local
        for _, p in parameters:
            own(p).mul_(0.3 / (norm + 1e-6))
    if FAULT == "skipped" and RANK == 1 and step == 1:
        continue
    optimizer.step()
dist.destroy_process_group()
