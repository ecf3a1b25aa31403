"""Natural mistakes in the programs of docs/recipes.md: each is refused or exact, and the fix that is offered is exact.

A mistake replaces one expression of a recipe by another. The text of its error contains the words given. With the fix,
taken from the text literally, the program has the gradient of one process.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import pytest

from autograd.errors import ReplicaWarning, RingtapeError

from . import test_recipes
from .test_recipes import RECIPES

HAND, READ, MASKED, MODULE, TENSOR, STAGES, MODULES, TIED, NORMS, HEAT, RING, TRANSFORMS, CHECK, OWN = RECIPES
UPDATE = "w.data = w.numpy() - 0.1 * w.grad.numpy()"
OBJECTIVE = 'cc.all_reduce(((y - t) ** 2).sum(), "dp", to=I) / x.global_shape[0]'
COUNT = 'cc.all_reduce(mask.sum(), "dp", to=I)'
STENCIL = "u + 0.2 * (wide[:-2] - 2 * u + wide[2:])"


class Mistake(NamedTuple):
    """A mistake, words of the error (none: the program is exact), and the expression with the fix put in."""

    title: str
    right: str
    wrong: str
    says: str = ""
    fixed: str = ""


MISTAKES = [
    Mistake(HAND, UPDATE, "w.data = w - 0.1 * w.grad"),
    Mistake(HAND, UPDATE, "w.data = w.data - 0.1 * w.grad", "w.data = w.numpy() - lr * w.grad.numpy()", UPDATE),
    Mistake(HAND, UPDATE, "w -= 0.1 * w.grad", "w.data = w.numpy() - lr * w.grad.numpy()", UPDATE),
    Mistake(HAND, UPDATE, "w[...] = w - 0.1 * w.grad", "w.data = w.numpy() - lr * w.grad.numpy()", UPDATE),
    Mistake(HAND, UPDATE, "w.data -= 0.1 * w.grad"),
    Mistake(HAND, UPDATE, "w = w - 0.1 * w.grad", "w.data = w.numpy() - lr * w.grad.numpy()", UPDATE),
    Mistake(HAND, UPDATE, "w.data -= 0.1 * w.grad.local"),
    Mistake(HAND, "w.zero_grad()", "w.grad = 0", "fix: zero_grad()", "w.zero_grad()"),
    Mistake(HAND, OBJECTIVE, "((y - t) ** 2).mean() * y.shape[1]"),
    Mistake(HAND, OBJECTIVE, 'cc.mean(((y - t) ** 2).mean() * y.shape[1], "dp")', "all_reduce(",
            'cc.all_reduce(((y - t) ** 2).mean() * y.shape[1], "dp", to=I)'),
    Mistake(HAND, OBJECTIVE, 'cc.all_reduce(((y - t) ** 2).sum(), "dp") / x.global_shape[0]', "cast(loss, 'dp', to=I)",
            'cc.cast(cc.all_reduce(((y - t) ** 2).sum(), "dp") / x.global_shape[0], "dp", to=I)'),
    Mistake(HAND, UPDATE, "w.data = w.numpy() - 0.1 * cc.all_reduce(w.grad, 'dp', to=I).numpy()",
            "fix: leave all_reduce out: w.grad is the sum over the ranks", UPDATE),
    Mistake(HAND, UPDATE, "w.data = w.numpy() - 0.1 * cc.mean(w.grad, 'dp').numpy()",
            "mean(w.grad: f64[3,5] {dp: I}, axis 'dp')", UPDATE),
    Mistake(HAND, 'cc.shard(ag.tensor(a, {"dp": R}), "dp")', 'ag.tensor(a, {"dp": cc.Shard(0)})',
            "fix: cc.shard(ag.tensor(X, layout={'dp': R}), 'dp')", "cc.shard(ag.tensor(a, layout={'dp': R}), 'dp')"),
    Mistake(READ, 'cc.from_local(rows, {"dp": Shard(0)})', 'cc.from_local(rows, "dp")',
            "cc.from_local(x, {'dp': Shard(0)})", "cc.from_local(rows, {'dp': Shard(0)})"),
    Mistake(READ, 'cc.from_local(rows, {"dp": Shard(0)})', 'ag.tensor(rows, {"dp": Shard(0)})',
            "cc.from_local(x, {'dp': Shard(0)})", "cc.from_local(rows, {'dp': Shard(0)})"),
    Mistake(READ, "/ x.global_shape[0]", "/ len(x)", "x.global_shape[0]", "/ x.global_shape[0]"),
    Mistake(READ, "/ x.global_shape[0]", '/ cc.all_reduce(len(rows), "dp", to=I)'),
    Mistake(READ, "/ x.global_shape[0]", "/ max(len(rows), 1)", "cc.all_reduce(n, 'dp', to=I).item()",
            "/ cc.all_reduce(len(rows), 'dp', to=I).item()"),
    Mistake(MASKED, f"/ {COUNT}", "/ mask.sum()", "all_reduce(y, 'dp', to=I)",
            "/ cc.all_reduce(mask.sum(), 'dp', to=I)"),
    Mistake(MASKED, f"/ {COUNT}", "/ M.sum()"),
    Mistake(MASKED, "losses.sum()", "losses.sum() / mask.sum()", "all_reduce(y, 'dp', to=R)",
            "losses.sum() / cc.all_reduce(mask.sum(), 'dp', to=R) * cc.all_reduce(mask.sum(), 'dp', to=R)"),
    Mistake(MASKED, " * mask.reshape(-1)", "[mask.reshape(-1)]", "(operand 0 * mask).sum()", " * mask.reshape(-1)"),
    Mistake(MASKED, "nn.cross_entropy(logits.reshape(-1, 7), target.reshape(-1), reduction='none') * mask.reshape(-1)",
            "nn.cross_entropy(logits, target, reduction='none') * mask", "logits.reshape(-1, 7) and labels.reshape(-1)",
            "nn.cross_entropy(logits.reshape(-1, 7), target.reshape(-1), reduction='none') * mask.reshape(-1)"),
    Mistake(MASKED, "nn.cross_entropy(logits.reshape(-1, 7), target.reshape(-1), reduction='none') * mask",
            "-(q := nn.log_softmax(logits.reshape(-1, 7)))[numpy.arange(q.shape[0]), target.reshape(-1)] * mask",
            "numpy.take_along_axis(q, columns.reshape(-1, 1), 1)",
            "-numpy.take_along_axis(nn.log_softmax(logits.reshape(-1, 7)), target.reshape(-1, 1), 1).reshape(-1) "
            "* mask"),
    Mistake(MODULE, "model(x) ** 2", "net(x) ** 2", "call the model through DataParallel(model, 'dp')",
            "model(x) ** 2"),
    Mistake(TENSOR, 'cc.shard(b, "tp", dim=0)', 'cc.shard(b, "tp", dim=1)', "fix: shard b along dimension 0",
            'cc.shard(b, "tp", dim=0)'),
    Mistake(TENSOR, "to=I) + bias", "to=R) + bias", "cast(bias, 'tp', to=R)",
            "to=R) + cc.cast(bias, 'tp', to=R)\n        y = cc.cast(y, 'tp', to=I)"),
    Mistake(TENSOR, "to=I) + bias", "to=R) + bias", "to=I where operand 0 is made by all_reduce", "to=I) + bias"),
    Mistake(TENSOR, "(h @ b, \"tp\", to=I) + bias", "(h @ b + bias, \"tp\", to=I)", "cast(bias, 'tp', to=P)",
            "(h @ b + cc.cast(bias, 'tp', to=cc.P), \"tp\", to=I)"),
    Mistake(TENSOR, 'cc.all_reduce(h @ b, "tp", to=I)', 'cc.all_gather(h, "tp", dim=1) @ b',
            "shard(operand 0, 'tp', dim=1)",
            "cc.all_reduce(cc.shard(cc.all_gather(h, 'tp', dim=1), 'tp', dim=1) @ b, 'tp', to=I)"),
    Mistake(TENSOR, "((y - t) ** 2).sum() /", 'cc.all_reduce(((y - t) ** 2).sum(), "tp", to=I) /',
            "cast(operand 0, 'tp', to=P)", "cc.all_reduce(cc.cast(((y - t) ** 2).sum(), 'tp', to=cc.P), 'tp', to=I) /"),
    Mistake(STAGES, 'loss = cc.broadcast(mine, "pp", last, to=I)', "loss = mine or 0.0",
            "cc.broadcast(loss, axis, root, to=I)", 'loss = cc.broadcast(mine, "pp", last, to=I)'),
    Mistake(STAGES, 'cc.broadcast(mine, "pp", last, to=I)', 'cc.broadcast(mine, "pp", last)', "cast(loss, 'pp', to=I)",
            'cc.cast(cc.broadcast(mine, "pp", last), "pp", to=I)'),
    Mistake(STAGES, "cc.send(h,", "cc.send(h.numpy(),", "cc.send(h, ...)", "cc.send(h,"),
    Mistake(MODULES, 'ag.Parameter(a, {"pp": V}) for', "ag.Parameter(a) for",
            "net.weight = ag.Parameter(net.weight.numpy(), {'pp': V})", 'ag.Parameter(a, {"pp": V}) for'),
    Mistake(STAGES, "else None", "else 0.0"),
    Mistake(TIED, 'copy = cc.cast(table, "pp", to=R)', 'copy = table = ag.Parameter(E, {"pp": V})',
            "cast(w, 'pp', to=R) where it is used; in a pipeline on all stages at the start of the tape's block",
            'copy = cc.cast(table, "pp", to=R)'),
    Mistake(TIED, "nn.embedding(tokens, copy) if", 'nn.embedding(tokens, cc.cast(table, "pp", to=R)) if',
            "cast at the start of the tape's block, before send and recv, on all ranks",
            "nn.embedding(tokens, copy) if"),
    Mistake(TIED, "h @ copy.T", "h @ table.T", "cast(table.T, 'pp', to=R)", "h @ copy.T"),
    Mistake(NORMS, 'x.sum(1, keepdims=True), "tp"', 'x.sum(1), "tp"', "keepdims=True where y is reduced",
            'x.sum(1, keepdims=True), "tp"'),
    Mistake(NORMS, 'cc.all_reduce(x.sum(1, keepdims=True), "tp", to=R) / n', "x.mean(1, keepdims=True)",
            "all_reduce(", 'cc.all_reduce(x.mean(1, keepdims=True), "tp", to=R)'),
    Mistake(NORMS, 'cc.all_max(cc.cast(normal, "tp", to=V).max(1, keepdims=True), "tp")',
            "normal.max(1, keepdims=True)",
            "all_gather(normal, 'tp', dim=1)", 'cc.all_gather(normal, "tp", dim=1).max(1, keepdims=True)'),
    Mistake(HEAT, STENCIL, "u + 0.2 * (np.roll(u, 1) - 2 * u + np.roll(u, -1))", "halo_exchange(x, 'x', 1", STENCIL),
    Mistake(HEAT, 'cc.halo_exchange(u, "x", 1)', "np.pad(u, 1)", "halo_exchange(u, 'x', 1)",
            "cc.halo_exchange(u, 'x', 1)"),
    Mistake(HEAT, "(u - goal)", "(u - target)", "shard(ag.tensor(target, layout={'x': R}), 'x', dim=0)",
            "(u - cc.shard(ag.tensor(target, layout={'x': R}), 'x', dim=0))"),
    Mistake(RING, "ring = [(r, (r + 1) % n) for r in range(n)]", "ring = 1", "[(r, (r + 1) % n) for r in range(n)]",
            "ring = [(r, (r + 1) % n) for r in range(n)]"),
    Mistake(RING, 'loss = (cc.broadcast(total, "dp", 0, to=I) ** 2).sum()', "loss = (total**2).sum()",
            "broadcast(loss, 'dp', 0, to=I)   (if the loss is the same on all ranks)",
            'loss = cc.broadcast((total**2).sum(), "dp", 0, to=I)'),
    Mistake(CHECK, "check_grads(loss, ag.Parameter([0.5, -1.0, 2.0]))",
            "check_grads(lambda v: cc.all_reduce((v**3).sum(), 'dp', to=I), "
            "ag.Parameter(numpy.ones(4) + cc.world().rank, {'dp': cc.V}))"),
    Mistake(CHECK, "check_grads(loss, ag.Parameter([0.5, -1.0, 2.0]))", "check_grads(loss, [0.5, -1.0, 2.0])",
            "check_grads(f, ag.Parameter(w), ...)", "check_grads(loss, ag.Parameter([0.5, -1.0, 2.0]))"),
    Mistake(TRANSFORMS, "w = ag.Parameter([0.5, -1.0, 2.0])", "w = numpy.array([0.5, -1.0, 2.0])",
            "ag.tensor(argument, layout={'dp': I})", "w = ag.tensor(numpy.array([0.5, -1.0, 2.0]), layout={'dp': I})"),
    Mistake(TRANSFORMS, "ag.jvp(loss, (w,), (ag.constant(v),))", "ag.jvp(loss, (w,), (v,))",
            "ag.tensor(tangent, layout={'dp': I})", "ag.jvp(loss, (w,), (ag.tensor(v, layout={'dp': I}),))"),
    Mistake(TRANSFORMS, "ag.jvp(loss, (w,), (ag.constant(v),))", "ag.jvp(loss, w, ag.constant(v))",
            "jvp(f, (x,), (dx,))", "ag.jvp(loss, (w,), (ag.constant(v),))"),
    Mistake(OWN, "total.adjoint(lambda ct, call: total(ct, call))", "pass", "@total.adjoint",
            "total.adjoint(lambda ct, call: total(ct, call))"),
    Mistake(OWN, 'cc.apply(total, cc.cast(x, "dp", to=P), "dp")', 'total(cc.cast(x, "dp", to=P), "dp")',
            "cc.apply(total, x, 'dp')", 'cc.apply(total, cc.cast(x, "dp", to=P), "dp")'),
    Mistake(OWN, 'cc.apply(total, cc.cast(x, "dp", to=P), "dp")', 'cc.apply(total, x, "dp")',
            "declare_partial(x, 'dp')",
            'cc.apply(total, cc.declare_partial(x, "dp"), "dp")'),
]  # fmt: skip


def gradient_of(mistake: Mistake, now: str, patch: pytest.MonkeyPatch) -> None:
    """Compare the program with another expression in place of the right one."""
    line, text = RECIPES[mistake.title]
    assert mistake.right in text
    changed = text.replace(mistake.right, now)
    changed = changed.replace("import numpy\n", "import numpy; import autograd.numpy as np\n", 1)
    with patch.context() as here, warnings.catch_warnings():
        warnings.simplefilter("error", ReplicaWarning)
        here.setitem(RECIPES, mistake.title, (line, changed))
        test_recipes.test_a_recipe_has_the_serial_gradient(mistake.title, 3)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.wrong[:40])
def test_a_mistake_is_refused_or_exact_and_its_fix_is_exact(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    if not mistake.says:
        gradient_of(mistake, mistake.wrong, monkeypatch)
        return
    with pytest.raises(RingtapeError) as caught:
        gradient_of(mistake, mistake.wrong, monkeypatch)
    assert mistake.says in str(caught.value), str(caught.value)
    gradient_of(mistake, mistake.fixed, monkeypatch)
