"""Each name of torch, JAX, NumPy and SciPy is here or has an answer; no answer is left over, hidden or out of date."""

from __future__ import annotations

import os
from fnmatch import filter as matching
from importlib import import_module

import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
import parallel
from autograd.errors import answering, elsewhere, instead_of

from . import names


@pytest.mark.parametrize("module", names.PLACES)
def test_each_name_is_here_or_says_what_is(module: str) -> None:
    found = names.count(module)
    assert found.names == len(names.theirs()[module]) and not found.missing, found


@pytest.mark.parametrize("module", names.PLACES)
def test_a_name_that_is_missing_is_answered_where_it_is_looked_for(module: str) -> None:
    if module in ("jax", "jax.lax"):  # users write `ag.jit`; those of lax look in several modules
        return
    ours = names.PLACES[module][0]
    silent = [name for name in names.theirs()[module] if not names.has(module, name) and not instead_of(ours, name)]
    assert not silent


def test_no_pattern_is_left_over() -> None:
    asked, answers = elsewhere()
    for table in answers:
        known = [name for module in names.PLACES if names.table_of(module) == table for name in names.theirs()[module]]
        keys = [key for keys in answers[table] for key in keys.split()]
        assert len(keys) == len(set(keys)), table
        if known:
            assert not [key for key in keys if {"*", "?"} & set(key) and not matching(known, key)], table
    assert {library for libraries in asked.values() for library in libraries} == {*answers}


def test_every_module_that_is_asked_answers() -> None:
    for module in elsewhere()[0]:
        if module != "Tensor":
            with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nowhere'|'numpy'"):
                _ = import_module(module).nowhere


@pytest.mark.parametrize(
    "look, word",
    [
        (lambda: ag.autocast, "MasterWeights"),
        (lambda: ag.GradScaler, "LossScaler"),
        (lambda: ag.optim.lr_scheduler, "schedules.step_lr"),
        (lambda: ag.tensor([1.0]).scatter_add, "ag.vjp"),
        (lambda: ag.tensor([1.0]).index_add, "ag.vjp"),
        (lambda: ag.tensor([1.0]).relu_, "without the underscore"),
        (lambda: ag.nn.GRU, "GRUCell"),
        (lambda: np.bfloat16, "ml_dtypes"),
        (lambda: cc.psum, "all_reduce"),
        (lambda: parallel.DistributedDataParallel, "DataParallel"),
    ],
)
def test_names_that_people_look_for(look: object, word: str) -> None:
    with pytest.raises(AttributeError, match=word):
        look()  # type: ignore[operator]


def test_a_name_that_is_spelt_alike_is_known_to_python() -> None:
    with pytest.raises(AttributeError) as caught:
        answering("autograd.nn")("Linaer")
    assert caught.value.name == "Linaer" and caught.value.obj is ag.nn


def test_the_answer_for_scatter_adds_and_has_a_gradient() -> None:
    index, values = np.array([0, 2, 0]), np.array([1.0, 2.0, 3.0])

    def scattered(x: object) -> object:
        return ag.vjp(lambda z: z[index], np.zeros(4))[1](x)

    assert scattered(values).tolist() == [4, 0, 2, 0]  # type: ignore[attr-defined]
    ag.testing.check_grads(scattered, values)
    for target in (ag.tensor([1.0, 2.0]), ag.Parameter([1.0, 2.0])):
        with pytest.raises(ag.SavedArrayError, match="fix: ag.vjp"):
            np.add.at(target, [0], 1.0)
    with pytest.raises(ag.NotDifferentiable, match="ag.vjp"):
        ag.grad(lambda x: np.add.at(np.asarray([0.0]).copy(), [0], x) or x)(1.0)
    plain = np.array([1.0, 2.0])
    np.add.at(plain, [0, 0], 1.0)
    assert plain.tolist() == [3.0, 2.0] and np.add.reduce(ag.tensor(plain)).item() == 5.0


def test_the_page_is_up_to_date() -> None:
    assert names.PAGE.read_text() == names.page()


@pytest.mark.skipif("RINGTAPE_PYTHON_TORCH" not in os.environ, reason="needs RINGTAPE_PYTHON_TORCH")
def test_the_names_of_torch_are_those_that_are_kept() -> None:
    assert names.read(["torch"]) == {m: found for m, found in names.theirs().items() if m.startswith("torch")}
