"""Every operation with every label at every operand: refused where it is called, or right, in backward too.

A trial is no `Case` of `tests.proofs.cases`: it has no wrong program and no words of an error. Whether its labels are
legal is for the library to say, and either answer is proved: refused on all ranks, or equal to one process.

New operations are swept without further work: the cases are those of `tests.proofs.operations`, and of every function
of `autograd.numpy` and `autograd.nn`. The default run takes some trials of each case, ``pytest -m slow`` all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import pytest

from autograd.engine.primitive import op, registry
from autograd.engine.tensor import Tensor
from autograd.layouts.inference import broadcast
from autograd.layouts.layout import Mix, Sum
from autograd.testing.listing import names

from ... import summary
from ...proofs.operations import WITHOUT_DERIVATIVE, Case, normal
from .label_sweep import Trial, all_cases, sweep, thinned, trials
from .mesh_sweep import MeshTrial, mesh_sweep, mesh_trials, some_mesh_trials

PARTS = 8


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return all_cases()


@pytest.fixture(scope="module")
def some_trials(cases: list[Case]) -> list[Trial]:
    return list(thinned(cases, 5, 1))


def faults(chosen: Sequence[Any], run: Callable[[Sequence[Any]], list[tuple[Any, str]]] = sweep) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for trial, said in run(chosen):
            if said in ("refused", "right"):
                summary.count("label sweep", said)
            else:
                yield f"{trial.name}: {said}"


@pytest.mark.parametrize("i", range(PARTS))
def test_some_labels_of_every_case(some_trials: list[Trial], i: int) -> None:
    wrong = list(faults(some_trials[i::PARTS]))
    assert not wrong, f"{len(wrong)} trials are wrong:\n" + "\n".join(wrong[:20])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("i", range(PARTS))
def test_all_labels_of_every_case(cases: list[Case], i: int) -> None:
    wrong = list(faults(list(trials(cases[i::PARTS]))))
    assert not wrong, f"{len(wrong)} trials are wrong:\n" + "\n".join(wrong[:20])


@pytest.mark.parametrize("i", range(PARTS))
def test_some_labels_on_two_axes(cases: list[Case], i: int) -> None:
    """Also Rooted operands. One case in six, each with one choice of labels per axis and operand."""
    wrong = list(faults(some_mesh_trials(cases[i :: 6 * PARTS], 1), mesh_sweep))
    assert not wrong, f"{len(wrong)} trials are wrong:\n" + "\n".join(wrong[:20])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("i", range(PARTS))
def test_more_labels_on_two_axes(cases: list[Case], i: int) -> None:
    """All labels of the cases of one operand, and thirty choices of each other case."""
    several = [case for case in cases[i::PARTS] if len(case.args) > 1]
    chosen = some_mesh_trials(several, 30)
    chosen += [trial for case in cases[i::PARTS] if len(case.args) == 1 for trial in mesh_trials(case)]
    wrong = list(faults(chosen, mesh_sweep))
    assert not wrong, f"{len(wrong)} trials are wrong:\n" + "\n".join(wrong[:20])


def test_every_operation_is_swept(cases: list[Case]) -> None:
    swept = {c.operation for c in cases} | {c.operation.rpartition(".")[2] for c in cases}
    missing = set(names()) - swept - {"put"}
    assert not missing - set(WITHOUT_DERIVATIVE), missing


def planted(name: str, *args: Any, **words: Any) -> Case:
    made = op(f"{name} (planted example)", *args, **words)
    del registry[made.name]
    return Case(made.name, "", made, made.function, (normal(4, 7),))



def centred(ct: Any, y: Any, x: Any) -> Any:
    """An adjoint that reads a rank's own part behind the back of the labels."""
    return Tensor(ct.array - ct.array.mean(0), ct.layout) if isinstance(ct, Tensor) else ct - ct.mean(0)


@pytest.mark.parametrize(("label", "expected", "case"), [
    ("S1", "right", planted("right", "N", lambda x: x * x, lambda ct, y, x: ct * x * 2, saves="0", dims=broadcast)),
    ("S0", "right", planted("a sum", "a", lambda x: x.sum(0), lambda ct, y, x: ct + x * 0, saves="0",
                            dims=lambda shapes, options: [(Sum(), 0)])),
    ("S1", "refused", planted("a mixed dimension", "a", lambda x: x - x.mean(1, keepdims=True), lambda ct, y, x: ct,
                              dims=lambda shapes, options: [(0, Mix)])),
    ("S0", "wrong", planted("a sum of a part", "a", lambda x: x.sum(0), lambda ct, y, x: ct + x * 0, saves="0",
                            dims=lambda shapes, options: [(0, 0)])),
    ("R", "wrong: error in the sweep: LayoutError", planted(
        "a wrong adjoint label", "N", lambda x: x * x, lambda ct, y, x: x * 2, saves="0", dims=broadcast)),
    ("S0", "wrong: tangent: off", planted("a wrong adjoint", "a", lambda x: x * 1, centred, dims=broadcast)),
    ("P", "wrong: error in the sweep: LayoutError", planted(
        "a square of addends", "a", lambda x: x * x, lambda ct, y, x: ct * x * 2, saves="0", dims=broadcast)),
    ("S0", "wrong: Shard(0) of extent 8", planted("a wrong extent", "a", lambda x: x * 1, lambda ct, y, x: ct * 1,
                                                 dims=lambda shapes, options: [((0, 2), 1)])),
    ("S0", "wrong: value: off", planted("a wrong dimension rule", "a", lambda x: x - x.mean(0),
                                        centred, dims=broadcast)),
])  # fmt: skip
def test_planted_faults_are_seen(label: str, expected: str, case: Case) -> None:
    with numpy.errstate(all="ignore"):
        ((_, said),) = sweep([Trial(case, (label,))])
        on_two_axes = mesh_sweep([MeshTrial(case, labels) for labels in (((label, "I"),), (("I", label),))])
    assert said.startswith(expected), said
    for _, said in on_two_axes:
        assert said.startswith(expected.partition(":")[0]), said
