"""Column, Row, Heads and Sequence by themselves: against serial layers, uneven parts, labels, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn, optim, random
from autograd.errors import LayoutError, OptionError, ShapeError
from collectives import I, P, R, Shard, V
from parallel import Column, Heads, Row, Sequence, parallelize

from .models import whole_gradients

Array = Any
STREAMS = pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
X = np.random.default_rng(5).normal(size=(2, 5, 8))  # rows, tokens, width
CT = np.random.default_rng(6).normal(size=(2, 5, 8))


class MLP(nn.Module):
    def __init__(self, hidden: int = 10, bias: bool = True):
        self.norm = nn.RMSNorm(8, dtype=float)
        self.up = nn.Linear(8, hidden, bias, dtype=float, key=random.Key(1))
        self.down = nn.Linear(hidden, 8, bias, dtype=float, key=random.Key(2))

    def forward(self, x: Any) -> Any:
        return x + self.down(anp.tanh(self.up(self.norm(x))))


def loss_and_gradients(model: Any, x: Any, ct: Any, total: Callable[[Any], Any] = lambda loss: loss) -> Any:
    """Of ``(ct * model(x)).sum()``, with the gradient of x."""
    with ag.Tape() as tape:
        loss = total((ct * model(x)).sum())
    tape.backward(loss)
    return float(loss), {**whole_gradients(model), "x": x.grad}


def serial(model: Any) -> Any:
    return loss_and_gradients(model, ag.tensor(X, requires_grad=True), CT)


def divided(model: nn.Module, plan: dict[str, Any], sequence: bool) -> Any:
    """The same on the current mesh, with an input that is I, or Shard of the tokens."""
    parallelize(model, plan)
    if not sequence:
        return loss_and_gradients(model, ag.tensor(X, {"tp": I}, requires_grad=True), ag.constant(CT))
    own = np.array_split(np.arange(5), cc.world().size)[cc.world().rank]
    x = cc.from_local(X[:, own], {"tp": Shard(1)}, requires_grad=True)
    ct = cc.from_local(CT[:, own], {"tp": Shard(1)})
    loss, found = loss_and_gradients(model, x, ct, lambda loss: cc.all_reduce(loss, "tp", to=I))
    return loss, {**found, "x": cc.all_gather(found["x"], "tp", 1)}


def assert_same(found: Any, expected: Any) -> None:
    loss, gradients = found
    assert abs(loss - expected[0]) < 1e-12 * max(1, abs(expected[0]))
    for name, g in expected[1].items():
        g, mine = np.asarray(g), np.asarray(gradients[name])
        np.testing.assert_allclose(mine.reshape(g.shape), g, atol=1e-13, err_msg=name)


def on(ranks: int, program: Callable[[], Any]) -> list[Any]:
    def run() -> Any:
        with cc.Mesh(tp=-1):
            return program()

    return cc.run(run, ranks)


@STREAMS
@pytest.mark.parametrize("hidden", [10, 2])  # 2 on 3 ranks: the last one has no column
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_column_and_row(ranks: int, bias: bool, hidden: int, sequence: bool) -> None:
    to = Shard(1) if sequence else I
    plan = {"up": Column("tp"), "down": Row("tp", to=to), "norm": Sequence("tp")}
    for found in on(ranks, lambda: divided(MLP(hidden, bias), plan, sequence)):
        assert_same(found, serial(MLP(hidden, bias)))


def test_the_stream_may_change_its_form_between_layers() -> None:
    """A row layer that gathers nothing, and one that scatters: the next region begins accordingly."""

    class Two(nn.Module):
        def __init__(self) -> None:
            self.one, self.two = MLP(), MLP(6)

        def forward(self, x: Any) -> Any:
            y = self.one.down(anp.tanh(self.one.up(x)))
            return self.two.down(anp.tanh(self.two.up(y)))

    plan = {"*.up": Column("tp"), "one.down": Row("tp", to=Shard(1)), "two.down": Row("tp")}
    expected = serial(Two())
    for found in on(3, lambda: divided(Two(), plan, False)):
        for gradients in (found[1], expected[1]):
            gradients.pop("one.norm.weight", None)
            gradients.pop("two.norm.weight", None)
        assert_same(found, expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_dtypes_stay(dtype: Any) -> None:
    def program() -> Any:
        model = nn.Sequential(nn.Linear(4, 6, dtype=dtype), nn.ReLU(), nn.Linear(6, 4, dtype=dtype))
        parallelize(model, {"0": Column("tp"), "2": Row("tp")})
        x = ag.tensor(np.ones((3, 4), dtype), {"tp": I}, requires_grad=True)
        with ag.Tape() as tape:
            y = model(x)
            loss = y.sum()
        tape.backward(loss)
        return y.dtype, x.grad.dtype

    assert on(2, program) == [(dtype, dtype)] * 2


# -- derivatives of higher order, and forward mode ---------------------------------------------------------------------


@STREAMS
def test_second_derivatives(sequence: bool) -> None:
    """The gradient of the squared norm of the gradients."""

    def second(model: Any, x: Any, ct: Any, total: Any) -> Any:
        parameters = model.parameters()
        with ag.Tape() as tape:
            with ag.Tape() as inner:
                loss = total((ct * model(x)).sum())
            inner.backward(loss, record=True)
            squares: Any = 0
            for p in parameters:
                s = (p.grad * p.grad).sum()
                is_addend = s.layout is not None and s.layout["tp"] is P
                squares = squares + (cc.all_reduce(s, "tp", to=I) if is_addend else s)
                p.grad = None
        tape.backward(squares)
        return whole_gradients(model)

    expected = second(MLP(), X, CT, lambda loss: loss)

    def program() -> Any:
        to = Shard(1) if sequence else I
        model = parallelize(MLP(), {"up": Column("tp"), "down": Row("tp", to=to), "norm": Sequence("tp")})
        own = np.array_split(np.arange(5), cc.world().size)[cc.world().rank]
        if not sequence:
            return second(model, cc.from_local(X, {"tp": I}), ag.constant(CT), lambda loss: loss)
        x, ct = (cc.from_local(a[:, own], {"tp": Shard(1)}) for a in (X, CT))
        return second(model, x, ct, lambda loss: cc.all_reduce(loss, "tp", to=I))

    for found in on(3, program):
        for name, g in expected.items():
            if name == "down.bias":  # the gradients do not depend on it
                assert found[name] is None or np.abs(found[name]).max() == 0
            else:
                np.testing.assert_allclose(found[name], g, atol=1e-11, err_msg=name)


def test_forward_mode() -> None:
    t = np.random.default_rng(8).normal(size=X.shape)
    expected = ag.jvp(MLP().forward, (X,), (t,))[1]

    def program() -> Any:
        model = parallelize(MLP(), {"up": Column("tp"), "down": Row("tp")})
        x, dx = (ag.tensor(a, {"tp": I}) for a in (X, t))
        return ag.jvp(model.forward, (x,), (dx,))[1].numpy()

    for found in on(3, program):
        np.testing.assert_allclose(found, expected, atol=1e-12)


# -- what is refused ---------------------------------------------------------------------------------------------------


def column() -> Any:
    return parallelize(nn.Linear(8, 6, dtype=float, key=random.Key(1)), {"*": Column("tp")})


def row() -> Any:
    return parallelize(nn.Linear(6, 8, dtype=float, key=random.Key(1)), {"*": Row("tp")})


ROWS = np.ones((2, 6))


@pytest.mark.parametrize(("call", "says"), [
    (lambda: column()(X), "the input is V.*may hold different values[\\s\\S]*cc.from_local"),
    (lambda: column()(cc.declare_partial(X, "tp")), "the input is P.*not summed yet[\\s\\S]*all_reduce"),
    (lambda: column()(cc.shard(ag.constant(X), "tp", 2)), "its features are divided[\\s\\S]*Row\\('tp'\\)"),
    (lambda: row()(ag.constant(ROWS)), "every rank has all features[\\s\\S]*Column\\('tp'\\)"),
    (lambda: row()(cc.shard(ag.constant(ROWS), "tp", 0)), "its parts lie along dimension 0"),
    (lambda: row()(ROWS), "no parts of one value"),
])  # fmt: skip
@pytest.mark.parametrize("ranks", [1, 2])
def test_inputs_of_other_layouts(ranks: int, call: Any, says: str) -> None:
    def program() -> None:
        with pytest.raises(LayoutError, match=says):
            call()

    on(ranks, program)


def test_parts_of_other_extents_are_refused() -> None:
    """A column layer that divides by heads, and a row layer after it that does not."""

    def program() -> None:
        model = nn.Sequential(nn.Linear(8, 6, dtype=float), nn.Linear(6, 8, dtype=float))
        parallelize(model, {"0": Column("tp", unit=3), "1": Row("tp")})
        with pytest.raises((LayoutError, ShapeError), match="matmul"):
            model(ag.constant(X))

    on(4, program)


def test_a_head_that_is_cut_is_refused() -> None:
    def program() -> None:
        model = parallelize(nn.Linear(8, 36, dtype=float), {"*": Column("tp", blocks=3)})
        with pytest.raises(ShapeError, match=r"head_width=4[\s\S]*fix: Column\('tp', blocks=3, unit=4\)"):
            nn.SelfAttention(4)(model(ag.constant(X)))

    on(2, program)  # 3 heads on 2 ranks, without unit=4


def test_a_module_with_divided_parameters_is_no_sequence_module() -> None:
    def program() -> None:
        with pytest.raises(OptionError, match="'weight', which is Shard.* along 'tp'"):
            parallelize(nn.Sequential(column()), {"0": Sequence("tp")})

    on(2, program)


# -- attention by heads ------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Self-attention with any arguments of a call, from a projection, so that its input is no leaf."""

    def __init__(self, call: dict[str, Any], heads: int = 4, **options: Any):
        self.inner = nn.MultiheadAttention(8, heads, batch_first=True, dtype=float, key=random.Key(3), **options)
        if self.inner.in_proj_bias is not None:
            self.inner.in_proj_bias.data = np.linspace(-1, 1, 24)
            self.inner.out_proj.bias.data = np.linspace(1, 2, 8)
        self.call = call

    def forward(self, x: Any) -> Any:
        given = {name: f(x) for name, f in self.call.items() if callable(f)}
        y, weights = self.inner(x, **{**self.call, **given})
        return y if weights is None else y + weights.sum()


CALLS: dict[str, dict[str, Any]] = {
    "fused": {"need_weights": False, "is_causal": True},
    "weights": {"need_weights": True},
    "cross": {"need_weights": False, "key": lambda x: x * 2.0, "value": lambda x: x + 1.0},
    "cross, one key": {"need_weights": False, "key": lambda x: x * 2.0},
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("ranks", "options"), [
    (1, {}), (2, {"bias": False}), (3, {"rotary": True}), (4, {"dropout": 0.4}),
])  # fmt: skip
def test_attention_by_heads(ranks: int, options: dict[str, Any], call: str) -> None:
    """4 heads: on 3 ranks one has two. The mask of dropout on its weights is that of one process."""

    def seeded(model: Any) -> Any:
        random.seed(3)
        return model

    expected = serial(seeded(Attention(CALLS[call], **options)))
    program = lambda: divided(seeded(Attention(CALLS[call], **options)), {"inner": Heads("tp")}, False)
    for found in on(ranks, program):
        assert_same(found, expected)


def test_attention_by_heads_on_parts_of_the_sequence_and_without_a_head() -> None:
    call = {"need_weights": False, "is_causal": True}
    expected = serial(Attention(call, heads=2))
    for found in on(3, lambda: divided(Attention(call, heads=2), {"inner": Heads("tp", to=Shard(1))}, True)):
        assert_same(found, expected)


@STREAMS
def test_an_encoder_layer(sequence: bool) -> None:
    """The layer of torch's name, its dropout included."""

    def model() -> Any:
        random.seed(4)
        return nn.TransformerEncoderLayer(8, 4, 12, dropout=0.3, batch_first=True, dtype=float)

    to = Shard(1) if sequence else I
    plan = {"self_attn": Heads("tp", to=to), "linear1": Column("tp"), "linear2": Row("tp", to=to),
            "norm*": Sequence("tp")}  # fmt: skip
    expected = serial(model())
    for found in on(2, lambda: divided(model(), plan, sequence)):
        assert_same(found, expected)


def test_heads_is_no_style_of_bare_attention() -> None:
    def program() -> None:
        with pytest.raises(TypeError, match="no style for it: Column"):
            parallelize(nn.Sequential(nn.SelfAttention(4)), {"0": Heads("tp")})
        with pytest.raises(TypeError, match="is a Linear; needed: an nn.MultiheadAttention"):
            parallelize(nn.Linear(4, 4), {"*": Heads("tp")})

    on(1, program)


# -- the optimizer's boundary ------------------------------------------------------------------------------------------


def test_a_gradient_that_was_never_summed_is_refused() -> None:
    """Megatron's f left out behind the label's back: the gradient of x is Partial, and x may not take it."""

    def program() -> None:
        w = ag.Parameter(X[0], name="w")
        model = column()
        with ag.Tape() as tape:
            loss = cc.all_reduce((model(cc.cast(w, "tp", to=R)) ** 2).sum(), "tp", to=I)
        tape.backward(loss)
        assert w.grad.layout["tp"] is I
        w.grad = None
        with pytest.raises(LayoutError, match="Partial"):
            w.grad = cc.declare_partial(ag.tensor(X[0], {"tp": V}), "tp")
        optim.SGD([w, *model.parameters()], lr=0.1).step()

    on(2, program)
