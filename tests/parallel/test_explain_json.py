"""The plan of a rank as JSON: read as it was written, and damaged texts are typed errors."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from autograd.errors import ArgumentError, RingtapeError
from parallel.explain import CallCount, RankPlan, from_json, to_json

PLAN = RankPlan({"dp": 0, "pp": 1}, ["0", "1"], 8, 8, 16, 4, [CallCount("dp", "all_reduce", 2, 4096)], "cuda:0", 7)
FOUND = json.loads(to_json(PLAN))
DAMAGED: dict[str, Any] = {
    "nothing": b"", "no JSON": b"{", "a number": b"3", "a list": b"[]", "no fields": b"{}", "other bytes": b"\xff\xfe",
    "null": b"null", "deep": b"[" * 100_000, "no traffic": {k: x for k, x in FOUND.items() if k != "traffic"},
    "traffic of numbers": {**FOUND, "traffic": [3]}, "short traffic": {**FOUND, "traffic": [["dp"]]},
    "long traffic": {**FOUND, "traffic": [["dp", "x", 1, 2, 3]]}, "a text for a number": {**FOUND, "parameters": "8"},
    "a fraction": {**FOUND, "optimizer": 0.5}, "true for a number": {**FOUND, "gradients": True},
    "a list for a place": {**FOUND, "place": [1]}, "a text for layers": {**FOUND, "layers": "01"},
    "numbers for layers": {**FOUND, "layers": [1]}, "a field besides": {**FOUND, "x": 1}, "a text": "nothing",
    "no bytes": None, "calls that are texts": {**FOUND, "traffic": [["dp", "x", "1", 2]]},
}  # fmt: skip


def test_a_plan_is_read_as_it_was_written() -> None:
    assert from_json(to_json(PLAN)) == PLAN


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_plan_is_a_typed_error(kind: str) -> None:
    data = DAMAGED[kind]
    with pytest.raises(ArgumentError, match="from_json: .* is no plan of a rank|needed: from_json"):
        from_json(json.dumps(data).encode() if isinstance(data, dict) else data)


def test_changed_bytes_are_a_plan_or_a_typed_error() -> None:
    rng, right = random.Random(0), to_json(PLAN)
    for _ in range(2000):
        data = bytearray(right)
        for _ in range(rng.choice([1, 2, 6])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            assert isinstance(from_json(bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])), RankPlan)
        except RingtapeError:
            pass
