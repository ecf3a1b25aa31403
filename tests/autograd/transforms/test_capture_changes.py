"""Changes between calls of a captured step, in places that no argument names: seen, or refused, and never wrong."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
from autograd import nn, optim, random
from autograd.errors import CaptureError
from autograd.transforms.memory import Memory
from autograd.transforms.reach import Reach

Made = tuple[Callable[[Any], Any], Callable[[], Any]]
FACTOR = 2.0
NAME = "scale"
PROGRAMS: dict[str, Callable[[], Made]] = {}


def program(make: Callable[[], Made]) -> Callable[[], Made]:
    """Note a program: it makes a step, and what changes something."""
    PROGRAMS[make.__name__.replace("_", " ")] = make
    return make


class Plain:
    def __init__(self, **values: Any):
        vars(self).update(values)


def layer() -> nn.Linear:
    ag.random.seed(0)
    return nn.Linear(4, 3)


def trained(loss: Callable[[Any, Any, Any], Any]) -> tuple[Callable[[Any], Any], Any, Any]:
    """A step of training with a loss of a model, an optimizer and an array."""
    model = layer()
    opt = optim.SGD(model.parameters(), 0.1)

    def step(x: Any) -> Any:
        opt.zero_grad()
        with ag.Tape() as tape:
            found = loss(model, opt, x)
        tape.backward(found)
        opt.step()
        return found

    return step, model, opt


@program
def an_attribute_of_a_function() -> Made:
    def scaled(x: Any) -> Any:
        return x * scaled.by  # type: ignore[attr-defined]

    scaled.by = 2.0  # type: ignore[attr-defined]
    return lambda x: scaled(x), lambda: setattr(scaled, "by", 3.0)


@program
def a_method_by_a_name_that_is_put_together() -> Made:
    class Losses:
        kind, weight = "square", 2.0

        def loss_square(self, x: Any) -> Any:
            return (x * x).sum() * self.weight

        def step(self, x: Any) -> Any:
            return getattr(self, f"loss_{self.kind}")(x)

    losses = Losses()
    return losses.step, lambda: setattr(losses, "weight", 3.0)


@program
def a_path_of_a_module_by_a_sum_of_texts() -> Made:
    class Model(nn.Module):
        def __init__(self) -> None:
            self.layer, self.mode = layer(), "a"

        def forward(self, x: Any) -> Any:
            return getattr(self, "path_" + self.mode)(self.layer(x))

        def path_a(self, y: Any) -> Any:
            return y * FACTOR

    model = Model()
    return lambda x: model(x), lambda: globals().__setitem__("FACTOR", 3.0)


@program
def an_attribute_by_a_global_name() -> Made:
    of = Plain(scale=2.0)

    def step(x: Any) -> Any:
        return nn.cross_entropy(x * getattr(of, NAME), np.arange(5) % 4, reduction="sum")

    return step, lambda: setattr(of, "scale", 3.0)


@program
def the_rate_in_a_loss() -> Made:
    step, _, opt = trained(lambda model, opt, x: (model(x) ** 2).mean() * opt.lr)
    return step, lambda: setattr(opt, "lr", 0.01)


@program
def a_decision_on_the_rate() -> Made:
    step, _, opt = trained(lambda model, opt, x: (model(x) ** 2).mean() * (2.0 if opt.lr < 0.05 else 1.0))
    return step, lambda: setattr(opt, "lr", 0.01)


@program
def an_attribute_that_the_program_gives_an_optimizer() -> Made:
    step, _, opt = trained(lambda model, opt, x: (model(x) ** 2).mean() * opt.limit)
    opt.limit = 2.0
    return step, lambda: setattr(opt, "limit", 3.0)


@program
def a_rate_that_the_step_assigns_and_gives_back() -> Made:
    model = layer()
    opt = optim.SGD(model.parameters(), 0.1)

    def step(x: Any) -> Any:
        opt.zero_grad()
        with ag.Tape() as tape:
            loss = (model(x) ** 2).mean()
        tape.backward(loss)
        before, opt.lr = opt.lr, 0.5
        opt.step()
        opt.lr = before
        return loss, opt.lr

    return step, lambda: setattr(opt, "lr", 0.01)


@program
def a_step_of_an_optimizer_that_is_replaced() -> Made:
    step, _, opt = trained(lambda model, opt, x: (model(x) ** 2).mean())
    return step, lambda: setattr(opt, "step", lambda: None)


@program
def a_forward_of_a_layer_that_is_replaced() -> Made:
    model = layer()
    before = model.forward
    return lambda x: model(x), lambda: setattr(model, "forward", lambda x: before(x) * 2.0)


@program
def an_attribute_that_the_program_gives_a_layer() -> Made:
    model = layer()
    return lambda x: model(x) * getattr(model, "scale", 2.0), lambda: setattr(model, "scale", 3.0)


@program
def a_private_attribute_of_a_layer() -> Made:
    model = layer()
    model._scale = 2.0  # type: ignore[attr-defined]
    return lambda x: model(x) * model._scale, lambda: setattr(model, "_scale", 3.0)


@program
def a_number_of_a_read_only_view() -> Made:
    whole = np.full(4, 2.0)
    view = whole.view()
    view.flags.writeable = False
    return lambda x: x * float(view[0]), lambda: whole.__setitem__(0, 3.0)


@program
def a_number_of_a_masked_array() -> Made:
    masked = np.ma.masked_array([1.0, 2.0, 3.0], mask=[0, 0, 1])
    return lambda x: x * float(masked.mean()), lambda: masked.__setitem__(0, np.ma.masked)


@program
def a_quotient_by_a_count_of_one() -> Made:
    count = np.array(1)  # with the other value 0 the step raises
    return lambda x: x.sum() * (1.0 / int(count)), lambda: count.__setitem__((), 2)


@program
def a_number_of_a_constant_that_gets_another_array() -> Made:
    constant = ag.tensor(np.full((5, 4), 2.0))
    return lambda x: x * float(constant.array[0, 0]), lambda: setattr(constant, "array", np.full((5, 4), 3.0))


@program
def a_value_that_was_computed_before() -> Made:
    with ag.no_grad():
        features = ag.tensor(np.ones(4)) * 2.0
    return lambda x: x * features, lambda: setattr(features, "array", np.full(4, 3.0))


@program
def a_value_in_a_list() -> Made:
    of = Plain(values=[ag.tensor(np.ones(4)) * 2.0])
    return lambda x: x * of.values[0], lambda: of.values[0].array.__imul__(2)


@program
def a_decision_on_a_value() -> Made:
    limit = ag.tensor(np.zeros(1))
    return lambda x: x * 2.0 if ag.numpy.sum(x) > limit else x * 3.0, lambda: limit.array.__iadd__(100)


@program
def a_choice_by_one_comparison() -> Made:
    limit = ag.tensor(np.zeros(1))
    return lambda x: ag.numpy.where(ag.numpy.sum(x) > limit[0], x, -x), lambda: limit.array.__iadd__(100)


REFUSED: dict[str, Callable[[], Callable[[Any], Any]]] = {}


def refused(make: Callable[[], Callable[[Any], Any]]) -> Callable[[], Callable[[Any], Any]]:
    REFUSED[make.__name__.replace("_", " ")] = make
    return make


@refused
def a_count_in_an_attribute_of_a_function() -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        step.calls += 1  # type: ignore[attr-defined]
        return x * 2.0

    step.calls = 0  # type: ignore[attr-defined]
    return step


@refused
def a_number_of_a_parameter() -> Callable[[Any], Any]:
    w = ag.Parameter(np.ones((5, 4)))
    return lambda x: (x * w).sum() / float(np.abs(w.array).max())


@refused
def a_write_to_a_result_of_an_operation() -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        y = x * 2.0
        y.array[0] = 0
        return y * 3.0

    return step


def drawn(i: int) -> Any:
    return ag.tensor(np.random.default_rng(i).standard_normal((5, 4)))


def bits(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(map(bits, x))
    return getattr(x, "array", np.asarray(x)).tobytes()


def left_by(make: Callable[[], Made], is_captured: bool, at: int, calls: int = 22) -> list[Any]:
    globals()["FACTOR"] = 2.0
    step, change = make()
    do = ag.capture(step, verify=False) if is_captured else step
    found = []
    for i in range(calls):
        if i == at:
            change()
        found.append(bits(do(drawn(i))))
    return found


@pytest.mark.parametrize("at", [1, 9, 13])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_change_is_seen(name: str, at: int) -> None:
    assert left_by(PROGRAMS[name], True, at) == left_by(PROGRAMS[name], False, at)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_replay_would_not_repeat_is_refused(name: str) -> None:
    do = ag.capture(REFUSED[name]())
    with pytest.raises(CaptureError, match="capture: the "):
        for i in range(6):
            do(drawn(i))


@pytest.mark.parametrize("kind", ["an evaluation", "a tape in a ring", "a tape that is kept", "no training"])
def test_parameters_are_as_before_after_a_proof_whose_tape_lives(kind: str) -> None:
    """The proof's own tape still makes them read-only when they are given back."""
    found = []
    for is_captured in (False, True):
        model = layer()
        opt = optim.SGD(model.parameters(), 0.0)

        def evaluate(x: Any, model: Any = model, opt: Any = opt) -> Any:
            with ag.Tape() as tape:
                loss = (model(x) ** 2).mean()
            if kind == "a tape that is kept":
                tape.backward(loss, retain=True)
            elif kind == "a tape in a ring":  # it lives until garbage is collected
                ring: list[Any] = [tape, loss]
                ring.append(ring)
            elif kind == "no training" and opt.lr:
                tape.backward(loss)
            return loss

        do = ag.capture(evaluate) if is_captured else evaluate
        gc.disable()
        try:
            losses = [bits(do(drawn(i).astype("float32"))) for i in range(8)]
        finally:
            gc.enable()
        found.append([*losses, *(bits(x) for x in model.parameters())])
    assert found[0] == found[1]


def test_gradients_that_a_step_returns_are_those_of_the_leaves() -> None:
    """In the call that compares, too: the program may scale them in place before it calls the optimizer."""
    found = []
    for is_captured in (False, True):
        model = layer()
        opt = optim.SGD(model.parameters(), 0.5)

        def step(x: Any, model: Any = model, opt: Any = opt) -> Any:
            opt.zero_grad()
            with ag.Tape() as tape:
                loss = (model(x) ** 2).sum()
            tape.backward(loss)
            return loss, [p.grad for p in model.parameters()]

        do = ag.capture(step) if is_captured else step
        losses = []
        for i in range(24):
            loss, gradients = do(drawn(i).astype("float32"))
            for g in gradients:
                g.array *= 0.01
            opt.step()
            losses.append(bits(loss))
        found.append(losses)
    assert found[0] == found[1]


def test_other_threads_see_no_traced_parameters() -> None:
    step, model, _ = trained(lambda model, opt, x: (model(x) ** 2).mean())
    do, stops, kinds = ag.capture(step), threading.Event(), set[type]()

    def look() -> None:
        while not stops.is_set():
            kinds.update(type(p.array) for p in model.parameters())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for i in range(12):
            do(drawn(i).astype("float32"))
    finally:
        stops.set()
        thread.join()
    assert kinds == {np.ndarray}


def test_a_comparison_ignores_the_sign_of_nan() -> None:
    """NumPy's own loops give a NaN of another sign in the rest of a vector."""
    x = np.array([np.nan, -np.nan, 1.0, np.inf] * 5, np.float32)
    do = ag.capture(lambda x: nn.silu(x) * ag.tensor(x.array))
    for _ in range(40):
        do(ag.tensor(x))
    assert do.replays == 36


def test_names_of_parameters_may_be_given_between_two_recordings() -> None:
    step, model, _ = trained(lambda model, opt, x: (model(x) ** 2).mean())
    do = ag.capture(step)
    for i in range(8):
        if i == 3:
            model.state_dict()
        do(drawn(i).astype("float32"))
    assert do.replays == 4


def test_a_decision_on_the_loss_has_a_program_for_each_result() -> None:
    """The gradients have been removed in the step, so that it may run anew where it decides otherwise."""
    found = []
    for is_captured in (False, True):
        w = ag.Parameter(np.ones((5, 4)))
        opt = optim.SGD([w], 0.01)

        def step(x: Any, w: Any = w, opt: Any = opt) -> Any:
            opt.zero_grad()
            with ag.Tape() as tape:
                loss = ((w - x) ** 2).sum()
            tape.backward(loss)
            if loss > 30.0:
                opt.step()
            return loss

        do: Any = ag.capture(step) if is_captured else step
        found.append([[bits(do(drawn(i))), bits(w), bits(w.grad)] for i in range(40)])
    assert found[0] == found[1]
    assert do.departures <= 8 and do.replays >= 28
    assert "stays a call of Python" not in str(do)


def test_arithmetic_of_numpy_with_a_draw_is_refused_with_its_fix() -> None:
    def step(x: Any, key: Any) -> Any:
        return (x + 0.1 * random.normal(key, x.shape)).sum()

    def mended(x: Any, key: Any) -> Any:
        return (x + 0.1 * ag.tensor(random.normal(key, x.shape))).sum()

    do, mended_step = ag.capture(step), ag.capture(mended)
    with pytest.raises(CaptureError, match=r"or:  ag.tensor\(draw\), before"):
        for i in range(6):
            do(drawn(i), random.Key(0).at(i))
    for i in range(9):
        args = drawn(i), random.Key(0).at(i)
        assert bits(mended_step(*args)) == bits(step(*args))
    assert mended_step.replays == 5


@pytest.mark.parametrize("what", ["an average of the weights", "labels in a Tensor", "a frozen layer that is loaded"])
def test_a_leaf_that_gets_another_array_in_each_call_is_read_anew(what: str) -> None:
    found = []
    for is_captured in (False, True):
        model, target, labels = layer(), layer(), ag.tensor(np.zeros((5, 3), np.float32))
        opt = optim.Adam(model.parameters(), 0.01)

        def step(x: Any, model: Any = model, target: Any = target, labels: Any = labels, opt: Any = opt) -> Any:
            opt.zero_grad()
            with ag.no_grad():
                y = target(x) + labels
            with ag.Tape() as tape:
                loss = ((model(x) - y) ** 2).mean()
            tape.backward(loss)
            opt.step()
            return loss

        do: Any = ag.capture(step) if is_captured else step
        losses = []
        for i in range(60):
            losses.append(bits(do(drawn(i).astype("float32"))))
            if what == "labels in a Tensor":
                labels.data = np.full((5, 3), float(i), np.float32)
            else:
                for a, w in zip(target.parameters(), model.parameters(), strict=True):
                    a.data = a.data * 2 if what.startswith("a frozen") and i % 20 == 0 else 0.9 * a.data + 0.1 * w.data
        found.append(losses)
    assert found[0] == found[1]
    plan = do._last
    assert plan.fits() and plan.program.misses <= 1


def test_an_array_that_a_tape_keeps_read_only_is_given_back() -> None:
    w = ag.Parameter(np.ones(4))
    memory = Memory(Reach([("w", w)]))
    w.array *= 2
    with ag.Tape() as tape:
        loss = (w * w).sum()
    memory.give_back()
    assert (w.array == 1).all() and not w.array.flags.writeable
    tape.backward(loss)
    assert w.array.flags.writeable
