"""Checkpoints: the same derivatives as without, in both modes and any order; random numbers; memory; what is kept."""

from __future__ import annotations

import gc
import random as pythons
import tracemalloc
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd import nn, random
from autograd.digests import is_near, projection
from autograd.engine.multi_output import Cotangents
from autograd.engine.state import state
from autograd.transforms import rematerialise

X = numpy.array([0.5, -1.0, 2.0])
A = numpy.random.default_rng(0).standard_normal((3, 3))
ORDERS = [None, *(f"{a}-over-{b}" for a in ("forward", "reverse") for b in ("forward", "reverse"))]
Wrap = Callable[[Any], Any]


def plain(f: Any) -> Any:
    return f


def close(a: Any, b: Any, tolerance: float = 1e-12) -> None:
    numpy.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def net(wrap: Wrap, weight: Any = 1.0) -> Callable[[Any], Any]:
    """Containers in and out, keywords, a closure, an argument handed through, what is no array, one inside another."""

    def inner(x: Any) -> Any:
        return np.tanh(A @ x) * x

    def body(x: Any, p: Any, *, k: Any = 1.0, note: str = "") -> Any:
        y = wrap(inner)(x * k) * p["b"][0] * weight
        return {"y": y, "s": np.sum(y * y), "x": x, "note": note, "n": 3, "none": None}

    def f(x: Any) -> Any:
        first = wrap(body)(x, {"b": [np.sin(x[0]), "text"]}, k=np.cos(x[1]), note="hello")
        assert first["note"] == "hello" and first["n"] == 3
        second = wrap(body)(first["y"] + first["x"], {"b": (first["s"], 1)}, k=0.5)
        return second["s"] + np.sum(second["y"] ** 3)

    return f


def test_first_derivatives() -> None:
    close(ag.grad(net(ag.checkpoint))(X), ag.grad(net(plain))(X))
    close(ag.deriv(net(ag.checkpoint))(X), ag.deriv(net(plain))(X))
    close(net(ag.checkpoint)(X), net(plain)(X))
    for mode in ("reverse", "forward"):
        body = lambda x: np.tanh(A @ x) * x
        close(ag.jacobian(ag.checkpoint(body), mode=mode)(X), ag.jacobian(body)(X))
    close(ag.make_jvp_reversemode(net(ag.checkpoint))(X)(X), ag.deriv(lambda t: net(plain)(X + t * X))(0.0))


@pytest.mark.parametrize("mode", ORDERS)
def test_second_derivatives(mode: str | None) -> None:
    close(ag.hessian(net(ag.checkpoint), mode=mode)(X), ag.hessian(net(plain))(X), 1e-10)

    def closed_over(z: Any, wrap: Wrap) -> Any:
        """z enters the checkpoint as a closure only; and a gradient is taken across it."""
        part = wrap(lambda x: np.sum(np.sin(x * z) * z))
        return part(X) * z + ag.grad(part)(X)[0]

    expected = ag.hessian(lambda z: closed_over(z, plain))(1.3)
    close(ag.hessian(lambda z: closed_over(z, ag.checkpoint), mode=mode)(1.3), expected)


def test_third_derivatives_and_a_loss_of_the_hessian() -> None:
    def third(wrap: Wrap) -> Any:
        return ag.grad(lambda x: np.sum(np.sin(ag.hessian(net(wrap))(x) * 0.01)))(X)

    close(third(ag.checkpoint), third(plain), 1e-9)
    cube = ag.checkpoint(lambda x: x**3)
    assert ag.grad(ag.grad(ag.grad(cube)))(2.0) == 6
    assert ag.deriv(ag.grad(ag.deriv(cube)))(2.0) == 6


def test_parameters_that_it_closes_over_or_takes_get_their_gradients() -> None:
    def gradients(wrap: Wrap) -> list[Any]:
        w, v, u = (ag.Parameter(X * k) for k in (1.0, 2.0, 3.0))
        with ag.Tape() as tape:
            y = wrap(lambda x, v: np.sum(np.tanh(x * w) * v))(ag.tensor(X), v)
            z = wrap(lambda: np.sum(w * u))() * np.sum(w)
            loss = y + z
        tape.backward(loss)
        assert w.array.flags.writeable and v.array.flags.writeable
        return [p.grad.array for p in (w, v, u)]

    for a, b in zip(gradients(ag.checkpoint), gradients(plain), strict=True):
        close(a, b)


def test_gradients_of_parameters_where_the_sweep_is_recorded() -> None:
    """A gradient penalty: the parameter is met first inside the second run."""

    def penalty(wrap: Wrap) -> Any:
        w = ag.Parameter(X)
        with ag.Tape() as outer:
            g = ag.grad(lambda x: np.sum(wrap(lambda x: np.tanh(x * w) * w)(wrap(lambda x: x * w)(x))))(ag.tensor(X))
            loss = np.sum(g * g)
        outer.backward(loss)
        assert w.grad is not None
        return w.grad.array

    close(penalty(ag.checkpoint), penalty(plain))


def test_modules() -> None:
    random.seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2))
    x = ag.tensor(numpy.ones((4, 3), "float32"))
    found = []
    for f in (model, ag.checkpoint(model)):
        for p in model.parameters():
            p.zero_grad()
        with ag.Tape() as tape:
            loss = (f(x) ** 2).sum()
        tape.backward(loss)
        found.append([p.grad.array.copy() for p in model.parameters()])
    for a, b in zip(*found, strict=True):
        close(a, b, 1e-6)


def test_random_numbers_are_replayed() -> None:
    def drop(x: Any) -> Any:
        return x * random.uniform(random.next_key("mask"), x.shape) * numpy.random.rand(3)

    def run(wrap: Wrap) -> tuple[Any, ...]:
        random.seed(3)
        numpy.random.seed(3)
        g = ag.grad(lambda x: np.sum(wrap(drop)(wrap(drop)(x)) ** 2))(X)
        return g, random.next_key("mask"), numpy.random.rand()

    with_checkpoints, without = run(ag.checkpoint), run(plain)
    close(with_checkpoints[0], without[0])
    assert with_checkpoints[1:] == without[1:]  # and afterwards nothing is drawn twice, nothing is skipped


def test_a_second_run_that_does_something_else_is_an_error() -> None:
    runs = [0]

    def fickle(x: Any) -> Any:
        runs[0] += 1
        return x[: runs[0]]

    with pytest.raises(ag.TapeError, match="second run of a checkpointed function"):
        ag.grad(lambda x: np.sum(ag.checkpoint(fickle)(x)))(X)


def test_what_cannot_be_differentiated_raises_at_the_call() -> None:
    """Not in the sweep: the first run is recorded too."""
    with ag.Tape(), pytest.raises(ag.RingtapeError):
        ag.checkpoint(lambda x: numpy.nextafter(x, x))(ag.Parameter(X))


def test_outside_a_tape_and_where_nothing_is_followed_it_is_the_function() -> None:
    runs = []
    f = ag.checkpoint(lambda x: (runs.append(1), x * 2.0)[1])
    assert f(3.0) == 6 and f.__name__ == "<lambda>" and len(runs) == 1
    with ag.Tape() as tape:
        y = f(ag.tensor([1.0]))
    assert not y.requires_grad and len(tape.recording.nodes) == 0
    w = ag.Parameter([1.0])
    with ag.Tape(), ag.no_grad():
        assert not f(w).requires_grad


def test_how_often_the_function_runs() -> None:
    """Once forward, once a sweep that has a cotangent for it, and not where none arrives."""
    runs = [0]

    def body(x: Any) -> Any:
        runs[0] += 1
        return np.sin(x)

    def f(x: Any, y: Any) -> Any:
        return np.sum(ag.checkpoint(body)(x)) + np.sum(ag.checkpoint(body)(y)) * 0.0

    ag.grad(f)(X, X)  # the second one's argument is not followed: its outputs neither
    assert runs == [3]
    runs[0] = 0
    _, pullback = ag.vjp(lambda x: (ag.checkpoint(body)(x), x * 2.0), X)
    pullback((X, X))
    pullback((X, X))
    assert runs == [3]
    pullback((None, X))
    assert runs == [3]


def test_arrays_that_it_needs_again_are_read_only_until_then() -> None:
    x, c, w = X.copy(), X.copy(), ag.Parameter(X)  # tapes of other tests may still need X
    with ag.Tape() as tape:
        loss = np.sum(ag.checkpoint(lambda x, c: w * x * c)(ag.tensor(x), c))
        with pytest.raises(ValueError, match="read-only"):
            x[0] = 3.0
        assert not w.array.flags.writeable
    tape.backward(loss)
    x[0] = 3.0
    assert w.array.flags.writeable and c.flags.writeable


def test_the_random_state_is_put_back_after_an_error() -> None:
    fail = [False]

    def f(x: Any) -> Any:
        if fail[0]:
            random.next_key("mask")
            raise KeyError("second run")
        return x * 2.0

    random.seed(1)
    with ag.Tape() as tape:
        y = np.sum(ag.checkpoint(f)(ag.Parameter(X)))
    key = random.next_key("mask")
    fail[0] = True
    with pytest.raises(KeyError):
        tape.backward(y)
    assert random.next_key("mask").name == "mask.1" and key.name == "mask.0"


# -- memory ------------------------------------------------------------------------------------------------------------


def deep(x: Any, wrap: Wrap, layers: int, per: int) -> Any:
    def segment(x: Any) -> Any:
        for _ in range(per):
            x = np.sin(x) * np.cos(x)
        return x

    for _ in range(layers // per):
        x = wrap(segment)(x)
    return np.sum(x)


def peak(wrap: Wrap, layers: int, per: int) -> int:
    x = numpy.ones(20_000)
    gradient = ag.grad(lambda x: deep(x, wrap, layers, per))
    gradient(x)
    gc.collect()
    tracemalloc.start()
    gradient(x)
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found // x.nbytes


def test_memory_of_n_layers_in_segments_of_root_n() -> None:
    """Without checkpoints about 3 arrays a layer; with them about 3 sqrt(n) of a segment and sqrt(n) kept."""
    without, segments = peak(plain, 64, 8), peak(ag.checkpoint, 64, 8)
    assert without >= 2 * 64, without
    assert segments <= 8 + 4 * 8 + 8, segments
    close(ag.grad(lambda x: deep(x, ag.checkpoint, 64, 8))(X), ag.grad(lambda x: deep(x, plain, 64, 8))(X))


def test_a_dropped_tape_frees_what_a_checkpoint_kept() -> None:
    gc.collect()
    gc.disable()
    try:
        w = ag.Parameter(X)
        with ag.Tape() as tape:
            y = ag.checkpoint(lambda x: np.tanh(x) * w)(w * 2.0)
            watched = weakref.ref(tape.recording)
        del tape, y
        assert watched() is None and w.array.flags.writeable
    finally:
        gc.enable()


# -- the checks are seen to fail ---------------------------------------------------------------------------------------


def test_planted_faults_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as m:  # random numbers are not replayed
        m.setattr(random, "set_state", lambda state: None)
        with pytest.raises(ag.TapeError, match="other values"):
            test_random_numbers_are_replayed()
        m.setattr(rematerialise, "is_near", lambda a, b: True)
        with pytest.raises(AssertionError):
            test_random_numbers_are_replayed()
    with monkeypatch.context() as m:  # nor those of generators
        m.setattr(rematerialise, "sources", lambda *roots: [])
        with pytest.raises(ag.TapeError, match="other values"):
            test_generators_are_rewound("closure")
    with monkeypatch.context() as m:  # what it closes over gets nothing
        m.setattr(rematerialise, "_imports", lambda *args: [])
        with pytest.raises(AssertionError):
            test_first_derivatives()
    pull = rematerialise._Head.pull

    def forgetful(self: Any, node: Any, ct: Any, sweep: Any) -> None:
        pull(self, node, Cotangents(dict(list(ct.found.items())[:1])), sweep)

    with monkeypatch.context() as m:  # of several outputs only one cotangent
        m.setattr(rematerialise._Head, "pull", forgetful)
        with pytest.raises(AssertionError):
            test_first_derivatives()
    with monkeypatch.context() as m:  # everything is kept after all
        m.setattr(ag.transforms, "checkpoint", plain)
        with pytest.raises(AssertionError):
            assert peak(plain, 64, 8) <= 48


# -- values besides the result ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("collects", [True, False])
def test_values_that_a_function_collects_are_passed_on_with_its_result(collects: bool) -> None:
    """They have their gradients, also from a checkpoint inside another; without a collector nothing changes."""

    def layer(x: Any) -> Any:
        y = np.tanh(x)
        if state.collected is not None:
            state.collected.append(np.sum(y * x))
        return {"y": y}

    def loss(x: Any, wrap: Wrap) -> Any:
        state.collected = found = [] if collects else None
        try:
            y = wrap(lambda x: wrap(layer)(x * 2.0)["y"])(wrap(layer)(x)["y"])
        finally:
            state.collected = None
        assert found is None or [z.shape for z in found] == [(), ()]
        return sum([np.sum(y), *(found or [])])

    for _ in range(2):
        close(ag.grad(lambda x: loss(x, ag.checkpoint))(X), ag.grad(lambda x: loss(x, plain))(X))
    close(ag.deriv(lambda t: loss(t * X, ag.checkpoint))(1.0), ag.deriv(lambda t: loss(t * X, plain))(1.0))
    close(ag.hessian(lambda x: loss(x, ag.checkpoint))(X), ag.hessian(lambda x: loss(x, plain))(X))
    if collects:  # the comparison would see it if they were lost
        assert numpy.abs(ag.grad(lambda x: loss(x, plain))(X) - ag.grad(lambda x: net_sum(x))(X)).max() > 0.1


def net_sum(x: Any) -> Any:
    return np.sum(np.tanh(2.0 * np.tanh(x)))


GLOBAL = numpy.random.default_rng(3)


class Noisy(nn.Module):
    def __init__(self, rng: Any) -> None:
        self.inside = nn.Sequential(nn.Linear(3, 3, dtype=float), Noise({"rng": [rng]}))

    def forward(self, x: Any) -> Any:
        return np.tanh(self.inside(x))


class Noise(nn.Module):
    def __init__(self, held: Any) -> None:
        self.held = held

    def forward(self, x: Any) -> Any:
        return x * self.held["rng"][0].normal(size=x.shape)


class Inherits(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * self.noise()

    def noise(self) -> Any:
        return GLOBAL.normal(size=3)


class Inherited(Inherits):
    pass


class Hidden:
    __slots__ = ("rng",)

    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def normal(self) -> Any:
        return self.rng.normal(size=3)


def scaled(draw: Callable[[], Any]) -> Callable[[Any], Any]:
    return lambda x: np.tanh(x * draw()) * x


def of_global(x: Any) -> Any:
    return np.tanh(x * [GLOBAL.normal(size=3) for _ in range(2)][1])


def of_default(rng: Any) -> Any:
    return lambda x, rng=rng: x * np.sin(x * rng.normal(size=3))


def of_keyword_default(rng: Any) -> Any:
    def f(x: Any, *, rng: Any = rng) -> Any:
        return x * np.sin(x * rng.normal(size=3))

    return f


REACHED: dict[str, Callable[[Wrap], Callable[[Any], Any]]] = {
    "closure": lambda wrap: (lambda rng: wrap(scaled(lambda: rng.normal(size=3))))(numpy.random.default_rng(1)),
    "method": lambda wrap: (lambda draw: wrap(lambda x: x * draw(size=3) * x))(numpy.random.default_rng(1).normal),
    "permutation": lambda wrap: (lambda rng: wrap(lambda x: x[rng.permutation(3)] ** 2))(numpy.random.default_rng(1)),
    "global": lambda wrap: (setattr(GLOBAL.bit_generator, "state", numpy.random.PCG64(3).state), wrap(of_global))[1],
    "global of a method": lambda wrap: (
        setattr(GLOBAL.bit_generator, "state", numpy.random.PCG64(3).state), wrap(Inherited().forward))[1],
    "argument": lambda wrap: partial(wrap(lambda x, rng: x * np.sin(x * rng.normal(size=3))),
                                     rng=numpy.random.default_rng(1)),
    "containers": lambda wrap: partial(wrap(lambda x, held: x * np.sin(x * held["a"][0].rng.normal(size=3))),
                                       held={"a": (SimpleNamespace(rng=numpy.random.default_rng(1)),)}),
    "default": lambda wrap: wrap(of_default(numpy.random.default_rng(1))),
    "keyword default": lambda wrap: wrap(of_keyword_default(numpy.random.default_rng(1))),
    "module": lambda wrap: wrap(Noisy(numpy.random.default_rng(1)).forward),
    "callable module": lambda wrap: wrap(Noisy(numpy.random.Generator(numpy.random.MT19937(1)))),
    "partial": lambda wrap: wrap(partial(lambda rng, x: x * rng.normal(size=3) * x, numpy.random.default_rng(1))),
    "RandomState": lambda wrap: (lambda rng: wrap(scaled(lambda: rng.normal(size=3))))(numpy.random.RandomState(1)),
    "Python's": lambda wrap: (lambda rng: wrap(scaled(rng.random)))(pythons.Random(1)),
    "NumPy's global": lambda wrap: (numpy.random.seed(1), wrap(scaled(lambda: numpy.random.normal(size=3))))[1],
    "Python's global": lambda wrap: (pythons.seed(1), wrap(scaled(lambda: pythons.random())))[1],
    "nested": lambda wrap: (lambda rng: wrap(
        lambda x: wrap(scaled(lambda: rng.normal(size=3)))(x) * rng.normal(size=3)))(numpy.random.default_rng(1)),
}  # fmt: skip


@pytest.mark.parametrize("name", REACHED)
def test_generators_are_rewound(name: str) -> None:
    """They used to draw other numbers in the second run, and the gradient was that of no function."""

    def found(wrap: Wrap) -> list[Any]:
        random.seed(0)
        f = REACHED[name](wrap)
        made = [ag.grad(lambda x: np.sum(f(x) * A[0]))(X), f(X)]  # the second call goes on after the first one
        g = REACHED[name](wrap)
        return [*made, ag.hessian(lambda x: np.sum(g(x) * A[1]))(X), ag.deriv(lambda t: g(X * t))(1.0)]

    for mine, right in zip(found(ag.checkpoint), found(plain), strict=True):
        close(mine, right)


def test_other_values_of_the_second_run_are_an_error_that_says_what_to_do() -> None:
    hidden, count, table = Hidden(numpy.random.default_rng(1)), [0], X.copy()

    def counted(x: Any) -> Any:
        count[0] += 1
        return x * count[0]

    def whole(x: Any) -> Any:
        return x * hidden.rng.integers(10**6, size=3)

    for f in (scaled(hidden.normal), counted, whole, lambda x: x[hidden.rng.permutation(3)]):
        with ag.Tape() as tape:
            w = ag.Parameter(X)
            y = (ag.checkpoint(f)(w) * X).sum()
        with pytest.raises(ag.TapeError, match=r"output 0 of shape \(3,\) .*\n  fix: pass the generator.*\n  or: "):
            for _ in range(5):  # a permutation may be the same one
                tape.backward(y, retain=True)
        assert w.grad is None
    with ag.Tape() as tape:
        y = ag.checkpoint(lambda x: x * table)(ag.Parameter(X)).sum()
    table += 1
    with pytest.raises(ag.TapeError, match="other values"):
        tape.backward(y)
    # the fix: the generator as an argument
    f = ag.checkpoint(lambda x, rng: x * rng.normal(size=3))
    right = numpy.random.default_rng(7).normal(size=3)
    close(ag.grad(lambda x: np.sum(f(x, numpy.random.default_rng(7))))(X), right)


def test_running_averages_count_a_batch_once() -> None:
    """The second run used to count it again."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            self.norm = nn.BatchNorm1d(3, dtype=float)
            self.register_buffer("seen", numpy.zeros(()))

        def forward(self, x: Any) -> Any:
            self.set_buffer("seen", self.seen + 1)
            return np.tanh(self.norm(x)) ** 2

    x = numpy.random.default_rng(0).standard_normal((5, 3))
    states = []
    for wrap in (plain, ag.checkpoint, lambda f: ag.checkpoint(lambda x: ag.checkpoint(f)(x))):
        model = Counting()
        f = wrap(model.forward)
        for transform in (ag.grad, ag.hessian):
            transform(lambda x, f=f: np.sum(f(x)))(x)
        states.append(model.state_dict())
    for found in states[1:]:
        for name, value in states[0].items():
            numpy.testing.assert_array_equal(found[name], value)


def test_an_error_in_the_second_run_leaves_generators_where_they_were() -> None:
    rng, fails = numpy.random.default_rng(1), [False]

    def f(x: Any) -> Any:
        y = x * rng.normal(size=3)
        if fails[0]:
            raise ZeroDivisionError
        return y

    with ag.Tape() as tape:
        y = ag.checkpoint(f)(ag.Parameter(X)).sum()
    after, fails[0] = rng.bit_generator.state, True
    with pytest.raises(ZeroDivisionError):
        tape.backward(y)
    assert rng.bit_generator.state == after


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex128", "int64", "bool"])
@pytest.mark.parametrize("n", [0, 1, 5, 4097, 20_000])
def test_a_projection_sees_what_rounding_does_not_do(dtype: str, n: int) -> None:
    rng = numpy.random.default_rng(n)
    x = (rng.integers(2, size=n) if dtype == "bool" else rng.standard_normal(n) * 3).astype(dtype)
    assert is_near(projection(x), projection(x[::-1].copy()[::-1]))
    if n and dtype[0] in "fc":
        assert is_near(projection(x), projection(x * x.dtype.type(1 + numpy.finfo(dtype).eps)))
    if n > 1:
        changed = x.copy()
        changed[n // 2] = ~x[n // 2] if dtype in ("bool", "int64") else x[n // 2] + 60
        assert not is_near(projection(x), projection(changed))
        assert not is_near(projection(x), projection(numpy.roll(x, 1)))


def _nested(x: Any) -> Any:
    """Two checkpoints, of which the inner one uses a value of the tape that the outer one is on."""
    h = np.sin(x)
    return ag.checkpoint(lambda: ag.checkpoint(lambda: (h * h * h).sum())() * 2.0)()


def test_nested_checkpoints_with_a_value_of_the_outermost_tape() -> None:
    def plain(x: Any) -> Any:
        h = np.sin(x)
        return (h * h * h).sum() * 2.0

    x, dx = numpy.array([0.3, 0.5, -1.2]), numpy.array([1.0, 3.0, 2.0])
    numpy.testing.assert_allclose(ag.grad(_nested)(x), ag.grad(plain)(x), rtol=1e-12)
    numpy.testing.assert_allclose(ag.jvp(_nested, (x,), (dx,))[1], ag.jvp(plain, (x,), (dx,))[1], rtol=1e-12)
    numpy.testing.assert_allclose(ag.hessian(_nested)(x), ag.hessian(plain)(x), rtol=1e-12, atol=1e-14)
    w = ag.Parameter(x)
    with ag.Tape() as tape:
        loss = _nested(w)
    tape.backward(loss)
    numpy.testing.assert_allclose(w.grad.numpy(), ag.grad(plain)(x), rtol=1e-12)
    assert not tape.recording.pending


def test_nested_checkpoints_with_a_value_of_another_tape() -> None:
    """Its cotangents add up for the other tape, as those of microbatches do."""
    w = ag.Parameter(numpy.array([0.3, 0.5]))
    with ag.Tape() as first:
        h = np.sin(w)
    for _ in range(2):
        with ag.Tape() as tape:
            loss = ag.checkpoint(lambda: ag.checkpoint(lambda: (h * h).sum())() * 3.0)()
        tape.backward(loss)
    (pending,) = first.recording.pending.values()
    numpy.testing.assert_allclose(pending, 12 * h.numpy(), rtol=1e-12)


# -- values that a function keeps of its first run ---------------------------------------------------------------------
def test_a_value_of_the_first_run_is_refused_where_it_is_used() -> None:
    """It would be a constant there: the gradient through it would be silently missing."""
    kept: dict[str, Any] = {}

    def cached(x: Any) -> Any:
        return np.tanh(kept.setdefault("h", np.sin(x)))

    def listed(x: Any) -> Any:
        kept["h"] = h = np.sin(x)
        return np.tanh(h)

    x = ag.Parameter([0.3, 0.5])
    refused = r"value that checkpoint\(.*cached\) computed in its first run"
    with ag.Tape() as tape:
        y = ag.checkpoint(cached)(x).sum()
    with pytest.raises(ag.TapeError, match=refused):
        tape.backward(y)
    kept.clear()
    with pytest.raises(ag.TapeError, match=refused):  # in a recorded sweep, too
        ag.grad(lambda x: ag.grad(lambda x: ag.checkpoint(cached)(x).sum())(x).sum())(numpy.ones(2))
    with pytest.raises(ag.TapeError, match=r"listed\) computed in its first run"), ag.Tape():
        ag.checkpoint(listed)(x)
        _ = kept["h"] * 2.0
    with ag.Tape() as tape:  # the second fix
        y = (ag.checkpoint(listed)(x) * ag.stop_gradient(kept["h"])).sum()
    tape.backward(y)
    assert x.grad is not None
    numpy.testing.assert_allclose(x.grad.numpy(), [
        numpy.sin(v) * numpy.cos(v) / numpy.cosh(numpy.sin(v)) ** 2 for v in (0.3, 0.5)])  # fmt: skip
