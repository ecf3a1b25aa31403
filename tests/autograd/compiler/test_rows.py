"""Updates of tables: only the rows that a step names are passed over, where all others keep their bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
from autograd import nn, optim
from autograd.compiler import rows
from autograd.compiler.machine import is_available

from .running import same

pytestmark = pytest.mark.skipif(not is_available(), reason="llvmlite is missing, or RINGTAPE_COMPILED=0")

ROWS, COLUMNS = 2_000, 20
SPECIAL = numpy.array([0.0, -0.0, numpy.inf, -numpy.inf, numpy.nan, 1e-45, -1e-45, 3e38], "float32")

Step = Callable[..., Any]
LOSSES: dict[str, Step] = {
    "rows": lambda table, a, b: (table[b] ** 2).sum(),
    "rows of two indices": lambda table, a, b: (table[a] * table[b]).sum(),
    "rows of an index of two dimensions": lambda table, a, b: (nn.embedding(a.reshape(6, 5), table) ** 2).mean(),
    "a sum of rows": lambda table, a, b: (table[b].sum(0) ** 2).sum(),
}
RATES = {"plus": 0.1, "zero": 0.0, "minus": -0.1, "minus zero": -0.0, "infinite": float("inf"), "NaN": float("nan")}


class AnyRate(optim.SGD):
    """SGD with rates that it would refuse."""

    def _set_rates(self) -> None:
        pass


def indices(i: int) -> tuple[Any, Any]:
    """Places of the rows 0 to 1,499, some twice and some by two names; the special rows come later."""
    random = numpy.random.default_rng(i)
    a, b = random.integers(0, 1_500, 30), random.integers(0, 1_500, 30)
    a[:4], b[:3] = a[4:8], a[1:4]
    b[9] = b[10] - ROWS
    return a, b


def training(loss: Step, make: Callable[[Any], Any]) -> tuple[Any, Any, Step]:
    table = ag.Parameter(numpy.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype("float32"))
    table.array[1_500 : 1_500 + len(SPECIAL)] = SPECIAL[:, None]
    optimizer = make([table])

    def step(a: Any, b: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            value = loss(table, a, b)
        tape.backward(value)
        optimizer.step()
        return value

    return table, optimizer, step


def differs(loss: Step, make: Callable[[Any], Any], rates: list[float], least: int = 12) -> tuple[str, Any]:
    """The first call after which the captured step has left other bits, and the captured step."""
    (table, optimizer, step), (other, of_other, plain) = training(loss, make), training(loss, make)
    do = ag.capture(step, verify=False)
    with numpy.errstate(all="ignore"):
        for i in range(least + len(rates)):
            if i >= least:
                optimizer.lr = of_other.lr = rates[i - least]
            found, needed = do(*indices(i)), plain(*indices(i))
            pairs = (found, needed), (table.array, other.array), (table.grad, other.grad)
            if not all(same(numpy.asarray(p), numpy.asarray(q)) for p, q in pairs):
                return f"call {i}", do
    return "", do


def of_rows(do: Any) -> list[Any]:
    return [group for group in do._last.program.program.plan.groups if group.rows is not None]


@pytest.mark.parametrize("name", LOSSES)
def test_the_named_rows_are_updated(name: str) -> None:
    found, do = differs(LOSSES[name], lambda ps: optim.SGD(ps, 0.1), [])
    assert not found
    assert len(of_rows(do)) == 1, do.explain()


@pytest.mark.parametrize("rate", RATES)
def test_a_rate_that_would_change_other_rows_has_all_updated(rate: str) -> None:
    found, do = differs(LOSSES["rows"], lambda ps: AnyRate(ps, 0.1), [RATES[rate]])
    assert not found and of_rows(do)


@pytest.mark.parametrize("rate", ["minus", "minus zero", "infinite", "NaN"])
def test_without_the_question_for_the_rate_it_is_wrong(rate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = rows.rows_of
    monkeypatch.setattr(
        "autograd.compiler.plan.rows_of", lambda *given: (found := own(*given)) and found._replace(factors=[])
    )
    assert differs(LOSSES["rows"], lambda ps: AnyRate(ps, 0.1), [RATES[rate]])[0] == "call 12"


OTHERS: dict[str, Callable[[Any], Any]] = {
    "momentum": lambda ps: optim.SGD(ps, 0.1, 0.9), "decay": lambda ps: optim.SGD(ps, 0.1, weight_decay=0.1),
    "Adam": lambda ps: optim.Adam(ps), "RMSprop": lambda ps: optim.RMSprop(ps),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_where_all_rows_change_all_are_updated(name: str) -> None:
    found, do = differs(LOSSES["rows"], OTHERS[name], [])
    assert not found and not of_rows(do)


def test_a_row_with_several_names_is_updated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """If rows were read again after some are written, those with two names would be wrong, and the proof says so."""

    def in_turn(self: Any, nodes: Any) -> Any:
        return [*own(self, nodes), *rows._Part.writes(self)]

    own = rows._Part.copies
    monkeypatch.setattr(rows._Part, "copies", in_turn)
    found, do = differs(LOSSES["rows of two indices"], lambda ps: optim.SGD(ps, 0.1), [])
    assert not found and "another value" in do._last.why  # the step is replayed by its rows


def test_a_gradient_that_is_more_than_sums_of_rows_is_not_taken_for_one() -> None:
    """One to which all rows add, and one that is clipped."""

    def loss(table: Any, a: Any, b: Any) -> Any:
        return (table[a] ** 2).sum() + (table[:1_000] * 1e-3).sum()

    found, do = differs(loss, lambda ps: optim.SGD(ps, 0.1), [])
    assert not found and not of_rows(do)
    table, optimizer, step = training(LOSSES["rows"], lambda ps: optim.SGD(ps, 0.1))

    def clipped(a: Any, b: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            value = LOSSES["rows"](table, a, b)
        tape.backward(value)
        norm = optim.clip_grad_norm_([table], 1e-3)
        optimizer.step()
        return value, norm

    do = ag.capture(clipped)
    table.array[1_500:] = 1.0
    for i in range(12):
        do(*indices(i))
    assert do.replays == 8 and not of_rows(do)


def test_two_tables_of_one_shape_are_updated_by_themselves() -> None:
    random = numpy.random.default_rng(0)
    tables = [ag.Parameter(random.standard_normal((ROWS, COLUMNS)).astype("float32")) for _ in range(2)]
    optimizer = optim.SGD(tables, 0.1)

    @ag.capture
    def step(a: Any, b: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = (nn.embedding(a, tables[0]) * tables[1][b]).sum()
        tape.backward(loss)
        optimizer.step()
        return loss

    for i in range(20):
        step(*indices(i))
    assert step.replays == 16 and len(of_rows(step)) == 2
