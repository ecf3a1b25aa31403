"""Captured steps with optimizers of the program, whose state and numbers may be anywhere, and may change."""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import autograd as ag
from autograd import nn, optim, random
from autograd.errors import CaptureError

FACTORS = [0.9]
OUTSIDE: dict[int, Any] = {}
TARGETS: list[Any] = []


def zeros_of(optimizer: optim.Optimizer) -> list[Any]:
    return [np.zeros_like(p.numpy()) for p in optimizer.parameters]


class Moment:
    def __init__(self, m: Any):
        self.m, self.t = m, 0


class Own(optim.Optimizer):
    """Gradient descent with an average `m` of the gradients; subclasses say where it is."""

    def __init__(self, parameters: Any):
        self.before = 0.9  # an attribute may be set before those of every optimizer
        super().__init__(parameters, 0.05)
        self.begin()

    def begin(self) -> None:
        self.state: Any = None

    def update(self, i: int, p: Any, g: Any) -> None:
        p.array -= self.lr * self.average(i, g)

    def average(self, i: int, g: Any) -> Any:
        raise NotImplementedError


class InDictionary(Own):
    def begin(self) -> None:
        self.state = {}

    def average(self, i: int, g: Any) -> Any:
        if i not in self.state:
            self.state[i] = np.zeros_like(g)
        self.state[i] = 0.9 * self.state[i] + g
        return self.state[i]


class InDictionaries(Own):
    def begin(self) -> None:
        self.state = [{"m": m, "t": 0} for m in zeros_of(self)]

    def average(self, i: int, g: Any) -> Any:
        of = self.state[i]
        of["m"], of["t"] = 0.9 * of["m"] + g, of["t"] + 1
        return of["m"] / (1 - 0.9 ** of["t"])


class InPlace(Own):
    def begin(self) -> None:
        self.state = {id(p): m for p, m in zip(self.parameters, zeros_of(self), strict=True)}

    def average(self, i: int, g: Any) -> Any:
        m = self.state[id(self.parameters[i])]
        m *= 0.9
        m += g
        return m


class InList(Own):
    def begin(self) -> None:
        self.state = [None] * len(self.parameters)

    def average(self, i: int, g: Any) -> Any:
        m = np.zeros_like(g) if self.state[i] is None else self.state[i]
        self.state[i] = 0.9 * m + g
        return self.state[i]


class InPairs(Own):
    def begin(self) -> None:
        self.state = [(m, m + 1) for m in zeros_of(self)]

    def average(self, i: int, g: Any) -> Any:
        m, v = self.state[i]
        self.state[i] = m, v = 0.9 * m + g, 0.99 * v + g * g
        return m / np.sqrt(v)


class InObjects(Own):
    def begin(self) -> None:
        self.state = [Moment(m) for m in zeros_of(self)]

    def average(self, i: int, g: Any) -> Any:
        of = self.state[i]
        of.m, of.t = 0.9 * of.m + g, of.t + 1
        return of.m / of.t


class InObjectsInPlace(InObjects):
    def average(self, i: int, g: Any) -> Any:
        of = self.state[i]
        of.m *= 0.9
        of.m += g
        return of.m


class Counting(Own):
    def begin(self) -> None:
        self.t, self._m = 0, zeros_of(self)

    def average(self, i: int, g: Any) -> Any:
        self.t += i == 0
        self._m[i][...] = 0.9 * self._m[i] + g
        return self._m[i] / (1 - 0.9**self.t)


class InPrivate(Own):
    def begin(self) -> None:
        self._m = zeros_of(self)

    def average(self, i: int, g: Any) -> Any:
        self._m[i] = 0.9 * self._m[i] + g
        return self._m[i]


class InArray(Own):
    def begin(self) -> None:
        self.total = np.ones(1, np.float32)

    def average(self, i: int, g: Any) -> Any:
        self.total += 1
        return g * self.total


class InFloat(Own):
    def begin(self) -> None:
        self.norm = 0.0

    def average(self, i: int, g: Any) -> Any:
        self.norm = 0.9 * self.norm + 0.1 * float((g * g).sum())
        return g / (1 + self.norm)


class Rebound(Own):
    def update(self, i: int, p: Any, g: Any) -> None:
        p.array = p.array - self.lr * g


class OfMomentum(optim.SGD):
    """An optimizer of ringtape with a factor of its own."""

    def __init__(self, parameters: Any):
        super().__init__(parameters, lr=0.05, momentum=0.9)
        self.mine = 0.5

    def update(self, i: int, p: Any, g: Any) -> None:
        super().update(i, p, self.mine * g)


class Outside(Own):
    def average(self, i: int, g: Any) -> Any:
        OUTSIDE[i] = 0.9 * OUTSIDE.get(i, 0 * g) + g
        return OUTSIDE[i]


class OutsideInPlace(Own):
    def average(self, i: int, g: Any) -> Any:
        m = OUTSIDE.setdefault(i, np.zeros_like(g))
        m *= 0.9
        m += g
        return m


def scaled(g: Any) -> Any:
    return FACTORS[0] * g


class ByFunction(Own):
    def average(self, i: int, g: Any) -> Any:
        return scaled(g)


class InNamespace(InObjects):
    def begin(self) -> None:
        self.state = [types.SimpleNamespace(m=m, t=0) for m in zeros_of(self)]


class InOrder(InDictionary):
    def begin(self) -> None:
        self.state = OrderedDict(enumerate(zeros_of(self)))


class InCircle(InObjects):
    def begin(self) -> None:
        super().begin()
        for each in self.state:
            each.all = self.state


class WithAStep(InDictionary):
    """A step of its own, which counts, clips and takes a second step."""

    def step(self, **words: Any) -> None:
        optim.clip_grad_norm_(self.parameters, 0.5)
        super().step(keep=True)
        super().step(**words)


class WithTarget(Own):
    """Averages of the parameters, which only `update` writes."""

    def begin(self) -> None:
        TARGETS[:] = [ag.tensor(p.numpy().copy()) for p in self.parameters]

    def update(self, i: int, p: Any, g: Any) -> None:
        p.array -= self.lr * g * TARGETS[i].array
        TARGETS[i].array *= 0.9
        TARGETS[i].array += 0.1 * p.array


class Langevin(Own):
    def update(self, i: int, p: Any, g: Any) -> None:
        noise = random.normal(random.next_key("noise"), p.array.shape, dtype="float32")
        p.array -= self.lr * g + 0.01 * noise


class Decaying(Own):
    def update(self, i: int, p: Any, g: Any) -> None:
        p.array -= self.lr * g
        self.lr = self.lr * 0.99


class Policy:
    rate = 1.0


class WithPolicy(Own):
    def begin(self) -> None:
        self.policy = Policy()

    def average(self, i: int, g: Any) -> Any:
        return g * self.policy.rate


class WithNumbers(Own):
    sign = 1.0

    def begin(self) -> None:
        self.mu, self.is_on, self.rates, self.mode = 0.9, True, [0.1] * len(self.parameters), "plain"

    def average(self, i: int, g: Any) -> Any:
        g = self.before * self.rates[i] * self.mu * self.sign * g
        return g if self.is_on and self.mode == "plain" else -g


def no_change(optimizer: Any) -> None:
    pass


def set_to(name: str, value: Any) -> Callable[[Any], None]:
    return lambda optimizer: setattr(optimizer, name, value)


COMPILED = (InDictionary, InDictionaries, InPlace, InList, InObjects, InObjectsInPlace, Counting, InPrivate, InArray,
            Rebound, OfMomentum, ByFunction, WithNumbers, InNamespace, InCircle, WithPolicy)  # fmt: skip
CHANGES: dict[str, tuple[type, Callable[[Any], None]]] = {
    **{kind.__name__: (kind, no_change) for kind in (
        *COMPILED, InPairs, InOrder, InFloat, OutsideInPlace, WithAStep, WithTarget, Langevin, Decaying)},
    "a rate of NumPy": (InDictionary, set_to("lr", np.float64(0.01))),
    "a rate of NumPy, of SGD with momentum": (OfMomentum, set_to("lr", np.float32(0.01))),
    "an attribute that shadows that of a class": (WithPolicy, lambda of: set_to("rate", 0.5)(of.policy)),
    "an attribute of a class that is held": (WithPolicy, lambda of: setattr(Policy, "rate", 0.5)),
    "the method of the object": (ByFunction, set_to("update", lambda i, p, g: None)),
    "the class": (InObjects, set_to("__class__", InObjectsInPlace)),
    "no state of one": (InList, lambda of: of.state.__setitem__(1, None)),
    "a factor": (WithNumbers, set_to("mu", 0.5)),
    "a factor set before": (WithNumbers, set_to("before", 0.5)),
    "a switch": (WithNumbers, set_to("is_on", False)),
    "a text": (WithNumbers, set_to("mode", "other")),
    "a rate of one": (WithNumbers, lambda of: of.rates.__setitem__(0, 0.2)),
    "all rates": (WithNumbers, lambda of: set_to("rates", [0.3] * len(of.rates))(of)),
    "no rates": (WithNumbers, lambda of: of.rates.extend([1.0])),
    "of the class": (WithNumbers, lambda of: setattr(WithNumbers, "sign", -1.0)),
    "of the object": (WithNumbers, set_to("sign", -1.0)),
    "of a subclass": (OfMomentum, set_to("mine", 0.25)),
    "momentum": (OfMomentum, set_to("momentum", 0.5)),
    "the rate": (InDictionary, set_to("lr", 0.01)),
    "what a function names": (ByFunction, lambda of: FACTORS.__setitem__(0, 0.5)),
    "the function": (ByFunction, lambda of: globals().__setitem__("scaled", lambda g: 2 * g)),
    "the method": (ByFunction, lambda of: setattr(ByFunction, "average", lambda self, i, g: -g)),
    "cleared state": (InDictionary, lambda of: of.state.clear()),
    "other state": (InDictionaries, lambda of: InDictionaries.begin(of)),
    "state of one": (InDictionaries, lambda of: of.state[1].update(m=of.state[1]["m"] * 2)),
    "written state": (InObjects, lambda of: of.state[0].m.__imul__(2)),
    "a count": (Counting, set_to("t", 1)),
    "other arrays": (Rebound, lambda of: [set_to("array", p.array * 2)(p) for p in of.parameters]),
    "arrays in another order": (Rebound, lambda of: set_to("array", np.asfortranarray(of.parameters[0].array))(
        of.parameters[0])),
    "no parameter's gradient": (InDictionaries, lambda of: set_to("requires_grad", False)(of.parameters[1])),
}  # fmt: skip


KEPT = scaled, ByFunction.average


def begin_anew() -> None:
    globals()["scaled"], ByFunction.average = KEPT  # type: ignore[method-assign]
    WithNumbers.sign, Policy.rate, FACTORS[0] = 1.0, 1.0, 0.9
    OUTSIDE.clear()


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    begin_anew()


def run(name: str, is_captured: bool, at: int, calls: int = 24, verify: bool = False) -> tuple[list[Any], Any]:
    """What each of some calls leaves, with a change before one of them."""
    kind, change = CHANGES[name]
    begin_anew()
    ag.random.seed(0)
    drawn = np.random.default_rng(0)
    batches = [(drawn.standard_normal((8, 6)).astype("f4"), drawn.integers(0, 3, 8)) for _ in range(3)]
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = kind(model.parameters())

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = nn.cross_entropy(model(x), y)
        tape.backward(loss)
        optimizer.step()
        return loss

    made: Any = ag.capture(step, verify=verify) if is_captured else step
    found = []
    for i in range(calls):
        if i == at:
            change(optimizer)
        x, y = batches[i % 3]
        loss = made(ag.tensor(x), ag.tensor(y))
        found.append([x.numpy().tobytes() for x in (loss, *optimizer.parameters)])
    return found, made


@pytest.mark.parametrize("at", [3, 9])
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.filterwarnings("ignore")
def test_a_captured_step_has_the_bits_of_the_step(name: str, at: int) -> None:
    needed, _ = run(name, False, at)
    found, made = run(name, True, at)
    assert [i for i, (a, b) in enumerate(zip(found, needed, strict=True)) if a != b] == []
    assert made.replays >= 8


@pytest.mark.parametrize("kind", [WithTarget, OutsideInPlace, InObjects, Langevin, WithAStep])
def test_the_comparison_gives_back_what_an_update_writes(kind: type) -> None:
    needed, _ = run(kind.__name__, False, at=0)
    assert run(kind.__name__, True, at=0, verify=True)[0] == needed


@pytest.mark.parametrize("kind", COMPILED)
def test_the_updates_are_part_of_the_program(kind: type) -> None:
    _, made = run(kind.__name__, True, at=0)
    assert "stays a call of Python" not in str(made) and made._last.program.misses == 0


def test_state_outside_that_becomes_another_object_is_refused() -> None:
    CHANGES["Outside"] = Outside, no_change
    try:
        with pytest.raises(CaptureError, match=r"OUTSIDE\[0\] was float32\[6, 5\]"):
            run("Outside", True, at=0)
    finally:
        del CHANGES["Outside"]


@pytest.mark.parametrize("kind", [InDictionary, InObjects, Rebound])
def test_arrays_that_the_step_replaces_stay_what_they_were(kind: type) -> None:
    """Who keeps the state of some call, as that with the least loss, keeps it."""
    kept: list[Any] = []

    def keep(optimizer: Any) -> None:
        arrays = [p.array for p in optimizer.parameters] if kind is Rebound else []
        for x in () if kind is Rebound else optimizer.state.values() if kind is InDictionary else optimizer.state:
            arrays.append(getattr(x, "m", x))
        kept[:] = [(x, x.copy()) for x in arrays]

    CHANGES["kept"] = kind, keep
    try:
        run("kept", True, at=12)
    finally:
        del CHANGES["kept"]
    assert kept and all((x == copy).all() for x, copy in kept)


LARGE_BATCH: dict[str, Callable[[Any], Any]] = {
    "LARS": lambda ps: optim.LARS(ps, 0.5, trust=0.05),
    "LARS without decay": lambda ps: optim.LARS(ps, lambda n: 0.5 / (1 + n), weight_decay=0.0, eps=0.0),
    "LAMB": lambda ps: optim.LAMB(ps, 0.01),
    "LAMB in groups": lambda ps: optim.LAMB([{"params": ps[:2], "lr": 0.02}, {"params": ps[2:]}], 0.01),
}


@pytest.mark.parametrize("name", LARGE_BATCH)
@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
def test_norms_of_parameters_are_compiled(name: str) -> None:
    """Norms of more elements than one part has, of zeros, and of what is not finite."""

    def run(wrap: Callable[[Any], Any]) -> tuple[list[Any], Any]:
        ag.random.seed(1)
        model = nn.Sequential(nn.Linear(5, 2000), nn.Tanh(), nn.Linear(2000, 3))
        model[2].bias.data = np.zeros(3, "float32")
        optimizer = LARGE_BATCH[name](model.parameters())

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = (model(x) ** 2).sum()
            tape.backward(loss)
            optimizer.step()
            return loss

        do, found = wrap(step), []
        for i in range(14):
            x = np.random.default_rng(i).standard_normal((6, 5)).astype("float32")
            loss = do(x * np.float32({7: 0.0, 8: 1e-30, 13: np.inf}.get(i, 1.0)))
            found.append((loss.numpy().tobytes(), [p.data.tobytes() for p in model.parameters()]))
        return found, do

    found, do = run(ag.capture)
    assert found == run(lambda step: step)[0]
    assert do.replays == 10 and "of Python:" not in str(do) and "one by one" not in str(do), str(do)


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
def test_a_step_with_master_weights_is_compiled() -> None:
    """Gradients of a step overflow, and those of another one vanish."""

    def run(wrap: Callable[[Any], Any]) -> tuple[list[Any], Any]:
        ag.random.seed(2)
        model = nn.Sequential(*[nn.Linear(5, 5, dtype=np.float16) for _ in range(2)])
        scaler = optim.LossScaler(2.0**8, growth_interval=4)
        optimizer = optim.MasterWeights(optim.Adam, model.parameters(), lr=0.01, scaler=scaler)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = optimizer.scale((model(x.astype(np.float16)).astype(np.float32) ** 2).sum())
            tape.backward(loss)
            return loss, optimizer.step()

        do, found = wrap(step), []
        for i in range(14):
            x = np.random.default_rng(i).standard_normal((6, 5)).astype("float32") * {6: 1e4, 9: 1e-6}.get(i, 1.0)
            loss, updated = do(ag.tensor(x.astype("float32")))
            arrays = [p.data.tobytes() for p in (*model.parameters(), *optimizer.parameters)]
            found.append((loss.numpy().tobytes(), bool(updated), scaler.value, optimizer.skipped, arrays))
        return found, do

    found, do = run(ag.capture)
    assert found == run(lambda step: step)[0] and not all(each[1] for each in found)
    whys = [line for line in str(do).splitlines() if "of Python:" in line]
    assert do.replays == 10 and "compiled" in str(do) or "calls of NumPy" in str(do), str(do)
    others = [line for line in whys if not any(name in line for name in ("zero_grad", ".scale", ".step"))]
    assert not others, others
