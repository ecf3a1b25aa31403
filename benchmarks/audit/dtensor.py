"""torch's DTensor in the sweep: its operations, the placements that are tried, and a case as a program.

A layout is ``R`` (Replicate), ``S0`` (Shard of dimension 0), ``P`` (Partial sum), ``Pavg`` or ``Pmax`` (Partial of that
name).
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from .cases import Case, Difference, arrays, smaller
from .sweep import Documented

__all__ = ["OPERATIONS", "PLAIN", "candidates", "cases", "request", "script"]

NAME = "torch DTensor"
DOCUMENTED: list[Documented] = []
PLAIN = "R"
SIZES = {
    "uneven": {"b": 3, "c": 4, "k": 3, "m": 5, "n": 5},
    "even": {"b": 2, "c": 4, "k": 4, "m": 6, "n": 4},
    "short": {"b": 1, "c": 2, "k": 3, "m": 2, "n": 1},  # more ranks than rows: the last part is empty
}
VALUES = (("uneven", "first"), ("uneven", "last"), ("even", "first"), ("short", "last"))

ELEMENTWISE = """
    -x x.abs() x.exp() x.expm1() x.sin() x.cos() x.tan() x.sinh() x.cosh() x.tanh() x.atan() x.asinh() x.erf()
    x.erfc() x.sigmoid() x.square() x.reciprocal() x.sign() x.floor() x.ceil() x.round() x.trunc() x.frac() x.relu()
    x.clone() x.sinc() x**2 x**3 x+1 x-1 2-x x*2 x/2 1/x x%1 x//1 x.clamp(-0.5,0.5) x.clamp(min=0.1) x.nan_to_num()
    x>0 x==x x.isnan() x.deg2rad() x.hardshrink(0.3) x.positive() x.logical_not() x.clone().mul_(3) x.clone().add_(1)
    x.clone().relu_() x.clone().zero_() x.clone().fill_(2) x.clone().neg_() x.clone().exp_() x.contiguous()
    F.gelu(x) F.silu(x) F.softplus(x) F.elu(x) F.selu(x) F.celu(x) F.mish(x) F.leaky_relu(x)
    F.hardtanh(x) F.hardswish(x) F.hardsigmoid(x) F.logsigmoid(x) F.relu6(x) F.softsign(x) F.tanhshrink(x)
    F.softshrink(x,0.3) F.threshold(x,0.1,2.0) torch.polar(x,x).real torch.zeros_like(x)+x torch.ones_like(x)*x
    torch.full_like(x,2.0)*x x.detach()
"""
POSITIVE = """
    x.log() x.log2() x.log10() x.log1p() x.sqrt() x.rsqrt() x.lgamma() x.digamma() x**0.5 x**-1.5 2**x x.pow(1.5)
"""
UNIT = "x.logit() torch.special.logit(x,1e-6) x.asin() x.acos() x.atanh() x.erfinv() torch.special.entr(x) x.log()"
BINARY = """
    x+y x-y x*y x/y x.maximum(y) x.minimum(y) torch.fmax(x,y) x.atan2(y) x.hypot(y) x.copysign(y) x>y x<=y x==y
    torch.where(x>y,x,y) torch.where(x>0,x,y) x.lerp(y,0.3) torch.add(x,y,alpha=2) torch.rsub(x,y) x.logaddexp(y)
    x.clone().mul_(y) x.clone().add_(y) x.clone().copy_(y) x.heaviside(y) x.fmod(y) x.clamp(min=y) x.remainder(y)
"""
REDUCTIONS = """
    x.sum({0}) x.mean({0}) x.amax({0}) x.amin({0}) x.logsumexp({0}) x.var({0}) x.std({0}) x.var({0},correction=0)
    x.norm(2,{0}) x.norm(1,{0}) x.norm(3,{0}) x.norm(float('inf'),{0}) x.norm(float('-inf'),{0}) x.norm(0.5,{0})
    x.nansum({0}) x.nanmean({0}) torch.linalg.vector_norm(x,2,{0}) torch.linalg.vector_norm(x,float('inf'),{0})
    x.count_nonzero({0}) torch.aminmax(x,dim={0}).max torch.aminmax(x,dim={0}).min torch.var_mean(x,{0})[0]
    torch.std_mean(x,{0})[1]
"""
ALONG = """
    x.prod({0}) x.max({0}).values x.max({0}).indices x.min({0}).values x.min({0}).indices x.argmax({0}) x.argmin({0})
    x.any({0}) x.median({0}).values x.cumsum({0}) x.cumprod({0}) x.cummax({0}).values x.cummin({0}).values
    x.logcumsumexp({0}) x.softmax({0}) x.log_softmax({0}) F.softmin(x,{0}) F.normalize(x,dim={0})
    F.normalize(x,1.0,{0}) x.sort({0}).values x.sort({0}).indices x.argsort({0}) x.topk(2,{0}).values
    x.kthvalue(1,{0}).values x.mode({0}).values x.flip({0}) x.roll(1,{0}) x.unbind({0})[0] x.split(2,{0})[-1]
    x.chunk(2,{0})[0] x.tensor_split(2,{0})[1] x.narrow({0},0,1) x.select({0},-1) x.unsqueeze({0}) x.diff(dim={0})
    x.repeat_interleave(2,{0}) x.quantile(0.3,{0}) x.renorm(2,{0},1.0) torch.cat([x,x],{0}) torch.stack([x,x],{0})
    torch.cat([x*2,x],{0}) x.sum({0},keepdim=True) x.mean({0},keepdim=True) x.amax({0},keepdim=True)
    torch.trapezoid(x,dim={0})
"""
WHOLE = """
    x.prod() x.max() x.min() x.argmax() x.argmin() x.median() x.all() x.any() x.norm() x.norm(1) x.norm(float('inf'))
    x.norm(0) torch.linalg.matrix_norm(x) torch.linalg.matrix_norm(x,1) torch.linalg.matrix_norm(x,float('inf'))
    x.sum() x.mean() torch.linalg.vector_norm(x,float('-inf')) torch.linalg.vector_norm(x,0) x.var() x.std() x.amax()
    x.amin() x.count_nonzero() x.t() x.mT x.view(-1) x.reshape(-1) x.flatten() x.reshape(1,-1) x.unsqueeze(1)
    x.expand(2,-1,-1) x.repeat(2,1) x.repeat(1,2) x.tile(2,2) x[0] x[-1] x[:,0] x[::2] x[:,1:] x[1:] x[:-1] x[None]
    x[...,-1] x[[0,-1]] x[:,[0,1]] x[x>0] x.tril() x.triu(1) x.diagonal() x.diag() x.trace() x.rot90() x.fliplr()
    x.diag_embed() x.permute(1,0) x.movedim(0,1) x.swapaxes(0,1) F.pad(x,(1,2)) F.pad(x,(0,0,1,1)) F.pad(x,(-1,0))
    F.pad(x[None],(1,1),'reflect') F.pad(x[None],(1,1),'replicate') F.pad(x[None],(1,1),'circular') x.unfold(0,1,1)
    x.unfold(1,2,1) x.broadcast_to(2,-1,-1) torch.hstack([x,x]) torch.vstack([x,x]) torch.block_diag(x,x)
    torch.cdist(x,x+1) x@x.T x.T@x torch.cov(x) torch.corrcoef(x) x.cov() F.layer_norm(x,x.shape[1:])
    F.layer_norm(x,x.shape) F.rms_norm(x,x.shape[1:]) F.instance_norm(x[None]) F.group_norm(x,1)
    F.batch_norm(x,None,None,training=True) torch.linalg.svdvals(x) x.sum()*x x-x.mean() x/x.norm()
    (x-x.mean(0))/x.std(0) x.softmax(-1).log() x*x.amax() (x*x).mean().sqrt() x.masked_fill(x>0,0.5)
    torch.tril(x).sum() x.sum(0).exp() x.mean(0)**2 x.logsumexp((0,1)) x.histc(4) x.unique() x.nonzero() x.view_as(x)
    x.squeeze() x.unsqueeze(0).squeeze(0) x.ravel() x.unflatten(1,(1,-1)) x.type_as(x) F.one_hot((x>0).long())
    x.new_ones(x.shape)*x F.unfold(x[None,None],(1,2)) F.max_pool1d(x,2) F.avg_pool1d(x,2) F.adaptive_avg_pool1d(x,1)
    F.adaptive_max_pool1d(x,1) F.interpolate(x[None],scale_factor=2.0) F.lp_pool1d(x,2,2)
    F.pixel_shuffle(x.expand(4,-1,-1),2) torch.fft.fft(x).real F.local_response_norm(x[None],2)
    torch.meshgrid(x[0],x[1],indexing='ij')[0]
"""
LOSSES = """
    F.mse_loss(x,y{r}) F.l1_loss(x,y{r}) F.smooth_l1_loss(x,y{r}) F.huber_loss(x,y{r})
    F.soft_margin_loss(x,y.sign(){r}) F.binary_cross_entropy_with_logits(x,y.sigmoid(){r}) F.kl_div(x,y.exp(){r})
    F.poisson_nll_loss(x,y.exp(){r}) F.hinge_embedding_loss(x,y.sign(){r}) F.gaussian_nll_loss(x,y,y.exp(){r})
    F.cosine_embedding_loss(x,y,y[:,0].sign(){r}) F.multilabel_soft_margin_loss(x,(y>0).double(){r})
    F.margin_ranking_loss(x,y,x.detach().sign(){r}) F.triplet_margin_loss(x,y,x.sin(){r})
    F.cross_entropy(x,y.softmax(1){r})
"""
TARGETS = """
    F.cross_entropy(x,y{r}) F.nll_loss(x,y{r}) F.cross_entropy(x,y,label_smoothing=0.2{r})
    F.cross_entropy(x,y,ignore_index=1{r}) F.nll_loss(x,y,ignore_index=1{r}) F.multi_margin_loss(x,y{r})
"""
OTHERS = """
    nk km: x@y x.matmul(y) torch.einsum('nk,km->mn',x,y) torch.einsum('nk,km->m',x,y) torch.tensordot(x,y,1)
    nk km: torch.chain_matmul(x,y)
    nk k: x@y x.mv(y) x*y x+y torch.where(x>0,x,y) F.linear(x,y) F.layer_norm(x,y.shape,y) F.rms_norm(x,y.shape,y)
    nk k: F.prelu(x,y.abs())
    nk k k: F.layer_norm(x,y.shape,y,z) F.batch_norm(x,None,None,y,z,training=True) x*y+z torch.addcmul(x,y,z)
    nk k k: torch.addcdiv(x,y,z)
    nk k+ k+: F.batch_norm(x,y.detach(),z.detach())
    nk k+ k+: F.batch_norm(x,y.detach().clone(),z.detach().clone(),training=True)
    nk 1k: x*y x+y x/y x-y x.maximum(y)
    nk n1: x*y x+y x/y x-y x.minimum(y)
    n n: x.dot(y) x.outer(y) torch.vdot(x,y) torch.kron(x,y) torch.cross(x[:3],y[:3],dim=0) x@y
    nk mk: F.linear(x,y) x@y.T torch.cdist(x,y) torch.cat([x,y]) torch.vstack([x,y]) torch.einsum('nk,mk->nm',x,y)
    nk mk m: F.linear(x,y,z)
    bnk bkm: x@y x.bmm(y) torch.einsum('bnk,bkm->bnm',x,y) torch.einsum('bnk,bkm->nm',x,y)
    bnk km: x@y torch.einsum('bnk,km->bnm',x,y) torch.einsum('bnk,km->bm',x,y)
    nk nm nkm: F.bilinear(x,y,z.permute(0,1,2)[:1].expand(2,-1,-1).transpose(1,2).transpose(1,2))
    nm nk km: x.addmm(y,z) torch.addmm(x,y,z,beta=0.5,alpha=2)
    m nk km: x.addmm(y,z) x+y@z
    n nk k: x.addmv(y,z)
    nk n k: x.addr(y,z)
    bnm bnk bkm: x.baddbmm(y,z)
    nk nk nk: torch.addcmul(x,y,z) torch.addcdiv(x,y,z,value=2) torch.lerp(x,y,z) x*y+z torch.where(x>0,y,z)
    nk nk nk: torch.stack([x,y,z])
    nk n<k k+: F.cross_entropy(x,y,z) F.nll_loss(x,y,z) F.cross_entropy(x,y,z,reduction='sum')
    nk? nk nk: torch.where(x,y,z) torch.where(x,y*2,z)
    nk nk?: x.masked_fill(y,0.5) x*y torch.where(y,x,1.0) x.masked_select(y) x[y]
    n<k km: F.embedding(x,y) y[x] y.index_select(0,x) F.embedding(x,y,padding_idx=0) y.take_along_dim(x[:,None],0)
    n<k km: F.embedding_bag(x[None],y)
    bn<k km: F.embedding(x,y) y[x] F.embedding_bag(x,y)
    nk nk<n: x.gather(0,y) x.scatter_add(0,y,x) torch.take_along_dim(x,y,0) x.scatter_reduce(0,y,x,'sum')
    nk nk<n: x.scatter_reduce(0,y,x,'amax')
    nk nk<k: x.gather(1,y) x.scatter_add(1,y,x) x.scatter(1,y[:,:1],9.0) torch.take_along_dim(x,y,1)
    nk nk<k: x.gather(-1,y[:,:1])
    nk m<n mk: x.index_add(0,y,z) x.index_put((y,),z,accumulate=True) x.index_reduce(0,y,z,'amax')
    nk m<n: x[y] x.index_select(0,y) x.take(y) x.index_fill(0,y,0.5)
    nn!: torch.linalg.inv(x) torch.linalg.det(x) torch.linalg.slogdet(x)[1] x.inverse() torch.matrix_exp(x/4)
    nn!: x.matrix_power(3)
    nn!: torch.linalg.cholesky(x@x.mT) torch.linalg.eigvalsh(x+x.mT) torch.linalg.pinv(x) x.logdet()
    nn!: torch.linalg.qr(x).R
    nn! nm: torch.linalg.solve(x,y) torch.linalg.solve_triangular(x.triu(),y,upper=True)
    nn! nm: torch.linalg.lstsq(x,y).solution
    bcn: F.max_pool1d(x,2) F.avg_pool1d(x,2) F.group_norm(x,2) F.instance_norm(x) F.adaptive_avg_pool1d(x,1)
    bcn: F.pad(x,(1,1)) x.permute(2,0,1)
    bcn: x.transpose(1,2) x.flatten(1) x.flatten(0,1) x.view(x.shape[0],-1) x.reshape(-1,x.shape[-1]) x.sum((0,2))
    bcn: x.amax((0,2)) x.mean((1,2))
    bcn: x.view(x.shape[0],2,-1,x.shape[2]) F.layer_norm(x,x.shape[1:]) x.softmax(1) x.norm(2,(0,1)) x.var((0,2))
    bcn: F.glu(x,1) x.unflatten(1,(2,-1))
    bcn c c: F.batch_norm(x,None,None,y,z,training=True) F.group_norm(x,2,y,z) F.instance_norm(x,None,None,y,z)
    bcn mc1: F.conv1d(x,y) F.conv1d(x,y,stride=2)
    bcn mc3: F.conv1d(x,y,padding=1)
    bcn mc3 m: F.conv1d(x,y,z,padding=1) F.conv1d(x,y,z,padding=2,stride=2,dilation=2)
    bcn cm3: F.conv_transpose1d(x,y) F.conv_transpose1d(x,y,stride=2,padding=1)
    bc44 mc33: F.conv2d(x,y) F.conv2d(x,y,padding=1) F.conv2d(x,y,padding=1,stride=2)
    bc44 mc33 m: F.conv2d(x,y,z,padding=1)
    bc44 c133: F.conv2d(x,y,padding=1,groups=x.shape[1])
    bc44: F.max_pool2d(x,2) F.avg_pool2d(x,2) F.adaptive_avg_pool2d(x,1) F.interpolate(x,scale_factor=2.0)
    bc44: F.pixel_shuffle(x[:,:4],2) x.flatten(2)
    bc44: F.interpolate(x,scale_factor=2.0,mode='bilinear') F.adaptive_max_pool2d(x,2)
    bc44: F.batch_norm(x,None,None,training=True) F.unfold(x,2)
    b2nk b2nk b2nk: F.scaled_dot_product_attention(x,y,z) F.scaled_dot_product_attention(x,y,z,is_causal=True)
    b2nk b2nk b2nk: (x@y.mT).softmax(-1)@z
    nk nk: F.cosine_similarity(x,y) F.pairwise_distance(x,y) F.cosine_similarity(x,y,dim=0) (x*y).sum() (x*y).sum(0)
    nk nk: x.T@y torch.dist(x,y)
    nk nk: torch.cat([x,y]) torch.cat([x,y],1) torch.stack([x,y]) torch.hstack([x,y]) x.clone().masked_fill_(y>0,0.5)
    nk nk: torch.linalg.vecdot(x,y)
    nk nk: (x-y).norm() (x-y).abs().amax() (x*y).mean() torch.max(x,y).sum() (x+y).softmax(-1) (x@y.T).logsumexp(0)
    nk nk: x.sum()/y.norm()
"""


def operations() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each call with its operands."""
    for calls, operand in ((ELEMENTWISE, "nk"), (POSITIVE, "nk+"), (UNIT, "nk%"), (WHOLE, "nk")):
        yield from ((call, (operand,)) for call in calls.split())
    yield from ((call, ("nk", "nk")) for call in BINARY.split())
    for dim, calls in itertools.product(("0", "1", "(0,1)"), (REDUCTIONS, ALONG)):
        if calls is REDUCTIONS or dim != "(0,1)":
            yield from ((call.replace("{0}", dim), ("nk",)) for call in calls.split())
    for reduction in ("", ",reduction='sum'", ",reduction='none'"):
        for calls, target in ((LOSSES, "nk"), (TARGETS, "n<k")):
            yield from ((call.replace("{r}", reduction), ("nk", target)) for call in calls.split())
        yield f"F.binary_cross_entropy(x,y{reduction})", ("nk%", "nk%")
        yield f"F.kl_div(x,y,log_target=True{reduction})", ("nk", "nk")
    for line in OTHERS.strip().splitlines():
        names, _, calls = line.strip().partition(": ")
        yield from ((call, tuple(names.split())) for call in calls.split())


OPERATIONS = list(dict.fromkeys(operations()))


def layouts(operand: str, alone: bool) -> list[str]:
    """The placements that are tried for an operand, for one that is alone also other kinds of Partial."""
    sharded = [f"S{d}" for d in range(len(operand.split("<")[0].rstrip("+%!?")))]
    if operand.endswith("?") or "<" in operand:
        return ["R", *sharded]
    return ["R", "P", *sharded, *(["Pavg", "Pmax"] if alone else [])]


def cases(most: int = 10) -> Iterator[Case]:
    """All cases: each operation with its placements (at most `most` of them, drawn), sizes, and places of extrema.

    They come in rounds, one placement of each operation after the other: a sweep that is cut short has tried all.
    """
    drawn = []
    for call, operands in OPERATIONS:
        combined = list(itertools.product(*(layouts(o, len(operands) == 1) for o in operands)))[1:]
        if len(combined) > most:
            combined = random.Random(zlib.crc32(call.encode())).sample(combined, most)
        letters = sorted({c for operand in operands for c in operand if c.isalpha()})
        drawn.append((call, operands, letters, combined))
    for number, (call, operands, letters, combined) in itertools.product(range(most), drawn):
        for sizes, extrema in VALUES if number < len(combined) else ():
            yield Case(call, operands, combined[number], tuple((c, SIZES[sizes][c]) for c in letters), extrema)


def candidates(case: Case) -> Iterator[Case]:
    return smaller(case, PLAIN)


def addends(x: Any, layout: str, ranks: int, decimals: int) -> list[Any]:
    """The parts of a Partial: their sum, mean or maximum is x, and their own extrema are elsewhere."""
    rng = np.random.default_rng(x.size)
    if layout == "Pmax":
        owner = rng.integers(0, ranks, x.shape)
        return [np.where(owner == r, x, np.round(x - rng.uniform(0.5, 2, x.shape), decimals)) for r in range(ranks)]
    total = x * ranks if layout == "Pavg" else x
    parts = [np.round(rng.uniform(-2, 2, x.shape), decimals) for _ in range(ranks - 1)]
    return [*parts, np.round(total - sum(parts), 6)]


def request(case: Case, ranks: int, differences: bool = False) -> dict[str, Any]:
    """The line that the worker is sent."""
    kinds = {"b": "bool", "i": "int64", "f": "float64"}
    operands, parts = [], []
    for x, layout in zip(arrays(case), case.layouts, strict=True):
        parts.append(addends(x, layout, ranks, case.decimals) if layout[0] == "P" else [])
        if layout[0] == "P":  # the bits that the ranks have: a comparison may depend on the last one
            x = np.max(parts[-1], 0) if layout == "Pmax" else sum(parts[-1]) / (ranks if layout == "Pavg" else 1)
        operands.append(x)
    return {
        "call": case.text(), "operands": [x.tolist() for x in operands], "layouts": case.layouts,
        "dtypes": [kinds[x.dtype.kind] for x in operands], "differences": differences,
        "addends": [[a.tolist() for a in one] for one in parts],
    }  # fmt: skip


def script(case: Case, difference: Difference, ranks: int) -> str:
    """A program of at most 15 lines that raises AssertionError where the difference is."""
    values, names = arrays(case), "xyzw"[: len(case.operands)]
    floating = [n for n, x in zip(names, values, strict=True) if x.dtype.kind == "f"]
    grad = lambda name: ".requires_grad_()" if difference.stage != "value" and name in floating else ""
    operands = []
    for name, x, layout in zip(names, values, case.layouts, strict=True):
        if layout[0] == "P":
            parts = [a.tolist() for a in addends(x, layout, ranks, case.decimals)]
            kind = repr(layout[1:]) if layout[1:] else ""
            made = f"DTensor.from_local(torch.tensor({parts}[dist.get_rank()]), mesh, [Partial({kind})])"
        else:
            placement = "Replicate()" if layout == "R" else f"Shard({layout[1:]})"
            made = f"distribute_tensor(torch.tensor({x.tolist()}), mesh, [{placement}])"
        operands.append(made + grad(name))
    inputs, wanted = ", ".join(names), ", ".join(floating) + ("," if len(floating) == 1 else "")
    lines = [
        "import torch, torch.distributed as dist, torch.nn.functional as F",
        "from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor",
        'dist.init_process_group("gloo"); torch.set_default_dtype(torch.float64)',
        f'mesh = dist.init_device_mesh("cpu", ({ranks},))',
        f"f = lambda {inputs}: {case.text()}",
        f"{inputs} = {', '.join(operands)}",
        "full = lambda t: t.full_tensor() if isinstance(t, DTensor) else t",
    ]
    if difference.stage == "value":
        lines.append(f"run = lambda {inputs}: full(f({inputs}))")
    else:
        created = ", create_graph=True" if difference.stage != "gradient" else ""
        lines += [
            "like = lambda t, seed: torch.randn(t.shape, generator=torch.Generator().manual_seed(seed))",
            f"def run({inputs}):",
            f"    out = full(f({inputs}))",
            f"    g = torch.autograd.grad(out, ({wanted}), like(out, 0), allow_unused=True{created})",
        ]
        if difference.stage == "second order":
            dot = "sum((full(a) * like(a, 1 + i)).sum() for i, a in enumerate(g) if a is not None and a.requires_grad)"
            lines.append(f"    g = torch.autograd.grad({dot}, ({wanted}), allow_unused=True)")
        lines.append(f"    return full(g[{difference.operand}]).detach()")
    whole = ", ".join(f"full({n}).detach(){grad(n)}" for n in names)
    lines += [
        f"got, want = run({inputs}), run({whole})",
        "assert got.shape == want.shape and torch.allclose(got, want), f'rank {dist.get_rank()}: {got}, not {want}'",
    ]
    assert len(lines) <= 15, lines
    return "\n".join(lines) + "\n"
