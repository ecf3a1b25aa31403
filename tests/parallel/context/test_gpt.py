"""A GPT whose sequences are divided, with dropout, against one process: every gradient in float64."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, random
from autograd.errors import ArgumentError, LayoutError
from autograd.whole import whole_of
from parallel import Column, DataParallel, Ring, Row, Sequence, Ulysses, Vocabulary, context, parallelize
from parallel.plan import Shards

from ...collectives.launch import launch_command
from ..models import gpt as example

CONFIG = example.Config(vocabulary=11, width=16, heads=4, layers=2, dropout=0.25)
ROWS, TOKENS = 4, 24
DATA = np.random.default_rng(0).integers(0, CONFIG.vocabulary, (2, ROWS, TOKENS))
STYLES: dict[str, Any] = {"zigzag": Ring("cp"), "contiguous": Ring("cp", zigzag=False), "ulysses": Ulysses("cp")}
MESHES = [{"dp": 1, "cp": 1}, {"dp": 1, "cp": 2}, {"dp": 1, "cp": 3}, {"dp": 2, "cp": 2}, {"cp": 2, "dp": 2}]


TENSOR = {
    "*.qkv": Column("tp", blocks=3), "*.proj": Row("tp"), "*.up": Column("tp"), "*.down": Row("tp"),
}  # fmt: skip
SEQUENCE = {
    "0.table": Vocabulary("tp", to=cc.Shard(1)), "*.norm*": Sequence("tp"), "*.out": Vocabulary("tp"),
    "*.qkv": Column("tp", blocks=3), "*.proj": Row("tp", to=cc.Shard(1)),
    "*.up": Column("tp"), "*.down": Row("tp", to=cc.Shard(1)),
}  # fmt: skip


class Model(nn.Module):
    """The GPT with its loss, so that a plan can divide both."""

    def __init__(self, plan: dict[str, Any], checkpointed: bool = False):
        self.layers = example.gpt(CONFIG, random.Key(0, "model"), float)
        self.loss = example.Loss()
        if plan:
            parallelize(self, {f"layers.{pattern}": style for pattern, style in plan.items()})
        if "0.table" in plan:
            parallelize(self, {"loss.rows": Vocabulary("tp")})
        if checkpointed:
            for n in range(1, 1 + CONFIG.layers):
                self.layers[n] = Checkpointed(self.layers[n])

    def forward(self, tokens: Any, targets: Any) -> Any:
        logits = self.layers(tokens)
        if isinstance(logits, ag.Tensor) and isinstance((logits.layout or {}).get("cp"), cc.Shard):
            logits, targets = (cc.cast(a, "cp", to=cc.V) for a in (logits, targets))  # the loss flattens the tokens
        return self.loss(logits, targets)


class Checkpointed(nn.Module):
    def __init__(self, block: nn.Module):
        self.block = block

    def forward(self, x: Any) -> Any:
        return ag.checkpoint(self.block)(x)


def gradients(model: Any, tokens: Any, targets: Any, is_divided: bool) -> dict[str, Any]:
    """Those of two microbatches of half the rows each."""
    random.seed(7)
    half = tokens.shape[0] // 2
    accumulating = model.accumulate() if isinstance(model, DataParallel) else nullcontext()
    total = 0.0
    with accumulating:
        for rows in (slice(0, int(half)), slice(int(half), None)):
            x, y = (cc.from_local(a.local[rows], a.layout) if is_divided else a[rows] for a in (tokens, targets))
            with ag.Tape() as tape:
                loss = model(x, y) / (ROWS * TOKENS)
                loss = cc.all_reduce(loss, ("dp", "cp"), to=cc.I) if is_divided else loss
            tape.backward(loss)
            total += loss.item()
    found = {"loss": np.array(total)}
    for name, p in model.named_parameters():
        g = p.grad.numpy() if p.grad.layout is None else whole_of(p.grad.array, p.grad.layout, "test", name)
        found[name.removeprefix("module.").replace("block.", "")] = g
    return found


@cache
def serial(dp: int) -> dict[str, Any]:
    """The rows of the microbatches are those of `dp` ranks."""
    rows = np.concatenate([np.arange(ROWS).reshape(dp, 2, -1)[:, n].ravel() for n in range(2)])
    return gradients(Model({}), DATA[0][rows], DATA[1][rows], False)


def divided(
    name: str, sizes: dict[str, int], checkpointed: bool = False, draws: bool = True, plan: Any = None
) -> dict[str, Any]:
    with cc.Mesh(**sizes) as mesh:
        dp, cp = mesh.axis("dp"), mesh.axis("cp")
        model = DataParallel(Model({"*.attend": STYLES[name], **(plan or {})}, checkpointed), ("dp", "cp"))

        def part(a: Any) -> Any:
            a = np.array_split(a, dp.size)[dp.group.index]
            labels = {"dp": cc.Shard(0), **({"tp": cc.I} if "tp" in sizes else {})}
            if name == "zigzag":
                return cc.from_local(context.zigzag(a, "cp"), {**labels, "cp": cc.V})
            return cc.from_local(np.array_split(a, cp.size, 1)[cp.group.index], {**labels, "cp": cc.Shard(1)})

        with context.zigzag_draws("cp", TOKENS) if name == "zigzag" and draws else nullcontext():
            return gradients(model, part(DATA[0]), part(DATA[1]), True)


def error_of(found: dict[str, Any], expected: dict[str, Any]) -> float:
    assert list(found) == list(expected)
    floor = 1e-6 * max(float(np.linalg.norm(g)) for g in expected.values())
    return max(
        float(np.linalg.norm(found[k].reshape(g.shape) - g) / max(np.linalg.norm(g), floor))
        for k, g in expected.items()
    )


@pytest.mark.parametrize("sizes", MESHES, ids=lambda sizes: "-".join(f"{k}{n}" for k, n in sizes.items()))
@pytest.mark.parametrize("name", STYLES)
def test_every_gradient_equals_one_process(name: str, sizes: dict[str, int]) -> None:
    """Row 20 (Megatron-LM#906): the loss is divided once, by the global number of tokens, and nothing else is."""
    ranks = sizes["dp"] * sizes["cp"]
    for found in cc.run(lambda: divided(name, sizes), ranks):
        assert error_of(found, serial(sizes["dp"])) <= 1e-10


@pytest.mark.parametrize("sizes", [
    {"dp": 1, "cp": 2, "tp": 2}, {"tp": 2, "dp": 1, "cp": 2},
    pytest.param({"dp": 2, "cp": 2, "tp": 2}, marks=pytest.mark.slow),
    pytest.param({"dp": 1, "cp": 3, "tp": 2}, marks=pytest.mark.slow),
], ids=lambda sizes: "-".join(f"{k}{n}" for k, n in sizes.items()))  # fmt: skip
@pytest.mark.parametrize("name", STYLES)
def test_heads_are_divided_too(name: str, sizes: dict[str, int]) -> None:
    if name == "ulysses" and sizes["cp"] == 3:
        pytest.skip("each rank has 2 heads")
    ranks = int(np.prod(list(sizes.values())))
    for found in cc.run(lambda: divided(name, sizes, plan=TENSOR), ranks):
        assert error_of(found, serial(sizes["dp"])) <= 1e-10


@pytest.mark.parametrize("sizes", [{"dp": 1, "cp": 2, "tp": 2}, {"tp": 2, "dp": 1, "cp": 2}])
@pytest.mark.parametrize("name", ["zigzag", "contiguous"])
def test_sequence_parallel_inside_of_the_parts(name: str, sizes: dict[str, int]) -> None:
    """The tokens of a rank are divided over "tp" between the attentions, and so are the places of dropout."""
    if name == "contiguous" and next(iter(sizes)) == "tp":  # as the outer axis it has the outer parts of the sequence
        with pytest.raises(LayoutError, match="inner axis has cut"):
            cc.run(lambda: divided(name, sizes, plan=SEQUENCE), 4)
        return
    for found in cc.run(lambda: divided(name, sizes, plan=SEQUENCE), 4):
        assert error_of(found, serial(1)) <= 1e-10


@pytest.mark.parametrize("name", STYLES)
def test_checkpoints_replay_masks_and_rings(name: str) -> None:
    for found in cc.run(lambda: divided(name, {"dp": 1, "cp": 3}, checkpointed=True), 3):
        assert error_of(found, serial(1)) <= 1e-10


def test_positions_of_contiguous_order_are_found_out(monkeypatch: Any) -> None:
    """Rotary angles that count each rank's tokens from its first one."""
    positions = context.RingAttention._positions

    def wrong(self: Any, x: Any) -> Any:
        right = positions(self, x)
        return ag.Tensor(right.array[0] + np.arange(right.array.size), right.layout)

    monkeypatch.setattr(context.RingAttention, "_positions", wrong)
    found = cc.run(lambda: divided("zigzag", {"dp": 1, "cp": 2}), 2)[0]
    assert error_of(found, serial(1)) > 1e-6


def test_row_34_dropout_without_places_is_refused() -> None:
    """transformers#31412: the same mask on ranks whose tokens differ."""
    with pytest.raises(LayoutError, match="Varying.*one key"):
        cc.run(lambda: divided("zigzag", {"dp": 1, "cp": 2}, draws=False), 2)


@pytest.mark.slow  # the trainer's test over MPI has rings by default
@pytest.mark.parametrize("ranks", [2, 3])
def test_over_mpi(ranks: int) -> None:
    found = launch_command(["-m", __name__], ranks, limit_s=100)
    assert found.code == 0, found.out + found.err
    assert found.out.count("equal") == ranks


def main() -> None:
    for name in STYLES:
        found = divided(name, {"dp": 1, "cp": cc.world().size}, checkpointed=name == "zigzag")
        assert error_of(found, serial(1)) <= 1e-10, name
    print("equal")


# -- the modules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STYLES)
@pytest.mark.parametrize("causal", [True, False])
def test_heads_on_tensor_parallel_ranks(name: str, causal: bool) -> None:
    """The input is divided by heads on "tp" and by tokens on "cp"; rotary positions are those of the whole."""
    attend = nn.SelfAttention(4, causal=causal, rotary=True)
    x, ct = (np.random.default_rng(s).normal(size=(2, 8, *shape)) for s, shape in enumerate([(3, 16), (16,)]))
    y, pull = ag.vjp(attend, x)
    expected = y, pull(ct)

    def program() -> None:
        with cc.Mesh(tp=2, cp=2) as mesh:
            tp, cp = mesh.axis("tp").group.index, mesh.axis("cp").group.index
            at = context.zigzag_positions(8, cp, 2) if name == "zigzag" else np.arange(8).reshape(2, 4)[cp]

            def part(a: Any) -> Any:
                a = np.array_split(a[:, at], 2, a.ndim - 1)[tp]
                label = cc.V if name == "zigzag" else cc.Shard(1)
                return cc.from_local(a, {"tp": cc.Shard(a.ndim - 1), "cp": label})

            y, pull = ag.vjp(STYLES[name].apply(attend, "attend", Shards(mesh)), part(x))
            assert y.layout["tp"] == cc.Shard(2)
            for found, whole in zip((y, pull(part(ct))), expected, strict=True):
                np.testing.assert_allclose(found.local, part(np.asarray(whole)).local, rtol=0, atol=1e-13)

    cc.run(program, 4)


def test_styles_without_a_mesh_and_on_other_modules() -> None:
    attend = nn.SelfAttention(4, rotary=True)
    x = np.random.default_rng(0).normal(size=(2, 5, 3, 8))
    for style in STYLES.values():
        with cc.Mesh(cp=1) as mesh:
            made = style.apply(attend, "attend", Shards(mesh))
            with pytest.raises(ArgumentError, match="'0' is a Linear"):
                parallelize(nn.Sequential(nn.Linear(2, 2)), {"0": style})
            with pytest.raises(ArgumentError, match="has made"):
                style.apply(made, "a", Shards(mesh))
        with cc.Mesh(sp=1), pytest.raises(cc.MeshError, match="cp"):
            parallelize(nn.Sequential(attend), {"0": style})
        np.testing.assert_array_equal(made(x), attend(x))
    assert repr(STYLES["contiguous"]) == "Ring('cp', zigzag=False)"


def test_a_model_with_tokens_in_contiguous_order_is_refused_by_the_zigzag_style() -> None:
    """And the other way round; both without communication, on one rank."""
    cases = [
        ("zigzag", cc.Shard(1), "zigzag=False"), ("contiguous", cc.V, "zigzag=True"),
        ("ulysses", cc.V, "Shard of the tokens"), ("zigzag", cc.I, "context.zigzag"),
    ]  # fmt: skip
    with cc.Mesh(dp=1, cp=1):
        for name, label, fix in cases:
            with pytest.raises(LayoutError, match=fix):
                tokens = cc.from_local(DATA[0], {"dp": cc.Shard(0), "cp": label})
                DataParallel(Model({"*.attend": STYLES[name]}).eval(), ("dp", "cp"))(tokens, tokens)


if __name__ == "__main__":
    main()
