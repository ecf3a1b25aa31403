"""The table from which ``auto`` chooses: the rule, files, the agreement of the ranks, the budget of a measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from collectives.algorithms import OPERATIONS
from collectives.algorithms.choices import Choices, rule, settled, shape_of, stored, tables, tabulated
from collectives.algorithms.fit import BUDGET_BYTES, Fit
from collectives.algorithms.selected import Channel
from collectives.inspect.observing import observing
from collectives.transports.request import given_bytes
from tests.collectives.launch import launch

TABLE: dict[str, Any] = {"all_reduce": [(64, "tree"), (1 << 12, "ring"), (None, "halving_doubling")]}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_rows_hold_up_to_their_size(operation: str) -> None:
    name = "tree" if operation in ("broadcast", "reduce", "all_reduce") else "ring"
    choices = Choices({operation: [(64, name), (4096, "native"), (None, name)]})
    found = [choices.choose(operation, size) for size in (0, 64, 65, 4096, 4097, 1 << 40)]
    assert found == [name, name, "native", "native", name, name]
    assert Choices({}).choose(operation, 64) == "native"


@pytest.mark.parametrize(
    ("shape", "chosen"),
    [
        ((1, [4], 4, True), ["native", "shared", "shared"]),
        ((2, [2], 4, True), ["native", "native", "hierarchical:shared,ring"]),
        ((2, [], 5, True), ["native"] * 3),  # the hosts have different numbers of ranks
        ((4, [1], 4, True), ["native"] * 3),
        ((4, [1, 2], 4, True), ["native", "native", "hierarchical:shared,ring,ring"]),  # two racks
        ((4, [2, 4], 8, True), ["native", "native", "hierarchical:shared,ring"]),  # one rack
        ((1, [4], 4, False), ["native"] * 3),
        ((1, [1], 1, True), ["native"] * 3),
    ],
)
def test_the_rule(shape: tuple[int, list[int], int, bool], chosen: list[str]) -> None:
    choices = rule(*shape)
    assert [choices.choose("all_reduce", size) for size in (1 << 14, 1 << 15, 1 << 17)] == chosen
    assert choices.source == "rule" and choices.choose("broadcast", 1 << 20) == "native"


def test_a_measurement_becomes_a_table() -> None:
    """The table has the choice of the measurement at each power of two."""
    fit = Fit(8, 50e-6, 1.0 / 62.5e6, 1e-10, {"native": {"all_reduce": [(1024, 1e-6), (2048, 2e-6)]}})
    choices = tabulated(fit, "a note")
    for operation in OPERATIONS:
        for k in range(6, 28):
            assert choices.choose(operation, 1 << k) == fit.choose(operation, 1 << k), (operation, k)
    assert len({name for _, name in choices.rows["all_reduce"]}) > 2


def test_a_file_keeps_a_table_for_each_shape(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "algorithms.json"
    stored(path, "one", Choices(TABLE, note="first"))
    stored(path, "two", Choices({}, note="second"))
    stored(path, "one", Choices(TABLE, note="third"))
    found = tables(path)
    assert {shape: (each.rows, each.note) for shape, each in found.items()} == {
        "one": (TABLE, "third"), "two": ({}, "second"),
    }  # fmt: skip
    assert [each.name for each in path.parent.iterdir()] == ["algorithms.json"]


def _shape() -> str:
    channel = Channel(cc.world())
    return shape_of(channel.base, channel.levels)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_all_ranks_have_the_table_of_rank_0(tmp_path: Path, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank has another file; by variable, by path and, without a table, by the rule."""
    shape = cc.run(_shape, ranks)[0]
    for rank in range(ranks):
        rows = TABLE if rank == 0 else {"all_reduce": [(None, "ring")]}
        stored(tmp_path / f"{rank}.json", shape, Choices(rows))

    def settle() -> Any:
        channel = Channel(cc.world())
        found = settled(channel.base, channel.levels, str(tmp_path / f"{int(cc.world().rank)}.json"))
        return found.rows, found.source

    assert cc.run(settle, ranks) == [(TABLE, str(tmp_path / "0.json"))] * ranks

    def program(algorithm: str) -> Any:
        with cc.Mesh(dp=ranks, algorithm=algorithm) as mesh:
            y = cc.all_reduce(np.full(700, 1.0 + cc.world().index), "dp").numpy().tolist()
            return y, [mesh.axis("dp").choice(size) for size in (64, 65, 1 << 13)]

    total = [ranks * (ranks + 1) / 2] * 700
    names = ["tree", "ring", "halving_doubling"]
    assert cc.run(program, ranks, f"auto:{tmp_path / '0.json'}") == [(total, names)] * ranks
    assert cc.run(program, ranks, "auto") == [(total, ["native"] * 3)] * ranks
    monkeypatch.setenv("RINGTAPE_ALGORITHMS", str(tmp_path / "0.json"))
    assert cc.run(program, ranks, "auto") == [(total, names)] * ranks


WRONG = {
    "no file": None,
    "no JSON": "{",
    "deep": "[" * 100_000,
    "another format": '{"format": 2, "tables": {}}',
    "no tables": '{"format": 1}',
    "a list": "[1]",
    "no choices": '{"format": 1, "tables": {"s": {}}}',
    "no table for the shape": '{"format": 1, "tables": {"other": {"choices": {}}}}',
    **{
        name: json.dumps({"format": 1, "tables": {"s": {"choices": choices}}})
        for name, choices in {
            "an unknown operation": {"sum": [[None, "ring"]]},
            "an unknown algorithm": {"all_reduce": [[None, "rings"]]},
            "an algorithm of another operation": {"broadcast": [[None, "ring"]]},
            "auto": {"all_reduce": [[None, "auto"]]},
            "auto with a path": {"all_reduce": [[None, "auto:x"]]},
            "a number": {"all_reduce": [[None, 3]]},
            "no rows": {"all_reduce": []},
            "no end": {"all_reduce": [[64, "ring"]]},
            "no order": {"all_reduce": [[64, "ring"], [64, "tree"], [None, "ring"]]},
            "text for bytes": {"all_reduce": [["64", "ring"], [None, "ring"]]},
            "a row of one": {"all_reduce": [["ring"]]},
        }.items()
    },
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_file_is_an_error_on_all_ranks(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    if (text := WRONG[kind]) is not None:
        path.write_text(text)

    def program() -> str:
        try:
            cc.Mesh(dp=3, algorithm=f"auto:{path}")
        except cc.MeshError as error:
            return str(error)
        return ""

    found = cc.run(program, 3)
    assert len(set(found)) == 1 and str(path) in found[0] and ("needed" in found[0] or "fix: " in found[0]), found


def test_names() -> None:
    for wrong in ("auto:", "auto-matic", "automatic"):
        with pytest.raises(ag.RingtapeError, match="needed: native, auto"):
            cc.Mesh(dp=1, algorithm=wrong)
    assert cc.Mesh(dp=1, algorithm="auto:file").axis("dp").group.algorithm == "auto"


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_a_measurement_keeps_its_budget(ranks: int) -> None:
    """No rank gives more bytes to its calls than the budget; and a program that chooses measures nothing."""

    def program() -> Any:
        given = [0.0, 0.0]
        at = 0

        def observer(group: Any, request: Any, started: bool, run: Any) -> Any:
            if request.call not in ("recv", "agree", "barrier"):
                given[at] += given_bytes(request)
            return run()

        with observing(observer):
            mesh = cc.Mesh(dp=ranks, algorithm="auto")
            chosen = [mesh.axis("dp").choice(1 << k, operation) for k in range(28) for operation in OPERATIONS]
            at = 1
            _ = cast(Any, mesh.axis("dp").group).channel.fit
        return given, set(chosen)

    for given, chosen in cc.run(program, ranks):
        assert given[0] < 2000 and chosen == {"native"}
        assert BUDGET_BYTES / 4 < given[1] <= BUDGET_BYTES


def test_tune_over_mpi(tmp_path: Path) -> None:
    """It stores what the next jobs choose, each of them the same; in a job of another shape it is an error."""
    path = tmp_path / "algorithms.json"
    outcome = launch("tune_program.py", 3, "tune", str(path), limit_s=100)
    assert outcome.code == 0 and f"stored in {path}" in outcome.out, outcome
    (shape, choices), = tables(path).items()
    assert "1 host with 3 ranks" in shape and set(choices.rows) == set(OPERATIONS)
    outcome = launch("tune_program.py", 3, "choose", str(path), limit_s=100)
    expected = [choices.choose("all_reduce", 1 << k) for k in range(28)]
    assert outcome.code == 0 and json.loads(outcome.out) == expected, outcome
    outcome = launch("tune_program.py", 2, "choose", str(path), limit_s=100)
    assert outcome.code and "1 host with 3 ranks" in outcome.err and "has no table for" in outcome.err, outcome
