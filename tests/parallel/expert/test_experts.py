"""Experts divided over ranks, against one process: outputs, every gradient, side losses, dropped tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, random
from autograd.errors import LayoutError, ReplicaMismatch, ShapeError
from autograd.ops import stop_gradient
from collectives import I, R, Shard, V
from collectives.inspect.observing import observing
from parallel import DataParallel, Experts, MixtureOfExperts, Shards, parallelize, side_losses, verify
from parallel.expert import dispatch as plans
from parallel.expert import mixture as module

from ...collectives.launch import launch_command
from .cases import HIDDEN, TOKENS, WIDTH, assert_equal, case, check, divided, mine, on_mesh, serial

slow = pytest.mark.slow
CASES = {
    "dropless": case(5, balance=0.3),
    "capacity": case(4, capacity=0.7, balance=0.3, z=0.1),
    "top 1, capacity": case(6, top_k=1, capacity=0.8, balance=0.3),
    "top 1, few tokens": case(5, {0: -90.0, 3: -90.0}, top_k=1, balance=0.3),
    "all tokens to one expert": case(4, {3: 90.0}, top_k=1, balance=0.3),
    "all tokens to one expert, capacity": case(4, {0: 90.0}, top_k=1, capacity=2.5, balance=0.3),
    "fewer experts than ranks": case(2, top_k=2, balance=0.3),
}
MESHES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "ep=1": ({"ep": 1}, {}),
    "ep=2": ({"ep": 2}, {}),
    "ep=3": ({"ep": 3}, {}),
    "ep=4": ({"ep": 4}, {}),
    "dp=2 ep=2": ({"dp": 2, "ep": 2}, {}),
    "ep=2 dp=2": ({"ep": 2, "dp": 2}, {}),
    "dp=3": ({"dp": 3}, {}),
    "cp=2 ep=2": ({"cp": 2, "ep": 2}, {}),
    "ep=2 cp=2": ({"ep": 2, "cp": 2}, {}),
    "cp=3": ({"cp": 3}, {}),
    "ep=2 tp=2": ({"ep": 2, "tp": 2}, {}),
    "ep=2 tp=2, sequence": ({"ep": 2, "tp": 2}, {"tp": Shard(1)}),
    "tp=3, sequence": ({"tp": 3}, {"tp": Shard(1)}),
    "ep along the sequence": ({"dp": 2, "ep": 2}, {"ep": Shard(1)}),
    "sizes 1": ({"dp": 1, "cp": 1, "ep": 1, "tp": 1}, {"tp": Shard(1)}),
    "dp=2 cp=2 ep=2": ({"dp": 2, "cp": 2, "ep": 2}, {}),
    "cp=2 ep=2 tp=2, sequence": ({"cp": 2, "ep": 2, "tp": 2}, {"tp": Shard(1)}),
}
QUICK = {
    ("dropless", "ep=3"), ("dropless", "dp=2 ep=2"), ("dropless", "ep=2 tp=2, sequence"), ("capacity", "ep=2"),
    ("capacity", "ep=3"), ("capacity", "cp=2 ep=2"), ("capacity", "ep=2 cp=2"), ("capacity", "ep=2 dp=2"),
    ("capacity", "ep=2 tp=2, sequence"), ("capacity", "ep=2 tp=2"), ("top 1, capacity", "ep=4"),
    ("top 1, capacity", "cp=3"), ("top 1, few tokens", "ep=4"), ("all tokens to one expert", "ep=3"),
    ("all tokens to one expert, capacity", "dp=2 ep=2"), ("fewer experts than ranks", "ep=3"), ("capacity", "sizes 1"),
    ("capacity", "dp=3"), ("capacity", "ep along the sequence"),
}  # fmt: skip


PAIRS = [pytest.param(n, m, marks=() if (n, m) in QUICK else slow) for n in CASES for m in MESHES]


@pytest.mark.parametrize("name, mesh", PAIRS)
def test_equals_one_process(name: str, mesh: str) -> None:
    check(CASES[name], *MESHES[mesh])


def test_parts_of_the_sequence_in_another_order() -> None:
    """Varying along "cp", as with zigzag: without a capacity the order of the tokens does not matter."""
    check(CASES["dropless"], {"cp": 2, "ep": 2}, {"cp": V})
    with pytest.raises(LayoutError, match=r"axis 'cp': they are Varying(.|\n)*fix: .*capacity=None"):
        check(CASES["capacity"], {"cp": 2, "ep": 2}, {"cp": V})


def test_checkpoints_on_a_mesh() -> None:
    check(CASES["capacity"], {"dp": 2, "ep": 2}, wrap=ag.checkpoint)


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_over_mpi(ranks: int) -> None:
    found = launch_command(["-m", __name__], ranks, limit_s=100)
    assert found.code == 0, found.out + found.err
    assert found.out.count("equal") == ranks


def main() -> None:
    ranks = cc.world().size
    for sizes in ({"ep": ranks}, {"dp": ranks, "ep": 1}, {"ep": 1, "cp": ranks}):
        for c in CASES.values():
            serial(c)
            ours = on_mesh(c, sizes)
            with cc.Mesh(**sizes) as mesh:
                assert_equal(ours, c, lambda whole, mesh=mesh, ours=ours: mine(whole, mesh, ours.labels))
    print("equal")


# -- several calls -----------------------------------------------------------------------------------------------------
def on(sizes: dict[str, int], body: Callable[[cc.Mesh], Any]) -> list[Any]:
    def program() -> Any:
        with cc.Mesh(**sizes) as mesh:
            return body(mesh)

    return cc.run(program, int(np.prod(list(sizes.values()))))


def tokens_of(mesh: cc.Mesh, n: int = 6) -> Any:
    rows = np.array_split(TOKENS[:n], mesh.ranks.size)[mesh.ranks.index]
    return cc.from_local(rows, dict.fromkeys(mesh.names, Shard(0)), requires_grad=True)


def test_calls_without_a_tape_and_with_other_numbers_of_tokens() -> None:
    """Also with ranks that have no tokens at all."""
    c = case(4, capacity=0.6)
    whole = c.make()
    serially = {n: whole(TOKENS[:n]).numpy() for n in (6, 1, 2, 0)}

    def body(mesh: cc.Mesh) -> None:
        model = DataParallel(divided(c.make(), mesh), mesh.names)
        for n in (6, 1, 2, 0, 6):
            y = model(tokens_of(mesh, n))
            with ag.no_grad():
                again = model(tokens_of(mesh, n))
            np.testing.assert_array_equal(y.numpy(), again.numpy())
            expected = np.array_split(serially[n], 3)[mesh.ranks.index]
            np.testing.assert_allclose(y.numpy(), expected, rtol=0, atol=1e-12)

    on({"ep": 3}, body)


def test_a_layer_that_two_places_share() -> None:
    c = case(4, balance=0.5)

    def both(model: Any, x: Any) -> Any:
        return model(x) + model(x * 0.5)

    layer, x = c.make(), ag.tensor(TOKENS, requires_grad=True)
    with ag.Tape() as tape, side_losses() as side:
        loss = (both(layer, x) ** 2).sum() + sum(side)
    tape.backward(loss)

    def body(mesh: cc.Mesh) -> None:
        parts = divided(c.make(), mesh)
        model, mine = DataParallel(parts, mesh.names), tokens_of(mesh)
        with ag.Tape() as tape, side_losses() as side:
            total = cc.all_reduce((both(model, mine) ** 2).sum() + sum(side), mesh.names, to=I)
        tape.backward(total)
        assert abs(total.item() - loss.item()) < 1e-10
        np.testing.assert_allclose(parts.router.weight.grad.numpy(), layer.router.weight.grad.numpy(), atol=1e-10)
        np.testing.assert_allclose(
            parts.up.grad.numpy(), np.array_split(layer.up.grad.numpy(), 2)[int(mesh.axis("ep").rank)], atol=1e-10)

    on({"dp": 2, "ep": 2}, body)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_with_zero(zero: int) -> None:
    """The router is divided over all axes, the experts are not divided further."""
    c = CASES["capacity"]

    def body(mesh: cc.Mesh) -> None:
        parts = divided(c.make(), mesh)
        model = DataParallel(parts, mesh.names, zero=zero)
        with ag.Tape() as tape, side_losses() as side:
            loss = cc.all_reduce((model(tokens_of(mesh)) ** 2).sum() + sum(side), mesh.names, to=I)
        tape.backward(loss)
        assert parts.router.weight.layout == {"dp": Shard(0), "ep": Shard(0)}
        assert parts.up.layout == {"dp": I, "ep": Shard(0)}
        whole = cc.all_gather(parts.router.weight.grad, mesh.names)
        np.testing.assert_allclose(whole.numpy(), layer.router.weight.grad.numpy(), atol=1e-10)
        mine = np.array_split(layer.up.grad.numpy(), 2)[int(mesh.axis("ep").rank)]
        np.testing.assert_allclose(parts.up.grad.numpy(), mine, atol=1e-10)

    layer = c.make()
    with ag.Tape() as tape, side_losses() as side:
        loss = (layer(TOKENS) ** 2).sum() + sum(side)
    tape.backward(loss)
    on({"dp": 2, "ep": 2}, body)


def test_an_axis_whose_ranks_have_other_layers_divides_no_tokens() -> None:
    """The stages of a pipeline: each has a layer of its own, whose parameters are Varying along "pp"."""
    found = []
    for stage in range(2):
        layer = case(4, {stage: 1.0}, capacity=0.7, balance=0.3).make()
        with ag.Tape() as tape, side_losses() as side:
            loss = (layer(TOKENS) ** 2).sum() + sum(side)
        tape.backward(loss)
        found.append((layer.router.weight.grad.numpy(), layer.up.grad.numpy(), layer.load))

    def body(mesh: cc.Mesh) -> None:
        stage, part = (int(n) for n in mesh.place)
        layers = nn.Sequential(case(4, {stage: 1.0}, capacity=0.7, balance=0.3).make())
        for _, owner, attribute, p in list(layers.named_owners()):
            vars(owner)[attribute] = ag.Parameter(p.array, {"pp": V}, name=p.name)
        layer: Any = layers[0]
        layer = Experts("ep").apply(layer, "0", Shards(mesh))
        model = DataParallel(layer, "ep")
        x = cc.from_local(np.array_split(TOKENS, 2)[part], {"pp": V, "ep": Shard(0)})
        with ag.Tape() as tape, side_losses() as side:
            loss = cc.all_reduce((model(x) ** 2).sum() + sum(side), ("pp", "ep"), to=I)
        tape.backward(loss)
        router, up, load = found[stage]
        assert layer.load.experts.tolist() == load.experts.tolist() and layer.load.dropped == load.dropped > 0
        np.testing.assert_allclose(layer.router.weight.grad.numpy(), router, rtol=0, atol=1e-10)
        np.testing.assert_allclose(layer.up.grad.numpy(), np.array_split(up, 2)[part], rtol=0, atol=1e-10)

    on({"pp": 2, "ep": 2}, body)


def test_is_verified() -> None:
    """`verify` runs the divided layer on one rank without a mesh, with whole parameters."""
    def body(mesh: cc.Mesh) -> None:
        layers = nn.Sequential(nn.Linear(WIDTH, WIDTH, dtype=float), CASES["capacity"].make())
        model = DataParallel(parallelize(layers, {"1": Experts("ep")}), mesh.names)
        x = tokens_of(mesh)

        def loss(model: Any, x: Any) -> Any:
            with side_losses() as side:
                return (model(x) ** 2).sum() + sum(side)

        report = verify(model, loss, x)
        report.require()
        assert len(report.gradients) == 7 and layers[1].load.dropped > 0

    on({"dp": 2, "ep": 2}, body)


def test_parts_without_a_mesh_are_refused() -> None:
    layer = on({"ep": 2}, lambda mesh: divided(case(4).make(), mesh))[1]
    with pytest.raises(cc.MeshError, match="no mesh|current"):
        layer(TOKENS)


def test_state_of_a_divided_layer_is_that_of_the_whole_one() -> None:
    c = case(5)

    def body(mesh: cc.Mesh) -> None:
        layer = divided(c.make(), mesh)
        for name, value in c.make().state_dict().items():
            np.testing.assert_array_equal(layer.state_dict()[name], value)
        other = MixtureOfExperts(WIDTH, HIDDEN, 5, dtype=float, key=random.Key(77)).state_dict()
        layer.load_state_dict(other)
        np.testing.assert_array_equal(layer.up.numpy(), np.array_split(other["up"], 3)[int(mesh.axis("ep").rank)])

    on({"ep": 3}, body)


# -- bytes -------------------------------------------------------------------------------------------------------------
def test_dispatch_and_combine_send_the_rows_of_other_ranks_experts() -> None:
    """Forward, a rank sends ``width`` numbers for each row of another rank's expert, and the results of the rows that
    it got; backward the cotangents of both, which are as many."""
    c, ranks = CASES["capacity"], 3

    def body(mesh: cc.Mesh) -> Any:
        group, parts, x = mesh.axis("ep").group, divided(c.make(), mesh), tokens_of(mesh)
        model = DataParallel(parts, "ep")
        sent: list[int] = []

        def observer(group: Any, request: Any, started: bool, run: Any) -> Any:
            if request.call == "all_to_all" and request.x.dtype == float:
                others = [n for r, n in enumerate(request.counts) if r != group.index]
                sent.append(sum(others) * request.x.itemsize)
            return run()

        with observing(observer):
            with ag.Tape() as tape:
                loss = (model(x) ** 2).sum()
            forward = len(sent)
            tape.backward(loss)
        bounds = np.cumsum([0, 2, 1, 1])
        kept = np.stack([parts.load.kept[:, a:b].sum(1) for a, b in zip(bounds[:-1], bounds[1:], strict=True)], 1)
        r = group.index
        away, in_ = kept[r].sum() - kept[r, r], kept[:, r].sum() - kept[r, r]
        assert forward == 2 and [n // (8 * WIDTH) for n in sent] == [away, in_, away, in_]
        return away

    assert sum(on({"ep": ranks}, body)) > 10


def test_a_dry_run_counts_the_bytes_of_even_loads() -> None:
    """4 ranks of 6 tokens, each for 2 of 4 experts: 3 rows for each expert, so 9 of 12 leave a rank."""
    with cc.dry(4) as world, cc.Mesh(ep=4) as mesh:
        layer = divided(case(4, balance=0.1, capacity=1.0).make(), mesh)
        model = DataParallel(layer, "ep")
        x = ag.tensor(np.ones((6, WIDTH)), {"ep": Shard(0)}, global_shape=(24, WIDTH))
        with ag.Tape() as tape, side_losses() as side:
            loss = cc.all_reduce((model(x) ** 2).sum() + sum(side), "ep", to=I)
        tape.backward(loss)
        assert layer.up.grad.shape == layer.up.shape
    rows = [t for t in world.traffic() if t.by == "all_to_all"]
    assert sorted((t.direction, t.calls, t.bytes) for t in rows) == [
        ("backward", 2, 2 * 12 * WIDTH * 8), ("forward", 2, 2 * 12 * WIDTH * 8)]


# -- mistakes ----------------------------------------------------------------------------------------------------------
def test_tokens_that_the_ranks_of_the_experts_share_are_refused() -> None:
    def body(mesh: cc.Mesh) -> None:
        model = divided(case(3).make(), mesh)
        for label, word in ((R, "Replicated"), (I, "Invariant")):
            x = ag.tensor(TOKENS, {"ep": label})
            with pytest.raises(LayoutError, match=f"the tokens are {word}(.|\n)*fix: cc.shard"):
                model(x)

    on({"ep": 2}, body)


def test_tokens_whose_width_is_divided_are_refused() -> None:
    def body(mesh: cc.Mesh) -> None:
        x = cc.from_local(np.ones((4, 2)), {"tp": Shard(1)})
        with pytest.raises(LayoutError, match=r"width of the tokens is divided(.|\n)*all_gather\(x, 'tp', dim=-1\)"):
            case(3).make()(x)

    on({"tp": 2}, body)


def test_a_capacity_without_agreed_places_is_refused() -> None:
    def body(mesh: cc.Mesh) -> None:
        x = cc.cast(ag.tensor(TOKENS), "ep", to=Shard(0))
        with pytest.raises(LayoutError, match="Shard, without agreed|without agreed extents"):
            divided(case(3, capacity=1.0).make(), mesh)(x)
        divided(case(3).make(), mesh)(x)

    on({"ep": 2}, body)


def test_a_loss_that_is_not_summed_along_the_experts_axis_is_refused() -> None:
    def body(mesh: cc.Mesh) -> None:
        model = DataParallel(divided(case(3).make(), mesh), "ep")
        with ag.Tape() as tape:
            loss = cc.cast(model(tokens_of(mesh)), "ep", to=V).sum()
        with pytest.raises(LayoutError, match="Varying"):
            tape.backward(loss)

    on({"ep": 2}, body)


def test_without_data_parallel_the_parameters_enter_all_the_same() -> None:
    """The layer then casts the router itself, and its side loss is summed along the axis."""
    c = CASES["dropless"]

    def body(mesh: cc.Mesh) -> None:
        parts = divided(c.make(), mesh)
        with ag.Tape() as tape, side_losses() as side:
            loss = cc.all_reduce((parts(tokens_of(mesh)) ** 2).sum(), "ep", to=I) + sum(side)
        tape.backward(loss)
        np.testing.assert_allclose(parts.router.weight.grad.numpy(), layer.router.weight.grad.numpy(), atol=1e-10)

    layer = c.make()
    with ag.Tape() as tape, side_losses() as side:
        loss = (layer(TOKENS) ** 2).sum() + sum(side)
    tape.backward(loss)
    on({"ep": 3}, body)


# -- reported bugs (reference/bugs.md) ---------------------------------------------------------------------------------
def test_row_2_a_router_whose_gradient_misses_the_other_ranks_is_refused() -> None:
    """Megatron-LM#619: under sequence parallelism the router's weight got the gradient of this rank's tokens only."""
    def body(mesh: cc.Mesh) -> None:
        x = cc.from_local(mine(TOKENS, mesh, {"tp": Shard(1)}), {"tp": Shard(1)})
        weight = case(3).make().router.weight
        with pytest.raises(LayoutError, match=r"fix: cast\(.*'tp', to=R\)"):
            x @ weight

    on({"tp": 2}, body)
    check(CASES["dropless"], {"tp": 2}, {"tp": Shard(1)})  # the layer casts it


def test_row_8_gathered_tokens_need_a_reduce_scatter_backward() -> None:
    """NeMo Automodel#1260: tokens were gathered, each rank's experts worked on all, and backward kept a slice."""
    weights = np.random.default_rng(5).normal(size=(2, WIDTH, 3))

    def body(mesh: cc.Mesh) -> Any:
        x, r = tokens_of(mesh), int(mesh.axis("ep").rank)
        w = ag.Parameter(weights[r], {"ep": V})
        with pytest.raises(LayoutError, match="Invariant"):  # the gather whose adjoint is a slice
            cc.all_gather(x, "ep", to=I) @ w
        with ag.Tape() as tape:
            loss = cc.all_reduce((cc.all_gather(x, "ep") @ w).sum(), "ep", to=I)
        tape.backward(loss)
        return x.grad.numpy()

    found = np.concatenate(on({"ep": 2}, body))
    np.testing.assert_allclose(found, np.broadcast_to(weights.sum((0, 2)), found.shape), atol=1e-12)


def test_row_22_gradients_of_experts_are_not_summed_over_the_axis_of_the_experts() -> None:
    """pytorch#160285: they were scaled by the number of ranks. They already are those of the tokens of all ranks."""
    c = case(4, balance=0.0)
    for sizes in ({"ep": 1}, {"ep": 2}, {"dp": 2, "ep": 2}):
        for ours in check(c, sizes):
            ratio = np.linalg.norm(ours.gradients["down"]) / np.linalg.norm(serial(c).gradients["down"])
            assert abs(ratio - 1) < 1e-12


# -- planted faults ----------------------------------------------------------------------------------------------------
def places_by_rank(choice: Any, axes: Any) -> Any:
    """The queue of an expert in the order of the ranks."""
    shape, mesh = choice.array.shape, cc.current_mesh()
    return np.arange(shape[0]) + 1000 * mesh.axis(axes).group.index


def places_of_one_rank(starts: Any, counts: Any, capacity: Any) -> Any:
    """A queue for each rank."""
    return np.zeros_like(counts), np.minimum(counts, 3) if capacity else counts


def from_own_counts(probabilities: Any, counts: Any, top_k: int) -> Any:
    chosen = np.argsort(-probabilities.array, -1)[..., :top_k]
    return original_balance(probabilities, np.bincount(chosen.reshape(-1), minlength=len(counts)), top_k)


def own_rows_only(rows: Any, axis: str, *dims: int, counts: Any, received: Any) -> Any:
    """An exchange whose adjoint keeps the cotangents of this rank's own rows and drops those of the others."""
    r = int(cc.current_mesh().axis(axis).rank)
    y = original_exchange(rows, axis, *dims, counts=counts, received=received)
    own = np.repeat(np.arange(len(received)) == r, received)[:, None].astype(float)
    fixed = stop_gradient(y)
    return fixed + (y - fixed) * ag.tensor(own)


original_balance, original_exchange = module.balance_loss, cc.all_to_all
FAULTS: dict[str, tuple[Any, str, Any, str, str]] = {
    "drops in the order of the ranks": (plans, "_starts", places_by_rank, "capacity", "cp=2 ep=2"),
    "drops from a queue of each rank": (plans, "_queues", places_of_one_rank, "capacity", "ep=3"),
    "load balance of each rank": (module, "balance_loss", from_own_counts, "dropless", "ep=3"),
    "gradients of own rows only": (cc, "all_to_all", own_rows_only, "dropless", "ep=3"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, attribute, fault, c, mesh = FAULTS[name]
    serial(CASES[c])
    monkeypatch.setattr(where, attribute, fault)
    with pytest.raises((AssertionError, ReplicaMismatch, ShapeError)):
        check(CASES[c], *MESHES[mesh])


if __name__ == "__main__":
    main()
