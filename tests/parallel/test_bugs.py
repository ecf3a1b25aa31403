"""Real bugs of distributed gradients, as programs that ringtape refuses, each beside the program that is right.

Every bug was filed against a public project (the name and number stand in the class). All but the last are refused by
the layouts alone, when the operation is recorded, at backward or at the optimizer: so on one process too, under a mesh
whose axes have size 1. The mended program's gradient equals that of the serial program, which is written with plain
`autograd` and knows nothing of ranks.
"""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn, ops, optim, random
from collectives import I, LayoutError, P, R, ReplicaMismatch, Shard, V

from ..proofs.cases import Case, prove_exact, prove_refused

Array = Any


class Bug:
    """One row: the wrong program and the right one, what the refusal must say, and the serial gradients.

    A program takes the mesh and returns {name: (gradient of this rank, which part of the whole it is)}.
    """

    axes: dict[str, int] = {"tp": 3}
    """The mesh on threads; on one process every axis has size 1."""
    says: list[str] = []
    """What the text of the refusal names: operation, axis, operands, layouts, fix."""
    error: type = LayoutError

    def wrong(self, mesh: cc.Mesh) -> Any:
        raise NotImplementedError

    def right(self, mesh: cc.Mesh) -> dict[str, tuple[Array, Any]]:
        raise NotImplementedError

    def serial(self) -> dict[str, Array]:
        raise NotImplementedError

    def case(self) -> Case:
        return Case(self.wrong, self.right, self.serial, tuple(self.says), self.error.__name__, self.axes,
                    on_one_rank=self.error is LayoutError, on_every_rank=True)  # fmt: skip


def draw(name: str, *shape: int) -> Array:
    """The same numbers wherever they are asked for."""
    return numpy.random.default_rng(list(name.encode())).standard_normal(shape)


def mine(mesh: cc.Mesh, axis: str, n: int) -> slice:
    """This rank's part of n rows, by the rule of numpy.array_split."""
    at = numpy.array_split(numpy.arange(n), mesh.axis(axis).size)[mesh.axis(axis).rank]
    return slice(int(at[0]), int(at[-1]) + 1)


def grads(*functions_and_arrays: Any) -> Array:
    function, *arrays = functions_and_arrays
    return ag.grad(function, tuple(range(len(arrays))))(*arrays)


def whole(*parameters: Any, names: str) -> dict[str, tuple[Array, Any]]:
    """Gradients that every rank has in full."""
    return {name: (p.grad.numpy(), ...) for name, p in zip(names.split(), parameters, strict=True)}


BUGS: dict[str, Bug] = {}


def row(kind: type[Bug]) -> type[Bug]:
    BUGS[kind.__name__.lower()] = kind()
    return kind


# -- a weight that is the same everywhere, used on data that is not --------------------------------------------------


@row
class Row01(Bug):
    """Megatron-LM#1446. Sequence parallel: every rank normalises its part of the sequence with the same weight.

    Each rank's gradient of that weight covers its own tokens only; nobody sums them, and the copies drift apart.
    """

    says = ["multiply(self.norm(x): f64[", "{tp: Shard(0)}", "w: f64[4] {tp: I}", "axis 'tp'",
            "Invariant (w) does not mix with Shard (self.norm(x))", "w's gradient would miss the sum",
            "fix: cast(w, 'tp', to=R)", "test_bugs.py:"]  # fmt: skip

    @staticmethod
    def norm(x: Any) -> Any:
        centred = x - np.mean(x, axis=-1, keepdims=True)
        return centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)

    def data(self, mesh: cc.Mesh) -> tuple[Any, Any]:
        x = ag.tensor(draw("x", 7, 4)[mine(mesh, "tp", 7)], {"tp": Shard(0)}, global_shape=(7, 4))
        return x, ag.Parameter(draw("w", 4), name="w")

    def wrong(self, mesh: cc.Mesh) -> None:
        x, w = self.data(mesh)
        with ag.Tape() as tape:
            y = self.norm(x) * w  # <- w is Invariant: one weight, one computation
            loss = cc.all_reduce((y * y * y).sum(), "tp", to=I)
        tape.backward(loss)
        optim.SGD([w], lr=0.1).step()

    def right(self, mesh: cc.Mesh) -> Any:
        x, w = self.data(mesh)
        with ag.Tape() as tape:
            y = self.norm(x) * cc.cast(w, "tp", to=R)  # its adjoint is the all-reduce
            loss = cc.all_reduce((y * y * y).sum(), "tp", to=I)
        tape.backward(loss)
        optim.SGD([w], lr=0.0).step()
        return whole(w, names="w")

    def serial(self) -> Any:
        x = draw("x", 7, 4)
        return dict(zip(["w"], grads(lambda w: ((self.norm(x) * w) ** 3).sum(), draw("w", 4)), strict=True))


@row
class Row02(Bug):
    """Megatron-LM#619. The router of a mixture of experts: one weight on each rank's tokens, again without a sum."""

    says = ["matmul(x: f64[", "{tp: V}", "w_router: f64[4,3] {tp: I}", "axis 'tp'",
            "Invariant (w_router) does not mix with Varying (x)", "fix: cast(w_router, 'tp', to=R)"]  # fmt: skip

    def data(self, mesh: cc.Mesh) -> tuple[Any, Any]:
        return ag.tensor(draw("tokens", 7, 4)[mine(mesh, "tp", 7)]), ag.Parameter(draw("router", 4, 3), name="w_router")

    def wrong(self, mesh: cc.Mesh) -> None:
        x, w_router = self.data(mesh)
        with ag.Tape() as tape:
            s = ops.softmax(x @ w_router)
            loss = cc.all_reduce((s * s).sum(), "tp", to=I)
        tape.backward(loss)
        optim.SGD([w_router], lr=0.1).step()

    def right(self, mesh: cc.Mesh) -> Any:
        x, w_router = self.data(mesh)
        with ag.Tape() as tape:
            s = ops.softmax(x @ cc.cast(w_router, "tp", to=R))
            loss = cc.all_reduce((s * s).sum(), "tp", to=I)
        tape.backward(loss)
        optim.SGD([w_router], lr=0.0).step()
        return whole(w_router, names="w")

    def serial(self) -> Any:
        x = draw("tokens", 7, 4)
        (g,) = grads(lambda w: (ops.softmax(x @ w) ** 2).sum(), draw("router", 4, 3))
        return {"w": g}


# -- a gradient that is Partial, taken for whole ---------------------------------------------------------------------


@row
class Row04(Bug):
    """torchtitan#1805. x is local on every rank and enters a product with sharded columns; dx is declared Replicated.

    Each rank's dx covers its own columns only: it is Partial. Here x's gradient says so, and the optimizer refuses it.
    """

    says = ["step(x: f64[2,4] {tp: R}, its gradient: f64[2,4] {tp: P})", "axis 'tp'", "the parameter is Replicated",
            "gradient Partial", "was never taken", "fix: make the parameter Invariant",
            "cast(x, 'tp', to=R)"]  # fmt: skip

    def weight(self, mesh: cc.Mesh) -> Any:
        return ag.tensor(draw("W", 4, 6)[:, mine(mesh, "tp", 6)], {"tp": Shard(1)}, requires_grad=True)

    def wrong(self, mesh: cc.Mesh) -> None:
        x = ag.Parameter(draw("x", 2, 4), {"tp": R}, name="x")  # <- "local", and used as if that were enough
        w = self.weight(mesh)
        with ag.Tape() as tape:
            y = np.tanh(x @ w)
            loss = cc.all_reduce(y.sum(), "tp", to=I)
        tape.backward(loss)
        optim.SGD([x], lr=0.1).step()

    def right(self, mesh: cc.Mesh) -> Any:
        x, w = ag.Parameter(draw("x", 2, 4), name="x"), self.weight(mesh)
        with ag.Tape() as tape:
            y = np.tanh(cc.cast(x, "tp", to=R) @ w)  # Megatron's f
            loss = cc.all_reduce(y.sum(), "tp", to=I)
        tape.backward(loss)
        optim.SGD([x, w], lr=0.0).step()
        return {"x": (x.grad.numpy(), ...), "w": (w.grad.numpy(), (slice(None), mine(mesh, "tp", 6)))}

    def serial(self) -> Any:
        gx, gw = grads(lambda x, w: np.tanh(x @ w).sum(), draw("x", 2, 4), draw("W", 4, 6))
        return {"x": gx, "w": gw}


@row
class Row06(Bug):
    """torchtitan#2532. Two axes: unwrapping a parameter for data parallelism drops that tp uses it on data of its own.

    u = all_gather(w, dp); y = x @ u with x different on every tp rank; the gradient is reduced over dp and not over tp.
    """

    axes = {"dp": 2, "tp": 2}
    says = ["multiply(x: f64[", "u: f64[6] {dp: R, tp: I}", "axis 'tp'", "Invariant (u) does not mix with Varying (x)",
            "fix: cast(u, 'tp', to=R)"]  # fmt: skip

    def data(self, mesh: cc.Mesh) -> tuple[Any, Any]:
        rows = mine(mesh, "dp", 4)
        own = numpy.array_split(draw("x", 4, 6)[rows], mesh.axis("tp").size)[mesh.axis("tp").rank]
        w = ag.Parameter(draw("w", 6)[mine(mesh, "dp", 6)], {"dp": Shard(0)}, name="w")  # tp: Invariant
        return ag.tensor(own, {"dp": V, "tp": V}), w

    def wrong(self, mesh: cc.Mesh) -> None:
        x, w = self.data(mesh)
        with ag.Tape() as tape:
            u = cc.all_gather(w, "dp")  # its adjoint reduce-scatters over dp only
            y = x * u
            loss = cc.all_reduce((y * y).sum(), ("dp", "tp"), to=I)
        tape.backward(loss)
        optim.SGD([w], lr=0.1).step()

    def right(self, mesh: cc.Mesh) -> Any:
        x, w = self.data(mesh)
        with ag.Tape() as tape:
            u = cc.all_gather(cc.cast(w, "tp", to=R), "dp")
            y = x * u
            loss = cc.all_reduce((y * y).sum(), ("dp", "tp"), to=I)
        tape.backward(loss)
        optim.SGD([w], lr=0.0).step()
        return {"w": (w.grad.numpy(), mine(mesh, "dp", 6))}

    def serial(self) -> Any:
        x = draw("x", 4, 6)
        (g,) = grads(lambda w: ((x * w) ** 2).sum(), draw("w", 6))
        return {"w": g}


@row
class Row08(Bug):
    """NeMo Automodel#1260. Tokens are gathered, each rank runs its own expert, and backward slices dX.

    It must reduce-scatter. Slicing is the adjoint of a gather to Invariant: one computation, repeated. The experts are
    not one computation.
    """

    axes = {"ep": 3}
    says = ["matmul(everything: f64[7,4] {ep: I}", "expert: f64[4,4] {ep: V}", "axis 'ep'",
            "Invariant (everything) does not mix with Varying (expert)",
            "fix: cast(everything, 'ep', to=R)"]  # fmt: skip

    def data(self, mesh: cc.Mesh) -> tuple[Any, Any]:
        rows = draw("x", 7, 4)[mine(mesh, "ep", 7)]
        tokens = ag.tensor(rows, {"ep": Shard(0)}, global_shape=(7, 4), requires_grad=True)
        expert = ag.Parameter(draw("expert", 3, 4, 4)[mesh.axis("ep").rank], {"ep": V}, name="expert")
        return tokens, expert

    def wrong(self, mesh: cc.Mesh) -> None:
        x, expert = self.data(mesh)
        with ag.Tape() as tape:
            everything = cc.all_gather(x, "ep", to=I)  # <- adjoint: this rank's own slice
            y = np.tanh(everything @ expert)
            loss = cc.all_reduce(y.sum(), "ep", to=I)
        tape.backward(loss)

    def right(self, mesh: cc.Mesh) -> Any:
        x, expert = self.data(mesh)
        with ag.Tape() as tape:
            everything = cc.all_gather(x, "ep", to=R)  # adjoint: reduce-scatter
            y = np.tanh(everything @ expert)
            loss = cc.all_reduce(y.sum(), "ep", to=I)
        tape.backward(loss)
        rank = int(mesh.axis("ep").rank)
        return {"x": (x.grad.numpy(), mine(mesh, "ep", 7)), "expert": (expert.grad.numpy(), rank)}

    def serial(self) -> Any:
        experts = len(draw("expert", 3, 4, 4)[: self.size])

        def loss(x: Any, w: Any) -> Any:
            return sum(np.tanh(x @ w[e]).sum() for e in range(experts))

        gx, gw = grads(loss, draw("x", 7, 4), draw("expert", 3, 4, 4))
        return {"x": gx, "expert": gw}

    size = 3


# -- a sum over the ranks that the tape does not know, or knows wrongly ----------------------------------------------


@row
class Row10(Bug):
    """ms-swift#9947. The rank that owns a label's column picks its logit, the others zero; a raw all-reduce sums them.

    The value is right. But what comes back is an array that nothing has recorded: plain arrays are Varying, so the
    objective that is made of it is no single number. (Declared Invariant by hand, it depends on no leaf: a TapeError.)
    """

    says = ["backward(loss: ", "{tp: V}", "axis 'tp'", "Varying", "Needed: Invariant, Partial or Rooted",
            "fix: all_reduce(loss, 'tp', to=I)"]  # fmt: skip
    label = 4

    def data(self, mesh: cc.Mesh) -> tuple[Any, Any, int]:
        columns = mine(mesh, "tp", 6)
        w = ag.Parameter(draw("W", 3, 6)[:, columns], {"tp": V}, name="w")
        local = self.label - columns.start if columns.start <= self.label < columns.stop else -1
        return ag.tensor(draw("x", 3), {"tp": R}), w, local

    def wrong(self, mesh: cc.Mesh) -> None:
        x, w, local = self.data(mesh)
        with ag.Tape() as tape:
            logit = x @ w
            mask = (numpy.arange(logit.size) == local).astype(float)
            lp = (logit * mask).sum()
            total = mesh.axis("tp").group.all_reduce(numpy.array([lp.item()]))  # <- the transport itself: off the tape
            loss = ag.tensor(total).sum() ** 2
        tape.backward(loss)

    def right(self, mesh: cc.Mesh) -> Any:
        x, w, local = self.data(mesh)
        with ag.Tape() as tape:
            logit = x @ w
            mask = (numpy.arange(logit.size) == local).astype(float)
            loss = cc.all_reduce((logit * mask).sum(), "tp", to=I) ** 2
        tape.backward(loss)
        return {"w": (w.grad.numpy(), (slice(None), mine(mesh, "tp", 6)))}

    def serial(self) -> Any:
        x = draw("x", 3)
        (g,) = grads(lambda w: (x @ w)[self.label] ** 2, draw("W", 3, 6))
        return {"w": g}


@row
class Row13(Bug):
    """jax#3970. L = all-reduce(...) is Replicated, and every rank seeds its own copy with 1: p times the gradient."""

    says = ["backward(loss: ", "{dp: R}", "axis 'dp'", "Replicated", "would seed its copy", "count",
            "fix: cast(loss, 'dp', to=I)"]  # fmt: skip
    axes = {"dp": 3}

    def loss(self, mesh: cc.Mesh, w: Any, to: Any) -> Any:
        d = ag.tensor(draw("d", 7)[mine(mesh, "dp", 7)])
        return cc.all_reduce((cc.cast(w, "dp", to=R) * d).sum(), "dp", to=to)

    def wrong(self, mesh: cc.Mesh) -> None:
        w = ag.Parameter(2.0, name="w")
        with ag.Tape() as tape:
            loss = self.loss(mesh, w, to=R)
        tape.backward(loss)

    def right(self, mesh: cc.Mesh) -> Any:
        found = {}
        for name, repair in (("w", lambda w: self.loss(mesh, w, to=I)),
                             ("w by a cast", lambda w: cc.cast(self.loss(mesh, w, to=R), "dp", to=I))):  # fmt: skip
            w = ag.Parameter(2.0, name="w")
            with ag.Tape() as tape:
                loss = repair(w)
            tape.backward(loss)
            found[name] = (w.grad.numpy(), ...)
        return found

    def serial(self) -> Any:
        (g,) = grads(lambda w: (w * draw("d", 7)).sum(), 2.0)
        return {"w": g, "w by a cast": g}


@row
class Row14(Bug):
    """flash-attention#1244. An all-reduce whose backward is the identity, right only if all ranks go on alike.

    z = y * v with v different on every rank: y's gradient differs too, and must be summed before it goes back.
    """

    says = ["multiply(y: f64[2,3] {tp: I}", "v: f64[2,3] {tp: V}", "axis 'tp'",
            "Invariant (y) does not mix with Varying (v)", "fix: cast(y, 'tp', to=R)"]  # fmt: skip

    def parts(self, mesh: cc.Mesh) -> tuple[Any, Any, Any]:
        k = mine(mesh, "tp", 6)
        x = ag.tensor(draw("x", 2, 6)[:, k], {"tp": Shard(1)})
        w = ag.Parameter(draw("W", 6, 3)[k], {"tp": Shard(0)}, name="w")
        return x, w, ag.tensor(draw("v", 3, 2, 3)[mesh.axis("tp").rank])

    def wrong(self, mesh: cc.Mesh) -> None:
        x, w, v = self.parts(mesh)
        with ag.Tape() as tape:
            y = cc.all_reduce(x @ w, "tp", to=I)  # identity in backward
            z = np.tanh(y * v)
            loss = cc.all_reduce(z.sum(), "tp", to=I)
        tape.backward(loss)

    def right(self, mesh: cc.Mesh) -> Any:
        x, w, v = self.parts(mesh)
        with ag.Tape() as tape:
            y = cc.all_reduce(x @ w, "tp", to=R)  # an all-reduce in backward
            z = np.tanh(y * v)
            loss = cc.all_reduce(z.sum(), "tp", to=I)
        tape.backward(loss)
        optim.SGD([w], lr=0.0).step()
        return {"w": (w.grad.numpy(), mine(mesh, "tp", 6))}

    def serial(self) -> Any:
        x, v = draw("x", 2, 6), draw("v", 3, 2, 3)[: self.size]
        (g,) = grads(lambda w: np.tanh((x @ w) * v).sum(), draw("W", 6, 3))
        return {"w": g}

    size = 3


@row
class Row15(Bug):
    """pytorch#163193. s is a sum over a sharded dimension, so Partial; r = s + 10 adds 10 once per rank."""

    says = ["add(s: f64[] {tp: P}, y: number", "{tp: C}", "axis 'tp'", "Partial (s) does not mix with Constant (y)",
            "added once per rank", "fix: all_reduce(s, 'tp', to=R)"]  # fmt: skip

    def data(self, mesh: cc.Mesh) -> Any:
        return ag.Parameter(draw("x", 7)[mine(mesh, "tp", 7)], {"tp": Shard(0)}, global_shape=(7,), name="x")

    def wrong(self, mesh: cc.Mesh) -> None:
        x = self.data(mesh)
        with ag.Tape() as tape:
            s = x.sum()
            r = s + 10.0
            loss = cc.all_reduce(r, "tp", to=I) ** 2
        tape.backward(loss)

    def right(self, mesh: cc.Mesh) -> Any:
        x = self.data(mesh)
        with ag.Tape() as tape:
            r = cc.all_reduce(x.sum(), "tp", to=I) + 10.0
            loss = r**2
        tape.backward(loss)
        return {"x": (x.grad.numpy(), mine(mesh, "tp", 7))}

    def serial(self) -> Any:
        (g,) = grads(lambda x: (x.sum() + 10.0) ** 2, draw("x", 7))
        return {"x": g}


@row
class Row17(Bug):
    """torchtitan#2106. A row-parallel linear layer: o = (x @ W, Partial) + b, the bias counted once per rank."""

    says = ["add(x @ w: f64[2,3] {tp: P}, y: f64[3] {tp: R})", "axis 'tp'",
            "Partial (x @ w) does not mix with Replicated (y)", "added once per rank", "fix: cast(y, 'tp', to=P)",
            "or:  all_reduce(x @ w, 'tp', to=R)"]  # fmt: skip

    def parts(self, mesh: cc.Mesh) -> tuple[Any, Any, Any]:
        k = mine(mesh, "tp", 7)
        x = ag.tensor(draw("x", 2, 7)[:, k], {"tp": Shard(1)}, global_shape=(2, 7))
        w = ag.Parameter(draw("W", 7, 3)[k], {"tp": Shard(0)}, global_shape=(7, 3), name="w")
        return x, w, ag.Parameter(draw("b", 3), name="b")

    def wrong(self, mesh: cc.Mesh) -> None:
        x, w, b = self.parts(mesh)
        with ag.Tape() as tape:
            o = x @ w + cc.cast(b, "tp", to=R)
            y = np.tanh(cc.all_reduce(o, "tp", to=I))
            loss = y.sum()
        tape.backward(loss)

    def right(self, mesh: cc.Mesh) -> Any:
        x, w, b = self.parts(mesh)
        with ag.Tape() as tape:
            y = np.tanh(cc.all_reduce(x @ w, "tp", to=I) + b)  # the bias after the sum
            loss = y.sum()
        tape.backward(loss)
        optim.SGD([w, b], lr=0.0).step()
        after = {"w": (w.grad.numpy(), mine(mesh, "tp", 7)), "b": (b.grad.numpy(), ...)}
        x, w, b = self.parts(mesh)
        with ag.Tape() as tape:
            y = np.tanh(cc.all_reduce(x @ w + cc.cast(b, "tp", to=P), "tp", to=I))  # or on one rank
            loss = y.sum()
        tape.backward(loss)
        optim.SGD([w, b], lr=0.0).step()
        return {**after, "b on one rank": (b.grad.numpy(), ...)}

    def serial(self) -> Any:
        x = draw("x", 2, 7)
        gw, gb = grads(lambda w, b: np.tanh(x @ w + b).sum(), draw("W", 7, 3), draw("b", 3))
        return {"w": gw, "b": gb, "b on one rank": gb}


@row
class Row19(Bug):
    """Megatron-LM#7452. The logits are gathered, and then given to a cross-entropy that expects this rank's classes.

    That loss sums its normaliser over the ranks: of gathered logits, it counts every class p times.
    """

    says = ["all_reduce(x: f64[2] {tp: R}, axis 'tp')", "axis 'tp'", "x is Replicated", "takes Partial or Varying",
            "the value times the number of ranks", "fix: "]  # fmt: skip
    targets = numpy.array([4, 1])

    def logits(self, mesh: cc.Mesh) -> tuple[Any, Any]:
        w = ag.Parameter(draw("W", 3, 6)[:, mine(mesh, "tp", 6)], {"tp": Shard(1)}, name="w")
        return ag.tensor(draw("x", 2, 3), {"tp": R}) @ w, w

    def vocab_parallel_cross_entropy(self, logits: Any, mine_: slice) -> Any:
        """Each rank holds some classes: the sum of exponentials and the target's logit are summed over the ranks."""
        total = cc.all_reduce(np.exp(logits).sum(axis=1), "tp", to=I)
        hot = ag.constant((numpy.arange(6)[None, :] == self.targets[:, None]).astype(float))
        if isinstance(logits.layout["tp"], Shard):
            hot = ag.tensor(hot.numpy()[:, mine_], {"tp": logits.layout["tp"]})
        picked = cc.all_reduce((logits * hot).sum(axis=1), "tp", to=I)
        return np.log(total) - picked

    def wrong(self, mesh: cc.Mesh) -> None:
        with ag.Tape() as tape:
            logits, w = self.logits(mesh)
            gathered = cc.all_gather(logits, "tp", dim=1)
            loss = self.vocab_parallel_cross_entropy(gathered, mine(mesh, "tp", 6)).sum()
        tape.backward(loss)

    def right(self, mesh: cc.Mesh) -> Any:
        columns = mine(mesh, "tp", 6)
        with ag.Tape() as tape:
            logits, w = self.logits(mesh)
            loss = self.vocab_parallel_cross_entropy(logits, columns).sum()
        tape.backward(loss)
        parallel = w.grad.numpy()
        with ag.Tape() as tape:
            logits, w = self.logits(mesh)
            gathered = cc.all_gather(logits, "tp", dim=1, to=I)
            loss = ops.cross_entropy(gathered, ag.constant(self.targets)).sum()  # the whole row: the plain loss
        tape.backward(loss)
        optim.SGD([w], lr=0.0).step()
        at = (slice(None), columns)
        return {"w": (parallel, at), "w by the plain loss": (w.grad.numpy(), at)}

    def serial(self) -> Any:
        x = draw("x", 2, 3)
        (g,) = grads(lambda w: ops.cross_entropy(x @ w, self.targets).sum(), draw("W", 3, 6))
        return {"w": g, "w by the plain loss": g}


@row
class Row24(Bug):
    """open_clip#616. Every rank gathers all features and computes the same contrastive loss, each with seed 1.

    The adjoint of the gather sums the ranks' cotangents, so that the gradient is p times too large.
    """

    axes = {"dp": 3}
    says = ["backward(loss: ", "{dp: R}", "axis 'dp'", "Replicated", "count", "fix: cast(loss, 'dp', to=I)"]

    def features(self, mesh: cc.Mesh) -> tuple[Any, Any]:
        rows = mine(mesh, "dp", 7)
        x = ag.tensor(draw("images", 7, 4)[rows], {"dp": Shard(0)}, global_shape=(7, 4))
        w = ag.Parameter(draw("W", 4, 3), name="w")
        return np.tanh(x @ cc.cast(w, "dp", to=R)), w

    def contrastive(self, features: Any) -> Any:
        return ops.cross_entropy(features @ features.T, ag.constant(numpy.arange(7))).sum()

    def wrong(self, mesh: cc.Mesh) -> None:
        with ag.Tape() as tape:
            features, w = self.features(mesh)
            loss = self.contrastive(cc.all_gather(features, "dp"))  # the same on every rank, and Replicated
        tape.backward(loss)
        optim.SGD([w], lr=0.1).step()

    def right(self, mesh: cc.Mesh) -> Any:
        found = {}
        for name, to in (("w", I), ("w by a cast", R)):
            with ag.Tape() as tape:
                features, w = self.features(mesh)
                loss = self.contrastive(cc.all_gather(features, "dp", to=to))  # to=I: the adjoint is the own slice
                loss = cc.cast(loss, "dp", to=I)
            tape.backward(loss)
            optim.SGD([w], lr=0.0).step()
            found[name] = (w.grad.numpy(), ...)
        return found

    def serial(self) -> Any:
        x = draw("images", 7, 4)
        (g,) = grads(lambda w: self.contrastive(np.tanh(x @ w)), draw("W", 4, 3))
        return {"w": g, "w by a cast": g}


# -- copies that are not ---------------------------------------------------------------------------------------------


@row
class Row31(Bug):
    """torchtitan#166. Each rank draws its weights from a seed of its own and declares them Invariant: p models.

    The loss still falls. Labels cannot see it; the digests that backward and the optimizer compare do.
    """

    axes = {"dp": 3}
    error = ReplicaMismatch
    says = ["the copies of ranks 1, 2 differ from those of rank 0", "equal along 'dp@0'", "w: f64[4] {dp: I}",
            "test_bugs.py:", "fix: ", "same seed", "broadcast it from one rank"]  # fmt: skip

    def train(self, mesh: cc.Mesh, w: Any) -> Any:
        x = ag.tensor(draw("x", 7, 4)[mine(mesh, "dp", 7)], {"dp": Shard(0)}, global_shape=(7, 4))
        with ag.Tape() as tape:
            y = np.tanh(x @ cc.cast(w, "dp", to=R))
            loss = cc.all_reduce(y.sum(), "dp", to=I)
        tape.backward(loss)
        optim.SGD([w], lr=0.1).step()
        return whole(w, names="w")

    def wrong(self, mesh: cc.Mesh) -> None:
        seed = mesh.axis("dp").rank
        self.train(mesh, ag.Parameter(numpy.random.default_rng(int(seed)).standard_normal(4), name="w"))

    def right(self, mesh: cc.Mesh) -> Any:
        drawn = numpy.random.default_rng(int(mesh.axis("dp").rank)).standard_normal(4)
        same = cc.broadcast(ag.tensor(drawn), "dp", root=0, to=I)  # or: the same seed on every rank
        return self.train(mesh, ag.Parameter(same.numpy(), name="w"))

    def serial(self) -> Any:
        x = draw("x", 7, 4)
        (g,) = grads(lambda w: np.tanh(x @ w).sum(), numpy.random.default_rng(0).standard_normal(4))
        return {"w": g}


# -- the same random numbers on values that differ --------------------------------------------------------------------


@row
class Row34(Bug):
    """transformers#31412. Every rank has the same seed, and so drops the same elements of its own part of the data."""

    axes = {"dp": 3}
    says = ["multiply(h: f64[", "{dp: V}", "keep: bool[", "{dp: D}", "axis 'dp'",
            "keep holds the same random numbers on every rank (Drawn), and h has different values on each rank",
            "fix: draw keep from key.along('dp')", "test_bugs.py:"]  # fmt: skip
    key = random.Key(3, "dropout")

    def wrong(self, mesh: cc.Mesh) -> None:
        x, w = ag.tensor(draw("x", 7, 4)[mine(mesh, "dp", 7)]), ag.Parameter(draw("w", 4, 5), name="w")
        with ag.Tape() as tape:
            h = np.tanh(x @ cc.cast(w, "dp", to=R))
            keep = random.bernoulli(self.key, h.shape, 0.5)  # <- one key: equal masks
            loss = cc.all_reduce(((h * keep * 2.0) ** 3).sum(), "dp", to=I)
        tape.backward(loss)
        optim.SGD([w], lr=0.1).step()

    def right(self, mesh: cc.Mesh) -> Any:
        rows = draw("x", 7, 4)[mine(mesh, "dp", 7)]
        x = ag.tensor(rows, {"dp": Shard(0)}, global_shape=(7, 4))  # parts of one value, which has one mask
        w = ag.Parameter(draw("w", 4, 5), name="w")
        with ag.Tape() as tape:
            h = nn.dropout(np.tanh(x @ cc.cast(w, "dp", to=R)), 0.5, key=self.key)
            loss = cc.all_reduce((h**3).sum(), "dp", to=I)
        tape.backward(loss)
        optim.SGD([w], lr=0.0).step()
        return whole(w, names="w")

    def serial(self) -> Any:
        x = draw("x", 7, 4)
        (g,) = grads(lambda w: (nn.dropout(np.tanh(x @ w), 0.5, key=self.key) ** 3).sum(), draw("w", 4, 5))
        return {"w": g}


# -- the tests -------------------------------------------------------------------------------------------------------

def test_all_rows_are_here() -> None:
    assert sorted(BUGS) == [f"row{n:02d}" for n in (1, 2, 4, 6, 8, 10, 13, 14, 15, 17, 19, 24, 31, 34)]
    assert all(type(bug).__doc__ and "#" in type(bug).__doc__ for bug in BUGS.values())


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_is_refused_on_every_rank(name: str) -> None:
    prove_refused(BUGS[name].case())


@pytest.mark.parametrize("name", [name for name, bug in BUGS.items() if bug.case().on_one_rank])
def test_the_bug_is_refused_on_one_process(name: str) -> None:
    case = BUGS[name].case()
    prove_refused(case, case.alone)


@pytest.mark.parametrize("name", BUGS)
def test_the_mended_program_has_the_serial_gradient(name: str) -> None:
    names = set(BUGS[name].serial())
    assert all(found == names for found in prove_exact(BUGS[name].case()))


@pytest.mark.parametrize("name", BUGS)
def test_the_mended_program_on_one_process(name: str) -> None:
    bug = BUGS[name]
    if hasattr(bug, "size"):  # as many experts as ranks: one
        bug = type(bug)()
        bug.size = 1
    case = bug.case()
    assert prove_exact(case, case.alone) == [set(bug.serial())]
