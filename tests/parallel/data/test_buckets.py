"""The edges of buckets and of sharded parameters: what they hold, when they are summed, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn, optim, random
from autograd.engine import events
from autograd.whole import whole_of
from parallel import DataParallel, NoiseScale, PowerSGD, memory_of, verify
from parallel.data.buckets import lay_out

from ...on_mesh import on


def stack(layers: int = 4, width: int = 8) -> nn.Sequential:
    random.seed(1)
    return nn.Sequential(*(nn.Linear(width, width, dtype=float) for _ in range(layers)))


def rows_of(mesh: cc.Mesh, n: int = 12, width: int = 8, seed: int = 0) -> Any:
    whole = np.random.default_rng(seed).normal(size=(n, width))
    return cc.from_local(np.array_split(whole, mesh.ranks.size)[mesh.ranks.index], {"dp": cc.Shard(0)})


def backward(model: Any, x: Any) -> None:
    with ag.Tape() as tape:
        loss = (model(x) ** 2).sum()
    tape.backward(loss)


def serial(module: nn.Module, n: int = 12, seed: int = 0) -> list[Any]:
    with ag.Tape() as tape:
        loss = (module(np.random.default_rng(seed).normal(size=(n, 8))) ** 2).sum()
    tape.backward(loss)
    return [p.grad.numpy() for p in module.parameters()]


# -- layout ------------------------------------------------------------------------------------------------------------
def test_the_first_bucket_is_smaller_and_dtypes_have_buckets_of_their_own() -> None:
    shapes = [(10, 10), (10,), (40, 10), (3,)]
    parameters = [ag.Parameter(np.zeros(s, "float32"), name=str(s)) for s in shapes]
    parameters.append(ag.Parameter(np.zeros(5), name="double"))
    places = lay_out(parameters, [4, 3, 2, 1, 0], bucket_bytes=1500, first_bucket_bytes=8)
    assert [place.indices for place in places] == [(4,), (3,), (2,), (1, 0)]
    assert {place.like.dtype.itemsize for place in places} == {4, 8}
    assert places[3].offsets == (0, 16) and places[3].elements == 16 + 112, "gradients begin on cache lines"
    assert places[3].size == places[3].elements + 2


def test_buckets_follow_the_first_ranks_order_of_use() -> None:
    class Reversed(nn.Module):
        def __init__(self) -> None:
            self.layers = nn.ModuleList([nn.Linear(8, 8, dtype=float) for _ in range(3)])

        def forward(self, x: Any) -> Any:
            for layer in reversed(list(self.layers)):  # the first one is used last
                x = layer(x)
            return x

    def program(mesh: cc.Mesh) -> Any:
        model = DataParallel(Reversed(), "dp", bucket_bytes=0)
        backward(model, rows_of(mesh))
        return [name.split(".")[1] for bucket in model._entries[0]._plan.call.runs.places for name in bucket.names]

    for order in on(3, program):
        assert order == ["0", "0", "1", "1", "2", "2"]


def test_a_bucket_is_started_while_backward_goes_on() -> None:
    def program(mesh: cc.Mesh) -> Any:
        model, seen = DataParallel(stack(), "dp", bucket_bytes=0), []
        for _ in range(2):
            seen.clear()
            with events.listening(lambda phase, way, name: seen.append(name) if phase == "begin" else None):
                backward(model, rows_of(mesh))
        return seen

    for seen in on(2, program):
        sums = [i for i, name in enumerate(seen) if name == "gradient bucket"]
        products = [i for i, name in enumerate(seen) if name in ("linear", "matmul")]
        assert len(sums) == 8 and sum(i < products[-1] for i in sums) == 7, seen  # all but the first layer's weight


# -- buffers -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [{}, {"buffers": 2}, {"zero": 1}, {"zero": 2}], ids=str)
def test_a_gradient_that_the_program_keeps_is_not_overwritten(options: Any) -> None:
    def program(mesh: cc.Mesh) -> None:
        model = DataParallel(stack(), "dp", **options)
        kept, copies = [], []
        for step in range(4):
            backward(model, rows_of(mesh, seed=step))
            kept.append([p.grad if step % 2 else p.grad.numpy()[1:] for p in model.parameters()])
            copies.append([np.array(g.numpy() if step % 2 else g) for g in kept[-1]])
            model.zero_grad()
        for held, copied in zip(kept, copies, strict=True):
            for g, value in zip(held, copied, strict=True):
                assert np.array_equal(g.numpy() if isinstance(g, ag.Tensor) else g, value)

    on(3, program)


def test_gradients_are_views_of_one_buffer() -> None:
    def program(mesh: cc.Mesh) -> Any:
        model = DataParallel(stack(), "dp")
        places = set()
        for _ in range(3):
            model.zero_grad()
            backward(model, rows_of(mesh))
            bases = {id(p.grad.numpy().base) for p in model.parameters()}
            assert len(bases) == 1
            places |= bases
        return len(places)

    assert on(2, program) == [1, 1]


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_a_parameter_used_by_another_rank_in_each_step(zero: int) -> None:
    """What an earlier step has left in a buffer does not count."""

    class Choice(nn.Module):
        def __init__(self) -> None:
            self.weight, self.used = ag.Parameter(np.ones(5)), True

        def forward(self, x: Any) -> Any:
            return x * self.weight if self.used else x * 1.0

    def program(mesh: cc.Mesh) -> Any:
        module = Choice()
        model, found = DataParallel(module, "dp", zero=zero), []
        for step in range(5):
            module.used = mesh.ranks.index == step % 4  # nobody in the fourth
            model.zero_grad()
            with ag.Tape() as tape:
                x = ag.tensor(np.full(5, 1.0 + step), {"dp": cc.V})
                loss = cc.declare_partial(model(x).sum(), "dp")
            tape.backward(loss)
            (p,) = model.parameters()
            found.append(None if p.grad is None else p.grad.numpy().copy())
        return found

    for ours in on(3, program):
        assert ours[3] is None
        for step in (0, 1, 2, 4):
            assert np.all(ours[step] == 1.0 + step)


# -- recomputation, layers ---------------------------------------------------------------------------------------------
class Checkpointed(nn.Module):
    def __init__(self, inside: bool) -> None:
        random.seed(1)
        self.layers = nn.ModuleList([nn.Linear(8, 8, dtype=float) for _ in range(4)])
        self.inside = inside

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = anp.tanh(ag.checkpoint(layer)(x) if self.inside else layer(x))
        return x


@pytest.mark.parametrize("options", [{"bucket_bytes": 0}, {"zero": 2}, {"zero": 3}], ids=str)
@pytest.mark.parametrize("ranks", [1, 3])
def test_checkpointed_layers(ranks: int, options: Any) -> None:
    def program(mesh: cc.Mesh) -> Any:
        model = DataParallel(Checkpointed(True), "dp", **options)
        for _ in range(2):
            model.zero_grad()
            backward(model, rows_of(mesh))
        return [cc.all_gather(p.grad, "dp").numpy() if "zero" in options else p.grad.numpy()
                for p in model.parameters()]  # fmt: skip

    for ours in on(ranks, program):
        for g, expected in zip(ours, serial(Checkpointed(False)), strict=True):
            assert np.linalg.norm(g - expected) <= 1e-12 * np.linalg.norm(expected)


def test_a_layer_that_returns_a_view_of_its_parameter() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            self.weight = ag.Parameter(random.normal(random.Key(2, "w"), (8, 8), dtype=float))

        def forward(self, x: Any) -> Any:
            return self.weight.T

    class Uses(nn.Module):
        def __init__(self) -> None:
            random.seed(1)
            self.layers = nn.ModuleList([Rows(), nn.Linear(8, 8, dtype=float)])

        def forward(self, x: Any) -> Any:
            w = self.layers[0](x)
            return self.layers[1](x) @ w

    def program(mesh: cc.Mesh) -> Any:
        model = DataParallel(Uses(), "dp", zero=3)
        backward(model, rows_of(mesh))
        return [cc.all_gather(p.grad, "dp").numpy() for p in model.parameters()]

    for ours in on(2, program):
        for g, expected in zip(ours, serial(Uses()), strict=True):
            assert np.linalg.norm(g - expected) <= 1e-12 * np.linalg.norm(expected)


def test_evaluation_between_forward_and_backward() -> None:
    def program(mesh: cc.Mesh) -> Any:
        model, x = DataParallel(stack(), "dp", zero=3), rows_of(mesh)
        with ag.Tape() as tape:
            loss = (model(x) ** 2).sum()
        with ag.no_grad():
            model(rows_of(mesh, seed=5))
        tape.backward(loss)
        return [cc.all_gather(p.grad, "dp").numpy() for p in model.parameters()]

    for ours in on(3, program):
        for g, expected in zip(ours, serial(stack()), strict=True):
            assert np.linalg.norm(g - expected) <= 1e-12 * np.linalg.norm(expected)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_state_that_is_loaded_and_evaluated(zero: int) -> None:
    def program(mesh: cc.Mesh) -> None:
        other = stack()
        for p in other.parameters():
            p.data = p.numpy() + 1.0
        model, x = DataParallel(stack(), "dp", zero=zero), rows_of(mesh)
        model.load_state_dict(other.state_dict())
        with ag.no_grad():
            ours, expected = model(x).numpy(), DataParallel(other, "dp")(x).numpy()
        assert np.array_equal(ours, expected)
        for name, value in model.state_dict().items():
            assert np.array_equal(value, other.state_dict()[name])

    on(3, program)


# -- memory and bytes --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", [2, 4])
def test_memory_and_traffic_of_the_stages(ranks: int) -> None:
    """Bytes per parameter, in float32 with Adam: 16, 8 + 8/N, 4 + 12/N, 16/N; sent: 2, 2, 2, 3 times the parameters."""
    width, layers = 64, 8
    n = layers * width * (width + 1)
    formulas = [16.0, 8 + 8 / ranks, 4 + 12 / ranks, 16 / ranks]

    def program(mesh: cc.Mesh) -> Any:
        found = []
        for zero in range(4):
            random.seed(1)
            model = DataParallel(nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))), "dp", zero=zero)
            optimizer = optim.Adam(model.parameters())
            x = cc.from_local(np.ones((2, width), "float32") * (1 + mesh.ranks.index), {"dp": cc.Shard(0)})
            for _ in range(2):
                optimizer.zero_grad()
                backward(model, x)
                optimizer.step()
            memory = memory_of(model, optimizer)
            assert memory.gathered == (4 * width * (width + 1) if zero == 3 else 0)
            found.append(memory.total / n)
        return found

    for measured in on(ranks, program):
        assert np.allclose(measured, formulas, rtol=0.05), (measured, formulas)

    sent = []
    for zero in range(4):
        with cc.dry(ranks=ranks, mesh={"dp": ranks}) as run:
            model = DataParallel(nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))), "dp", zero=zero)
            before = {t: t.bytes for t in run.traffic()}
            backward(model, ag.tensor(np.ones((2, width), "float32"), {"dp": cc.Shard(0)}))
        ring = [p for p in run.predictions() if p.algorithm == "ring" and p.traffic.by != "exchange"]
        assert before or not zero
        each = [p.sent_bytes for p in ring if p.traffic.operation in ("all_reduce", "all_gather", "reduce_scatter")]
        sent.append(sum(each) / (4 * n * (ranks - 1) / ranks))
    assert np.allclose(sent, [2, 2, 2, 3], rtol=0.05), sent


# -- refusals ----------------------------------------------------------------------------------------------------------
def test_wrong_options() -> None:
    with cc.Mesh(dp=1):
        for options in ({"zero": 4}, {"zero": True}, {"bucket_bytes": -1}, {"buffers": 0}, {"bucket_bytes": 2.5}):
            with pytest.raises(ag.errors.OptionError):
                DataParallel(stack(), "dp", **options)  # wrong on purpose
        for reduction in (PowerSGD, "powersgd", 2):  # wrong on purpose: the class, a name, a rank
            with pytest.raises(ag.errors.ArgumentError, match="fix: reduction=PowerSGD"):
                DataParallel(stack(), "dp", reduction=reduction)  # wrong on purpose
    with pytest.raises(ag.errors.MeshError):
        DataParallel(stack(), "dp", zero=1)


def test_a_second_derivative_through_freed_parameters_is_refused() -> None:
    def program(mesh: cc.Mesh) -> None:
        model, x = DataParallel(stack(2), "dp", zero=3), rows_of(mesh)
        with ag.Tape(), ag.Tape() as inner:
            loss = (model(x) ** 2).sum()
            with pytest.raises(ag.TapeError, match="zero=2"):
                inner.backward(loss, record=True, retain=True)

    on(2, program)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_where_another_axis_divides_the_rows_the_next_dimension_is_divided(zero: int) -> None:
    """The weight has parts [5 / 2, 7 / 3]. The bias has no other dimension, so that each rank of dp has a copy."""
    whole, addends = np.random.default_rng(3).normal(size=(5, 7)), np.random.default_rng(4).normal(size=4)

    class Sum(nn.Module):
        def __init__(self, mesh: cc.Mesh) -> None:
            rows = np.array_split(np.arange(5), 2)[int(mesh.axis("tp").rank)]
            self.weight = ag.Parameter(whole[rows], {"tp": cc.Shard(0)}, global_shape=(5, 7))
            self.bias = ag.Parameter(whole[rows, 0], {"tp": cc.Shard(0)}, global_shape=(5,))

        def forward(self, x: Any) -> Any:
            return (anp.tanh(self.weight).sum() + anp.tanh(self.bias).sum()) * x.sum()

    def program() -> None:
        with cc.Mesh(dp=3, tp=2) as mesh:
            model = DataParallel(Sum(mesh), "dp", zero=zero)
            weight, bias = model.parameters()
            assert dict(weight.layout) == {"dp": cc.Shard(1), "tp": cc.Shard(0)} and weight.global_shape == (5, 7)
            assert bias.layout["dp"] is cc.I
            x = cc.from_local(np.array_split(addends, 3)[int(mesh.axis("dp").rank)], {"dp": cc.Shard(0), "tp": cc.R})
            optimizer = optim.Adam(model.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                with ag.Tape() as tape:
                    loss = cc.all_reduce(model(x), ("dp", "tp"), to=cc.I)
                tape.backward(loss)
                for p, w in ((weight, "module.weight"), (bias, "module.bias")):
                    now = model.state_dict()[w.removeprefix("module.")]
                    expected = addends.sum() * (1 - np.tanh(now) ** 2)
                    np.testing.assert_allclose(whole_of(p.grad.array, p.layout, "test", w), expected, atol=1e-13)
                optimizer.step()
            assert np.abs(model.state_dict()["weight"] - whole).min() > 0.1, "every element was updated"

    cc.run(program, 6)


READERS: dict[str, Callable[[Any, list[ag.Parameter], Any], Any]] = {
    "grad": lambda opt, ps, noise: ps[0].grad,
    "grad = ": lambda opt, ps, noise: setattr(ps[0], "grad", np.zeros(ps[0].shape)),
    "clip_grad_norm_": lambda opt, ps, noise: optim.clip_grad_norm_(ps, 1.0),
    "clip_grad_value_": lambda opt, ps, noise: optim.clip_grad_value_(ps, 1.0),
    "global_norm": lambda opt, ps, noise: optim.global_norm([p.grad for p in ps]),
    "step": lambda opt, ps, noise: opt.step(),
    "MasterWeights.step": lambda opt, ps, noise: optim.MasterWeights(optim.SGD, ps, lr=0.1).step(),
    "unscale": lambda opt, ps, noise: optim.MasterWeights(optim.SGD, ps, lr=0.1).unscale(),
    "Offload.step": lambda opt, ps, noise: optim.Offload(optim.SGD, ps, lr=0.1).step(),
    "update": lambda opt, ps, noise: noise.update(1, 2),
}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("zero", [0, 2, 3])
def test_gradients_are_not_read_in_a_block_of_accumulate(ranks: int, zero: int) -> None:
    """They used to be None there, so that clipping, unscaling and steps did nothing, without a word."""

    def program() -> list[str]:
        with cc.Mesh(dp=ranks) as mesh:
            noise = None if zero else NoiseScale()
            body = nn.Sequential(nn.Linear(3, 4, dtype=float), nn.Linear(4, 3, dtype=float))
            model = DataParallel(body, "dp", zero=zero, reduction=noise)
            ps = model.parameters()
            opt = optim.SGD(ps, lr=0.1)
            before = [p.numpy().copy() for p in ps]
            missed = []
            with model.accumulate():
                for _ in range(2):
                    with ag.Tape() as tape:
                        y = model(ag.tensor(np.ones((2, 3)) + int(mesh.axis("dp").rank), {"dp": cc.V}))
                        loss = cc.declare_partial(y.sum(), "dp")
                    tape.backward(loss)
                for name, read in READERS.items():
                    if name == "update" and (zero or ranks == 1):  # which measures nothing there
                        continue
                    try:
                        read(opt, ps, noise)
                        missed.append(name)
                    except (ag.TapeError, ag.OptionError) as error:
                        assert "accumulate()" in str(error) and "after the block" in str(error), error
            for p, old in zip(ps, before, strict=True):  # the fix
                assert (p.numpy() == old).all() and p.grad is not None
            assert optim.clip_grad_norm_(ps, 1.0) > 1
            if noise is not None and ranks > 1:
                noise.update(4, 4 * ranks)
                with pytest.raises(ag.OptionError, match="no gradients were summed"):
                    noise.update(4, 4 * ranks)
            opt.step()
            return missed

    assert cc.run(program, ranks) == [[]] * ranks


def test_wrong_places_of_accumulate() -> None:
    def program(mesh: cc.Mesh) -> None:
        model, x = DataParallel(stack(), "dp"), rows_of(mesh)
        with ag.Tape(), pytest.raises(ag.TapeError, match="a tape is recording"), model.accumulate():
            pass
        with model.accumulate():
            backward(model, x)
            with pytest.raises(ag.TapeError, match="another block"), model.accumulate():
                pass
            assert all(p._grad is None for p in model.parameters()), "the gradients come at the end of the block"
            optimizer = optim.SGD(model.parameters(), lr=0.1)
            backward(model, x)
            with pytest.raises(ag.SavedArrayError):
                model.parameters()[0].data = np.zeros((8, 8))
        optimizer.step()

    on(2, program)


def test_a_product_writes_its_gradient_into_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    write = ag.registry["linear"].write_adjoint[1]

    def counted(*args: Any) -> bool:
        written.append(write(*args))
        return written[-1]

    for name in ("linear", "matmul"):
        monkeypatch.setitem(ag.registry[name].write_adjoint, 1, counted)

    def program(mesh: cc.Mesh) -> Any:
        model = DataParallel(stack(), "dp")
        for _ in range(3):  # in the first sweep the signatures are checked
            model.zero_grad()
            backward(model, rows_of(mesh))
        return [p.grad.numpy().copy() for p in model.parameters()]

    for ours in on(2, program):
        for g, expected in zip(ours, serial(stack()), strict=True):
            assert np.linalg.norm(g - expected) <= 1e-13 * np.linalg.norm(expected)
    assert len(written) >= 16 and all(written), "4 layers, on 2 ranks, at least in the last 2 sweeps"


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_parts_inside_a_host_and_copies_between_hosts(zero: int) -> None:
    def program() -> Any:
        with cc.Mesh(hosts=2, inside=3) as mesh:
            model = DataParallel(Checkpointed(False), "inside", zero=zero, replicate="hosts", bucket_bytes=300)
            optimizer = optim.Adam(model.parameters(), lr=0.01)
            whole = np.random.default_rng(0).normal(size=(12, 8))
            part = np.array_split(np.array_split(whole, 2)[int(mesh.place[0])], 3)[int(mesh.place[1])]
            x = cc.from_local(part, {"hosts": cc.Shard(0), "inside": cc.Shard(0)})
            for _ in range(3):
                optimizer.zero_grad()
                backward(model, x)
                optimizer.step()
            assert all(p.layout == {"hosts": cc.I, "inside": cc.Shard(0)} for p in model.parameters())
            return [cc.all_gather(p.grad, "inside").numpy() for p in model.parameters()], model.state_dict()

    module = Checkpointed(False)
    optimizer = optim.Adam(module.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        expected = serial(module)
        optimizer.step()
    for ours, parameters in cc.run(program, 6):
        for g, theirs in zip(ours, expected, strict=True):
            assert np.linalg.norm(g - theirs) <= 1e-11 * np.linalg.norm(theirs)
        for name, p in module.state_dict().items():
            assert np.linalg.norm(parameters[name] - p) <= 1e-12 * np.linalg.norm(p)


@pytest.mark.parametrize("zero", [0, 2])
def test_a_parameter_that_was_replaced_is_refused(zero: int) -> None:
    """Its value was dropped silently, because the model put its own parameter back."""

    def program(mesh: cc.Mesh) -> None:
        model, x = DataParallel(stack(), "dp", zero=zero), rows_of(mesh)
        backward(model, x)
        model.module[0].weight = ag.Parameter(np.ones((8, 8)))
        with pytest.raises(ag.errors.OptionError, match="0.weight"):
            model(x)

    on(2, program)


def test_zero_is_verified() -> None:
    def program(mesh: cc.Mesh) -> None:
        for zero in range(4):
            verify(DataParallel(stack(), "dp", zero=zero), lambda m, x: (m(x) ** 2).sum(), rows_of(mesh)).require()

    on(3, program)


# -- parameters that some of the axes divide ---------------------------------------------------------------------------
TABLE, MATRIX = np.random.default_rng(7).normal(size=(5, 8)), np.random.default_rng(8).normal(size=(8, 8))


class Divided(nn.Module):
    """A matrix that all ranks have, a row of numbers, and a table of which the ranks of "ep" have parts, if it does."""

    def __init__(self, mesh: Any = None) -> None:
        self.matrix, self.scale = ag.Parameter(MATRIX), ag.Parameter(np.ones(8))
        self.parts = nn.ModuleList([Part(mesh)])

    def forward(self, x: Any) -> Any:
        return self.parts[0]((x @ self.matrix) * self.scale)


class Part(nn.Module):
    def __init__(self, mesh: Any) -> None:
        place = () if mesh is None else ({"ep": cc.Shard(0)},)
        mine = TABLE if mesh is None else np.array_split(TABLE, mesh.axis("ep").size)[int(mesh.axis("ep").rank)]
        self.table, self.bias = ag.Parameter(mine, *place, **({} if mesh is None else {"global_shape": (5, 8)})), None
        self.inside = ag.Parameter(np.full(8, 0.5))

    def forward(self, x: Any) -> Any:
        table = self.table
        if table.layout is not None and isinstance(table.layout["ep"], cc.Shard):
            table = cc.all_gather(table, "ep")  # the sum over "ep" is the adjoint of this operation
        return anp.tanh(x * self.inside) @ table.T


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("sizes", [{"dp": 2, "ep": 2}, {"ep": 3}, {"ep": 2, "dp": 1}, {"dp": 1, "ep": 1}], ids=str)
def test_a_parameter_that_one_of_the_axes_divides_enters_along_the_others(zero: int, sizes: dict[str, int]) -> None:
    whole = np.random.default_rng(0).normal(size=(12, 8))

    def program() -> Any:
        with cc.Mesh(**sizes) as mesh:
            axes = mesh.names if len(mesh.names) > 1 else mesh.names[0]
            model = DataParallel(Divided(mesh), axes, zero=zero, bucket_bytes=300)
            on = mesh.axis(axes)
            x = cc.from_local(np.array_split(whole, on.size)[int(on.rank)], dict.fromkeys(mesh.names, cc.Shard(0)))
            for _ in range(2):
                model.zero_grad()
                backward(model, x)
            labels = {name: p.layout for name, p in model.named_parameters()}
            assert dict(labels["parts.0.table"]) == {**dict.fromkeys(mesh.names, cc.I), "ep": cc.Shard(0)}
            assert all(x == (cc.Shard(0) if zero else cc.I) for x in labels["matrix"].values())
            return {name: whole_of(p.grad.array, p.grad.layout, "", name) for name, p in model.named_parameters()}

    module = Divided()
    with ag.Tape() as tape:
        loss = (module(ag.tensor(whole)) ** 2).sum()
    tape.backward(loss)
    for ours in cc.run(program, int(np.prod([*sizes.values()]))):
        for name, p in module.named_parameters():
            assert np.linalg.norm(ours[name] - p.grad.numpy()) <= 1e-12 * np.linalg.norm(p.grad.numpy()), name


def test_a_parameter_that_is_varying_along_an_axis_is_still_refused() -> None:
    def program(mesh: cc.Mesh) -> None:
        module = nn.Linear(8, 8, dtype=float)
        module.bias = ag.Parameter(np.ones(8), {"dp": cc.V})
        with pytest.raises(cc.LayoutError, match=r"bias.*(.|\n)*Varying; needed: Invariant"):
            DataParallel(module, "dp")(rows_of(mesh))

    on(2, program)


# -- float16 -----------------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("error", "ignore:BatchNorm1d at ")  # each rank normalises its own two rows
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_training_in_float16_warns_of_nothing_and_adam_steps(zero: int) -> None:
    """The first use of each rule, which is checked, gradients that are 0 or large, and updates of float32."""
    rng = np.random.default_rng(0)
    w, rows = rng.standard_normal((6, 6)), (300 * rng.standard_normal((3, 2, 6))).astype(np.float16)

    def program(mesh: cc.Mesh) -> Any:
        layers = [nn.Linear(6, 6), nn.Linear(6, 6)]
        for layer in layers:
            layer.weight.data = w.astype(np.float32)
        module = nn.Sequential(layers[0], nn.GELU("tanh"), nn.RMSNorm(6, 1e-5, False), nn.BatchNorm1d(6), layers[1],
                               nn.GELU()).half()  # fmt: skip
        model = DataParallel(module, "dp", zero=zero)
        optimizer = optim.Adam(model.parameters(), lr=0.01)
        for _ in range(2):
            model.zero_grad()
            with ag.Tape() as tape:
                y = model(ag.tensor(rows[mesh.ranks.index], {"dp": cc.V}))
                loss = cc.all_reduce(nn.mse_loss(y, np.ones((2, 6), np.float16)) / 3, "dp", to=cc.I)
            tape.backward(loss)
            optimizer.step()
        return {name: np.asarray(value) for name, value in model.state_dict().items()}

    ours = on(3, program)
    for name, value in ours[0].items():
        if "running" in name or "tracked" in name:
            continue
        assert value.dtype == np.float16 and np.isfinite(value).all()
        assert np.array_equal(value, ours[2][name])
        if name.endswith("weight") and value.shape == w.shape:
            moved = np.abs(value.astype(float) - w.astype(np.float16))
            assert 0.005 < moved.max() < 0.025
