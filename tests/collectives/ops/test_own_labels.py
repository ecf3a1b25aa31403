"""Lies in the declaration of a user's collective: the check finds each, and the first sweep those that labels show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from collectives import I, P, R, V
from collectives.declaration.call import Call
from collectives.declaration.collective import Collective, collectives

pytestmark = pytest.mark.usefixtures("registry_as_it_was")
Rule = Callable[[Any, Call], Any]


def summed(x: Any, call: Call) -> Any:
    return call.group.all_reduce(np.ascontiguousarray(x).reshape(-1)).reshape(x.shape)


def kept(x: Any, call: Call) -> Any:
    return np.array(x)


class Adjoint(NamedTuple):
    """The adjoint's own collective: its labels and its forward rule; `call` maps the call that it gets."""

    takes: Any
    gives: Any
    rule: Rule
    call: Callable[[Call], Call] = lambda call: call


class Lie(NamedTuple):
    """A sum over the ranks, from P, that is declared to give `gives`."""

    gives: Any
    adjoint: Adjoint
    is_seen_by_labels: bool
    takes: Any = P
    rule: Rule = summed


def of_the_first(x: Any, call: Call) -> Any:
    return call.group.broadcast(np.array(x).reshape(-1), 0).reshape(x.shape)


def by_its_call(x: Any, call: Call) -> Any:
    return summed(x, call) if call.to is R else kept(x, call)


TRUE = {"P to R": Lie(R, Adjoint(P, R, summed), False), "P to I": Lie(I, Adjoint(I, R, kept), False)}
LIES = {
    "gives=I, and the adjoint sums": Lie(I, Adjoint(P, R, summed), True),
    "gives=I, and the adjoint sums, with labels that fit": Lie(I, Adjoint(I, R, summed), False),
    "gives=R, and the adjoint forgets the sum": Lie(R, Adjoint(I, R, kept), True),
    "gives=R, and the adjoint forgets the sum, with labels that fit": Lie(R, Adjoint(P, R, kept), False),
    "takes=I, and the adjoint does not sum": Lie(V, Adjoint(V, V, kept), True, takes=I, rule=kept),
    "sums twice": Lie(R, Adjoint(P, R, lambda x, call: summed(summed(x, call), call)), False),
    "the adjoint of another rank": Lie(V, Adjoint(V, V, of_the_first), False, takes=V, rule=kept),
    "a factor p": Lie(R, Adjoint(P, R, lambda x, call: summed(x, call) * call.group.size), False),
    "a wrong shape": Lie(R, Adjoint(P, R, lambda x, call: summed(x[:1], call)), True),
    "the adjoint ignores the call": Lie(R, Adjoint(P, R, by_its_call, lambda call: call.but(to=None)), False),
}  # fmt: skip


def declared(lie: Lie) -> Collective:
    first = cc.Collective("own sum", takes=(lie.takes,), gives=lie.gives)
    first.forward(lie.rule)
    back = cc.Collective("own sum, back", takes=(lie.adjoint.takes,), gives=lie.adjoint.gives)
    back.forward(lie.adjoint.rule)
    first.adjoint(lambda ct, call: back(ct, lie.adjoint.call(call)))
    back.adjoint(lambda ct, call: first(ct, call))
    return first


def swept(lie: Lie, times: int = 1) -> None:
    own = declared(lie)

    def program() -> None:
        with cc.Mesh(dp=2):
            for _ in range(times):
                with ag.Tape() as tape:
                    x = ag.Parameter(np.ones((2, 3)), layout={"dp": lie.takes})
                    y = cc.apply(own, x, "dp", to=R)
                    tape.backward([y], [ag.tensor(np.ones(y.shape), layout=y.layout.dual)])

    cc.run(program, 2)


@pytest.mark.parametrize("name", LIES)
def test_the_check_finds_every_lie(name: str) -> None:
    report = cc.testing.check(declared(LIES[name]), ranks=[2], beside=False, to=R)
    assert report.failures, name


@pytest.mark.parametrize("name", [name for name, lie in LIES.items() if lie.is_seen_by_labels])
def test_the_first_sweep_finds_labels_that_do_not_fit(name: str) -> None:
    with pytest.raises(ag.LayoutError, match=r"(?s)own sum, declared by .*its adjoint.*cc.testing.check"):
        swept(LIES[name])


@pytest.mark.parametrize("name", TRUE)
def test_the_truth_passes(name: str) -> None:
    cc.testing.check(declared(TRUE[name]), ranks=[1, 2], to=R).require()
    swept(TRUE[name], times=2)


def test_a_name_belongs_to_one_declaration() -> None:
    with pytest.raises(ag.OptionError, match="'all_reduce' was given.*sums.py.*replace=True"):
        cc.Collective("all_reduce", takes=(V,))
    for _ in range(2):
        own = cc.Collective("again (test)", takes=(V,))  # the same place
    with pytest.raises(ag.OptionError, match="test_own_labels.py"):
        cc.Collective("again (test)", takes=(P,))
    assert collectives["again (test)"] is own
    other = cc.Collective("again (test)", takes=(P,), replace=True)
    assert collectives["again (test)"] is other


def test_the_refusal_of_a_label_by_default_names_the_label_to_state() -> None:
    own = declared(Lie(I, Adjoint(I, R, kept), False, takes=R, rule=kept))
    with cc.Mesh(dp=1), pytest.raises(ag.LayoutError, match=r"layout=\{'dp': R\}"):
        cc.apply(own, np.ones(3), "dp")


def test_a_collective_without_an_adjoint_is_refused_when_it_is_recorded() -> None:
    own = cc.Collective("without adjoint (test)", takes=(V,), gives=V)
    own.forward(kept)
    with cc.Mesh(dp=1), ag.Tape(), pytest.raises(ag.NotDifferentiable, match="no adjoint"):
        cc.apply(own, np.ones(3), "dp")
