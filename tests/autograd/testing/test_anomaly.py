"""`detect_anomaly`: the first NaN or infinity is named where it is made, and writes through older views are found."""

from __future__ import annotations

import gc
import inspect
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn, ops
from autograd.engine import events
from autograd.engine.primitive import op, registry
from autograd.layouts.inference import broadcast

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def here(back: int = 0) -> str:
    """This line (or one some lines up), as errors show it."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return f"test_anomaly.py:{frame.f_back.f_lineno - back}"


def planted(function: Any, rule: Any) -> Any:
    """An operation of one operand with a fault of the test's choice; it leaves the registry at once."""
    made = op("planted", "N", function, rule, saves="0", dims=broadcast, operands="x")
    del registry["planted"]
    return made


# -- values that are not finite --------------------------------------------------------------------------------------


def test_the_operation_that_makes_the_first_nan() -> None:
    x = ag.Parameter([[1.0, 4.0], [-9.0, 0.25]])
    with ag.detect_anomaly(), ag.Tape():
        y = x * 2.0
        with pytest.raises(ag.AnomalyError) as error:
            y = np.sqrt(y) + 1.0
        line = here(1)
    text = str(error.value)
    shown = "sqrt(x: f64[2,2]) made nan: 1 of 4 elements, first [1, 0]\n  operands there: x = -18.0"
    assert text.startswith(shown), text
    assert text.endswith(f"at {line}")


@pytest.mark.parametrize(("name", "f", "made"), [
    ("log", lambda x: np.log(x), "-inf"), ("divide", lambda x: 1.0 / x, "inf"),
    ("exp", lambda x: np.exp(x + 1e4), "inf"), ("multiply", lambda x: (x + 1e300) * 1e300, "inf"),
    ("power", lambda x: x**-1.5, "inf"), ("divide", lambda x: x / x, "nan"),
])  # fmt: skip
def test_infinities_and_nans_of_every_making(name: str, f: Callable[[Any], Any], made: str) -> None:
    x = ag.Parameter([0.0, 2.0])
    for recording in (True, False):
        with ag.detect_anomaly():
            with pytest.raises(ag.AnomalyError, match=rf"{name}\(.*\) made {made}: "):
                if recording:
                    with ag.Tape():
                        f(x)
                else:
                    f(x)


def test_nothing_is_said_of_infinities_that_were_there_or_are_not_asked_for() -> None:
    mask = numpy.array([0.0, -numpy.inf])
    x = ag.Parameter([1.0, 2.0])
    with ag.detect_anomaly():
        with ag.Tape() as tape:
            loss = (ops.softmax(x + mask) * numpy.array([1.0, 2.0])).sum()
        tape.backward(loss)
        with ag.detect_anomaly(), pytest.raises(ag.AnomalyError, match="made nan"):
            ag.tensor(mask) - mask
    with ag.detect_anomaly(infinities=False):
        assert numpy.isinf(np.log(ag.tensor([0.0])).numpy()).all()
        with pytest.raises(ag.AnomalyError, match="made nan"):
            np.log(ag.tensor([-1.0]))


def test_a_nan_that_came_with_a_leaf() -> None:
    x = ag.Parameter([1.0, numpy.nan])
    with ag.detect_anomaly(), ag.Tape():
        with pytest.raises(ag.AnomalyError, match=r"operand x of multiply\(.*\) contains nan: 1 of 2 elements, f"):
            x * 2.0


def test_the_adjoint_that_makes_the_first_nan() -> None:
    """sqrt at 0 is finite, its derivative is not; and 0 times that is a nan, further up."""
    x = ag.Parameter([0.0, 4.0])
    with ag.detect_anomaly():
        with ag.Tape() as tape:
            y = np.sqrt(x * 1.0)
            line = here(1)
            loss = (y * 0.0).sum()
        with pytest.raises(ag.AnomalyError) as error:
            tape.backward(loss)
    text = str(error.value)
    assert text.startswith("the adjoint of sqrt made nan in the cotangent of x, f64[2]: 1 of 2 elements, first [0]")
    assert error.value.reason.endswith(f"sqrt was recorded at {line}")


def test_a_planted_rule_that_divides_by_zero() -> None:
    bad = planted(lambda x: x * x, lambda ct, y, x: ct * (2 * x) * (x / x))
    x = ag.Parameter([1.0, 0.0])
    for order in (1, 2):
        with ag.detect_anomaly(), ag.Tape() as tape:
            if order == 1:
                loss = bad(x).sum()
                line = here(1)
                with pytest.raises(ag.AnomalyError, match=f"the adjoint of planted made nan(?s:.*){re.escape(line)}"):
                    tape.backward(loss)
            else:  # the sweep is recorded, so its own operations are looked at
                with pytest.raises(ag.AnomalyError, match=r"(?s)divide\(.* made nan.*in the adjoint of planted, recor"):
                    ag.grad(lambda z: (ag.grad(lambda w: bad(w).sum())(z) ** 2).sum())(x)


def test_an_adjoint_that_raised_is_not_named_for_what_comes_later() -> None:
    def rule(ct: Any, y: Any, x: Any) -> Any:
        raise RuntimeError("on purpose")

    bad = planted(lambda x: x * x, rule)
    x = ag.Parameter([1.0, 0.0])
    with ag.detect_anomaly():
        with pytest.raises(RuntimeError, match="on purpose"), ag.Tape() as tape:
            tape.backward(bad(x).sum())
        with pytest.raises(ag.AnomalyError, match="made -inf") as error:
            np.log(x)
    assert "in the adjoint of" not in str(error.value)


def test_a_cotangent_that_is_not_finite_from_the_start() -> None:
    x = ag.Parameter([1.0, 2.0])
    with ag.detect_anomaly():
        with ag.Tape() as tape:
            y = x * 2.0
        with pytest.raises(ag.AnomalyError, match="the cotangent of multiply, given to backward"):
            tape.backward(y, numpy.array([1.0, numpy.nan]))


def test_a_model_names_the_line_of_the_program_not_the_modules() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with ag.detect_anomaly(), ag.Tape():
        with pytest.raises(ag.AnomalyError) as error:
            model(ag.tensor(numpy.array([[1e38, 1e38]], "float32")) * 1e30)
        line = here(1)
    assert str(error.value).endswith(f"at {line}")


# -- writes ----------------------------------------------------------------------------------------------------------


def test_a_write_through_an_older_view() -> None:
    a = numpy.ones((2, 3))
    view = a[1]
    w = ag.Parameter([1.0, 2.0, 3.0])
    for watched in (False, True):
        with ag.detect_anomaly(writes=watched):
            with ag.Tape() as tape:
                y = (ag.tensor(a) * w).sum()
                line = here(1)
            view[0] += 1.0
            if watched:
                with pytest.raises(ag.SavedArrayError) as error:
                    tape.backward(y)
                text = str(error.value)
                assert text.startswith("operand x of multiply, f64[2,3], was written to after the tape had saved it")
                assert error.value.reason.endswith(f"multiply was recorded at {line}")
            else:
                tape.backward(y)  # the fault that only digests see


def test_writes_to_results_lists_of_arrays_and_arrays_kept_by_fused_rules() -> None:
    x = ag.Parameter(numpy.ones((2, 3)))
    with ag.detect_anomaly():
        with ag.Tape() as tape:
            y = np.exp(x)
            loss = (y * y).sum()
        y.array[0, 0] = 5.0  # as a kernel might that writes where it must not
        with pytest.raises(ag.SavedArrayError, match=r"operand x of multiply|the result of exp"):
            tape.backward(loss)
        with ag.Tape() as tape:
            loss = nn.cross_entropy(x, numpy.array([0, 2]), reduction="sum")
        node: Any = next(n for n in tape.recording.nodes if n is not None and isinstance(n[1], tuple))
        node[1][0][0] *= 2
        with pytest.raises(ag.SavedArrayError, match=f"the result of {node[0].name}"):
            tape.backward(loss)


def test_a_write_after_its_use_is_no_fault() -> None:
    a = numpy.ones(3)
    view = a[:]
    w = ag.Parameter([1.0, 2.0, 3.0])
    with ag.detect_anomaly():
        for _ in range(3):
            with ag.Tape() as tape:
                y = (ag.tensor(a) * w).sum()
            tape.backward(y)
            view += 1


def test_what_was_recorded_before_is_left_alone() -> None:
    x = ag.Parameter([4.0, 0.0])
    with ag.Tape() as tape:
        y = np.sqrt(x)
        with ag.detect_anomaly():
            z = (y * 2.0).sum()
            with pytest.raises(ag.AnomalyError, match="adjoint of sqrt made inf(?s:.*)detect_anomaly was not active"):
                tape.backward(z)


# -- where it runs, and what it leaves ---------------------------------------------------------------------------------


def program(mesh_size: int, fault: str) -> Callable[[], str]:
    def run() -> str:
        with cc.Mesh(dp=mesh_size), ag.detect_anomaly():
            w = ag.Parameter([0.0 if fault == "forward" else 1.0, 1.0])
            data = numpy.ones(2)
            view = data[:]
            try:
                with ag.Tape() as tape:
                    x = cc.cast(w, "dp", to=cc.R) * ag.tensor(data)
                    y = np.log(x) if fault == "forward" else np.sqrt(x)
                    loss = cc.all_reduce(y.sum(), "dp", to=cc.I)
                if fault == "write":
                    view[0] = 3.0
                tape.backward(loss)
            except (ag.AnomalyError, ag.SavedArrayError) as error:
                return str(error)
        return ""

    return run


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(("fault", "said"), [
    ("forward", r"log\(x: f64\[2\] \{dp: V\}\) made -inf"), ("write", "of multiply, .*was written to"),
])  # fmt: skip
def test_under_a_mesh_and_on_threads(ranks: int, fault: str, said: str) -> None:
    texts = cc.run(program(ranks, fault), ranks=ranks)
    for rank, text in enumerate(texts):
        assert re.search(said, text), text
        assert "test_anomaly.py:" in text
        assert ranks == 1 or f"on rank dp={rank}" in text


def test_communications_have_their_line_too() -> None:
    def run() -> str:
        with cc.Mesh(dp=2), ag.detect_anomaly():
            w = ag.Parameter([1.0, 1e308])
            with ag.Tape():
                try:
                    cc.all_reduce(cc.cast(w, "dp", to=cc.R) * ag.tensor([1.0, 1.0]), "dp", to=cc.I)
                except ag.AnomalyError as error:
                    return str(error)
        return ""

    for text in cc.run(run, ranks=2):
        assert re.search(r"all_reduce\(.* made inf: 1 of 2 elements, first \[1\](?s:.*)test_anomaly.py:", text), text


def test_a_clean_program_computes_the_same() -> None:
    x = numpy.random.default_rng(0).standard_normal((4, 3))
    found = []
    for watched in (False, True):
        ag.random.seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
        with ag.detect_anomaly() if watched else ag.scope("plain"):
            with ag.Tape() as tape:
                labels = numpy.array([0, 1, 1, 0])
                loss = nn.cross_entropy(model(ag.tensor(x.astype("float32"))), labels, reduction="sum")
            tape.backward(loss)
        found.append([p.grad.numpy() for p in model.parameters() if p.grad is not None])
    for plain, seen in zip(*found, strict=True):
        numpy.testing.assert_allclose(seen, plain, rtol=1e-6, atol=1e-7)


def test_it_leaves_nothing_behind() -> None:
    x = ag.Parameter([1.0])
    with ag.detect_anomaly():
        with ag.Tape() as tape:
            y = x * 2.0
        gone = weakref.ref(tape.recording)
        gc.disable()
        try:
            del tape, y
            assert gone() is None, "notes keep a dropped tape alive"
        finally:
            gc.enable()
    assert events.listeners == []
