"""What tensor and sequence parallelism send and keep, against the formulas of the textbooks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from collectives import I
from examples.gpt import Config
from parallel import memory_of

from .models import divided_loss, divided_model

FORMS = pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
ROWS, TOKENS, WIDTH, HEADS, CLASSES, ITEM = 4, 24, 48, 12, 8, 8
STREAM = ROWS * TOKENS * WIDTH * ITEM
"""The bytes of the residual stream."""


def config(layers: int, dropout: float = 0.0) -> Config:
    return Config(CLASSES, WIDTH, HEADS, layers, dropout)


def objective(model: Any) -> Any:
    tokens = cc.from_local(np.zeros((ROWS, TOKENS), int), {"tp": I})
    return divided_loss()(model(tokens), tokens)


# -- bytes -------------------------------------------------------------------------------------------------------------


def calls(layers: int, sequence: bool, ranks: int) -> Counter[tuple[str, str, str]]:
    """The calls and bytes along "tp" of one step, by (call, direction, unit), without control messages."""

    def program() -> Any:
        with cc.Mesh(tp=-1):
            model = divided_model(sequence, config(layers))
            with cc.timeline() as t:
                with ag.Tape() as tape:
                    loss = objective(model)
                tape.backward(loss)
        found: Counter[tuple[str, str, str]] = Counter()
        for row in t.report.rows:
            if row.rank == 0 and row.axis == "tp" and row.call not in ("agree", "exchange"):
                found[row.call, row.direction, "calls"] += row.calls
                found[row.call, row.direction, "bytes"] += row.bytes
        return found

    found: Counter[tuple[str, str, str]] = cc.run(program, ranks)[0]
    return found


def per_layer(sequence: bool, ranks: int) -> dict[tuple[str, str, str], int]:
    two, one = calls(2, sequence, ranks), calls(1, sequence, ranks)
    return {key: two[key] - one[key] for key in two if two[key] != one[key]}


@pytest.mark.parametrize("ranks", [2, 4])
def test_two_sums_of_the_stream_forward_and_two_backward(ranks: int) -> None:
    found = per_layer(False, ranks)
    assert found == {
        ("all_reduce", "forward", "calls"): 2, ("all_reduce", "forward", "bytes"): 2 * STREAM,
        ("all_reduce", "backward", "calls"): 2, ("all_reduce", "backward", "bytes"): 2 * STREAM,
    }  # fmt: skip
    ends = calls(1, False, ranks)  # and one for the embedding, one for the head, and the terms of the loss
    assert ends["all_reduce", "forward", "bytes"] == ends["all_reduce", "backward", "bytes"] == 3 * STREAM
    assert ends["all_gather", "forward", "bytes"] == 2 * ROWS * TOKENS * ITEM


@pytest.mark.parametrize("ranks", [2, 4])
def test_sequence_parallelism_sends_the_same_bytes(ranks: int) -> None:
    """A ring sends (p-1)/p of a whole value per all-gather and per reduce-scatter, and twice that per all-reduce.

    The operand of an all-gather is a part, that of the others a whole. The norms add four sums of their parameters.
    """
    found = per_layer(True, ranks)
    norms = 4 * WIDTH * ITEM
    assert found == {
        ("all_gather", "forward", "calls"): 2, ("all_gather", "forward", "bytes"): 2 * STREAM // ranks,
        ("reduce_scatter", "forward", "calls"): 2, ("reduce_scatter", "forward", "bytes"): 2 * STREAM,
        ("all_gather", "backward", "calls"): 2, ("all_gather", "backward", "bytes"): 2 * STREAM // ranks,
        ("reduce_scatter", "backward", "calls"): 2, ("reduce_scatter", "backward", "bytes"): 2 * STREAM,
        ("all_reduce", "backward", "calls"): 4, ("all_reduce", "backward", "bytes"): norms,
    }  # fmt: skip

    def sent(found: dict[tuple[str, str, str], int]) -> int:
        weight = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": ranks}
        return sum(weight[call] * n * (ranks - 1) // ranks for (call, _, unit), n in found.items() if unit == "bytes")

    assert sent(found) - 2 * norms * (ranks - 1) // ranks == sent(per_layer(False, ranks))


@FORMS
def test_a_dry_run_counts_the_same(sequence: bool) -> None:
    """On 2 of many ranks, without values: `cc.dry` gives the bytes of any number of ranks."""
    with cc.dry(ranks=2, rank=1, mesh={"tp": 2}) as run:
        model = divided_model(sequence, config(2))
        with ag.Tape() as tape:
            loss = objective(model)
        tape.backward(loss)
    found: Counter[tuple[str, str, str]] = Counter()
    for t in run.traffic():
        if t.axis == "tp" and t.operation not in ("agree", "exchange"):
            found[t.operation, t.direction, "calls"] += t.calls
            found[t.operation, t.direction, "bytes"] += t.bytes
    assert found == calls(2, sequence, 2)


# -- memory ------------------------------------------------------------------------------------------------------------


def parameters_of_a_layer(ranks: int) -> float:
    """Bytes on each rank: 12 w^2 of the weights are divided, and the biases of columns; the others are whole."""
    divided, whole = 12 * WIDTH**2 + 7 * WIDTH, 6 * WIDTH
    return (divided / ranks + whole) * ITEM


def activations_of_a_layer(ranks: int, sequence: bool, dropout: bool) -> float:
    """Bytes that the tape keeps on each rank, for a stream of n bytes.

    2 n, the inputs of the two regions, are whole on each rank, gathered or not. 2 n, the inputs of the norms, and 4 n
    for two dropouts, are parts with sequence parallelism. Within the regions all is divided: queries, keys and values,
    the output of attention, three values of the width 4 w, and the probabilities of the pairs of tokens.
    """
    pairs = ROWS * HEADS * TOKENS * TOKENS * ITEM
    within = (3 + 1 + 3 * 4) * STREAM + pairs
    outside = (2 + 4 * dropout) * STREAM
    return 2 * STREAM + outside / (ranks if sequence else 1) + within / ranks


def kept_arrays(tape: Any, beside: list[Any]) -> int:
    """The bytes of the arrays to which a tape refers, but for some, each counted once."""
    left, seen = [tape.recording.nodes], {id(array) for array in beside}
    total = 0
    while left:
        x = left.pop()
        while isinstance(getattr(x, "base", None), np.ndarray):
            x = x.base
        if id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, np.ndarray):
            total += x.nbytes
        elif isinstance(x, list | tuple):
            left.extend(x)
    return total


def measured(layers: int, ranks: int, sequence: bool, dropout: float) -> tuple[int, int]:
    """The bytes of parameters, and of what the tape keeps, on the first rank."""

    def program() -> Any:
        with cc.Mesh(tp=-1):
            model = divided_model(sequence, config(layers, dropout))
            with ag.Tape() as tape:
                loss = objective(model)
            kept = kept_arrays(tape, [p.array for p in model.parameters()])
            tape.backward(loss)
            return memory_of(model).parameters, kept

    found: tuple[int, int] = cc.run(program, ranks)[0]
    return found


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@FORMS
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_memory_falls_as_the_formula_says(ranks: int, sequence: bool, dropout: float) -> None:
    two, one = measured(2, ranks, sequence, dropout), measured(1, ranks, sequence, dropout)
    parameters, activations = two[0] - one[0], two[1] - one[1]
    assert parameters == parameters_of_a_layer(ranks)
    predicted = activations_of_a_layer(ranks, sequence, dropout > 0)
    assert abs(activations - predicted) < 0.05 * predicted, (activations / STREAM, predicted / STREAM)
