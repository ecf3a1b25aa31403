"""Every name that torch and ringtape have: the same parameters, order and defaults, or a reason on the page."""

from __future__ import annotations

import inspect
import os
from typing import Any

import numpy
import pytest

from autograd import nn

from . import signature_reasons as reasons
from . import signatures


def test_every_difference_has_a_reason() -> None:
    missing = [f"{section}.{x.name}: {x.what}" for section in signatures.SECTIONS for name in signatures.both(section)
               for x in signatures.differences(section, name) if not x.reason]  # fmt: skip
    assert not missing, "\n".join(missing)


def test_all_names_are_compared() -> None:
    """A name that is new since the signatures were read is looked up where there is torch, in the last but one test."""
    assert sum(len(signatures.both(section)) for section in signatures.SECTIONS) > 200


def test_every_reason_is_used() -> None:
    found = [x for section in signatures.SECTIONS for name in signatures.both(section)
             for x in signatures.differences(section, name)]  # fmt: skip
    used = {x.reason for x in found}
    for table in (reasons.UNLIKE, reasons.ANYWHERE, reasons.DEFAULTS, reasons.TENSOR_METHODS):
        assert set(table.values()) <= used, set(table.values()) - used


def test_an_argument_that_only_torch_has_is_refused() -> None:
    """No function takes any name as an argument, so that Python raises a TypeError."""
    for section in signatures.SECTIONS[:-1]:
        for name in signatures.both(section):
            f = signatures.ours(section)[name]
            if f"{section}.{name}" not in reasons.UNLIKE and not hasattr(f, "operands"):
                kinds = {p.kind for p in inspect.signature(f).parameters.values()}
                assert inspect.Parameter.VAR_KEYWORD not in kinds, f"{section}.{name}"


@pytest.mark.parametrize("text, what", [
    ("input, target, weight=None, ignore_index=-100, *, reduction='mean', label_smoothing=0.0",
     "`ignore_index=-100` at position 4"),
    ("input, target, weight=None, *, ignore_index=-100, reduction='none', label_smoothing=0.0",
     "the default of `reduction='none'`; torch: 'mean'"),
    ("target, input, weight=None, *, ignore_index=-100, reduction='mean', label_smoothing=0.0",
     "`target` at position 1"),
    ("input, target, weight=None, *, ignore_index=-100, reduction='mean', smoothing=0.0",
     "`smoothing=0` is only here, by name"),
    ("input, target, weight=None, *, ignore_index=-100, reduction='mean'", "`label_smoothing=0` is only in torch"),
])  # fmt: skip
def test_planted_differences_are_found(text: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = signatures.parsed(text)
    monkeypatch.setattr(signatures, "parameters", lambda function: planted)
    found = [x.what for x in signatures.differences("nn.functional", "cross_entropy") if not x.reason]
    assert what in found


@pytest.mark.parametrize("text", reasons.STATES)
def test_a_state_has_torchs_names_and_shapes(text: str) -> None:
    module: Any = eval("nn." + text, {"nn": nn})
    wanted = signatures.theirs()["states"][text]
    found = {name: [*x.shape] for name, x in module.state_dict().items()}
    assert list(found) == list(wanted)
    for name, shape in found.items():
        *path, attribute = name.split(".")
        owner = module
        for part in path:
            owner = getattr(owner, part)
        assert (shape[::-1] if owner.stores_transposed(attribute) else shape) == wanted[name], name


def test_the_page_is_what_the_comparison_says() -> None:
    assert signatures.PAGE.read_text() == signatures.page(), "python -m tests.autograd.nn.signatures writes it"


def test_the_kept_signatures_are_torchs() -> None:
    python = os.environ.get("RINGTAPE_PYTHON_TORCH")
    if not python:
        pytest.skip("RINGTAPE_PYTHON_TORCH names no interpreter that has torch")
    found = signatures.theirs_read(python)
    if found["torch"] != signatures.theirs()["torch"]:
        pytest.skip(f"torch {found['torch']} is another version than that of the kept signatures")
    assert found == signatures.theirs()


def test_numpys_methods_are_those_of_arrays() -> None:
    assert all(hasattr(numpy.ndarray, name) for name in reasons.TENSOR_METHODS if name)
