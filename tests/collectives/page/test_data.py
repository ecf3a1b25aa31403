"""The data of a page: tables, selections, rounding, and the document that holds it."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autograd.errors import ArgumentError
from collectives.inspect.record import CallOf, Contribution, OperationRecord, RankRecords, Summary
from collectives.page import page
from collectives.page.data import page_data, selected

from .made import programs, summary


def records(count: int, rank: int = 0, size: int = 3) -> list[OperationRecord]:
    """A chain of operations with random values, and its backward direction."""
    random = np.random.default_rng(rank)
    made = [
        OperationRecord(
            k, "forward", f"op{k}", 1, k, ("net", f"block{k // 2}"), __file__, k + 1,
            (k - 1,) if k else (), ("",) if k else (), ("{dp: V}",) if k else (), "{dp: V}",
            summary(random.normal(size=size)), begin_ns=100 * k, end_ns=100 * k + 50,
        )
        for k in range(count)
    ]  # fmt: skip
    for k in reversed(range(count)):
        value = summary(random.normal(size=size))
        given = (Contribution(k - 1, value),) if k else ()
        made.append(OperationRecord(len(made), "backward", f"op{k}", adjoint_of=k, value=value, contributions=given))
    return made


def content(text: str) -> Any:
    """The data in a document."""
    packed = re.search(r'<script id="data" type="text/plain">([^<]*)</script>', text)
    assert packed is not None
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))


def test_the_document_holds_the_data(tmp_path: Path) -> None:
    ranks = [RankRecords(r, (("dp", 3),), (r,), records(4, r)) for r in range(3)]
    made = page(ranks, tmp_path / "out.html", title="<chain> & more")
    text = (tmp_path / "out.html").read_text()
    assert text == made.html
    assert content(text) == json.loads(json.dumps(page_data(ranks, title="<chain> & more")))
    assert "<title>&lt;chain&gt; &amp; more</title>" in text
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]
    found = re.findall(r"(?:https?:)?//[\w.]+\.\w+", text.replace("http://www.w3.org/2000/svg", ""))
    assert found == [], "the page names another place"


def test_columns_give_the_records_back() -> None:
    ranks = [RankRecords(r, (("dp", 2),), (r,), records(5, r)) for r in range(2)]
    data = page_data(ranks)
    texts = data["texts"]
    for r, of in enumerate(ranks):
        row = {name: column[r] for name, column in data["records"].items()}
        assert [texts[x] for x in row["name"]] == [record.name for record in of.records]
        assert list(itertools.accumulate(row["begin"])) == [record.begin_ns for record in of.records]
        for record, scope, value, site in zip(of.records, row["scope"], row["value"], row["site"], strict=True):
            path = []
            while scope > 0:
                scope, name = data["scopes"][scope]
                path.insert(0, texts[name])
            assert tuple(path) == record.scope
            assert record.value is not None and record.value.values is not None
            assert data["summaries"]["values"][value] == pytest.approx(list(record.value.values), rel=1e-8)
            file, line = data["sites"][site]
            assert line == record.line and (not line or texts[file].endswith("test_data.py"))
        assert data["contributions"]["to"][r] == [x.to for record in of.records for x in record.contributions]


def test_source_is_there_around_each_line() -> None:
    data = page_data([RankRecords(0, records=records(2))])
    ((_, first, lines),) = data["source"]
    own = Path(__file__).read_text().splitlines()
    assert first == 1 and lines == own[: len(lines)] and len(lines) == 8


def test_without_values_no_value_is_in_the_data() -> None:
    ranks = [RankRecords(r, (("dp", 2),), (r,), [
        OperationRecord(0, "forward", "exp", layout="{dp: R}", value=summary([0.123456789 + r, 7.25, np.inf])),
    ]) for r in range(2)]  # fmt: skip
    text = json.dumps(page_data(ranks, values=False))
    assert "7.25" not in text and "0.1234" not in text
    data = json.loads(text)
    assert not data["has_values"] and data["records"]["flags"] == [[3], [3]]  # compared before
    assert set(data["summaries"]["digest"]) == {""}
    assert "7.25" in json.dumps(page_data(ranks))


@pytest.mark.parametrize("count, kept, digits", [(100, 64, 9), (1000, 64, 6), (2000, 64, 4), (4000, 6, 4)])
def test_many_values_are_rounded(count: int, kept: int, digits: int) -> None:
    random = np.random.default_rng(0)
    made = [OperationRecord(k, "forward", "op", value=summary(random.normal(size=64))) for k in range(count)]
    data = page_data([RankRecords(0, records=made)])
    assert data["digits"] == digits and {len(row) for row in data["summaries"]["values"]} == {kept}
    first = made[0].value
    assert first is not None and first.values is not None
    assert data["summaries"]["values"][0][0] == pytest.approx(first.values[0], rel=10.0 ** (1 - digits))


def test_numbers_that_json_does_not_have() -> None:
    values: tuple[Any, ...] = (float("nan"), float("-inf"), 1 - 2j, 2**60, True)
    made = [OperationRecord(0, "forward", "op", value=Summary((5,), "object", values, digest="a", not_finite=2))]
    data = page_data([RankRecords(0, records=made)])
    assert data["summaries"]["values"] == [["nan", "-inf", "1-2i", str(2**60), True]]
    json.dumps(data, allow_nan=False)


def test_a_failed_program_points_at_the_failure() -> None:
    ranks = programs("exp sin", "exp")
    ranks[1].records.append(OperationRecord(1, "forward", "matmul", error="LayoutError: matmul ...\n  fix: cast(w)"))
    ranks[1].error = "LayoutError: matmul ..."
    data = page_data(ranks)
    assert data["problems"] == [["error", [1], 1]]
    assert data["errors"] == [[1, 1, "LayoutError: matmul ...\n  fix: cast(w)"]]
    assert data["ends"] == ["", "LayoutError: matmul ..."]


def test_a_deadlock_points_at_the_calls_that_wait() -> None:
    ranks = programs("exp recv<1", "exp recv<0", "exp")
    for of in ranks:
        of.error = "deadlock: no rank can continue"
    data = page_data(ranks)
    assert data["problems"] == [["error", [0, 1], 1], ["end", [2], 0]]
    assert [row[-1] for row in data["records"]["flags"]] == [4, 4, 0]
    assert ranks[0].records[1].error == ""  # the records themselves do not change


def test_selected_ranks_and_steps() -> None:
    ranks = [RankRecords(r, records=records(3, r), steps=[(0, 2), (2, 6)]) for r in range(3)]
    chosen = selected(ranks, only=[0, 2], steps=(1, 5))
    assert [of.rank for of in chosen] == [0, 2]
    (first, *rest) = chosen[0].records
    assert [record.id for record in chosen[0].records] == [0, 1, 2, 3]
    assert first.name == "op2" and first.operands == (-1,)
    assert [record.adjoint_of for record in rest] == [0, None, None]
    assert rest[0].contributions[0].to == -1
    assert selected(ranks)[0] is ranks[0]


@pytest.mark.parametrize("options, says", [
    ({"only": [0, 5]}, r"ranks \[5\] have no records; there are \[0\]"),
    ({"steps": (0, 1)}, "0:1 were given; rank 0 has marked 0 steps"),
    ({"steps": (2, 1)}, r"steps=\(2, 1\) was given"),
    ({"only": "0"}, "needed: a list of ranks"),
    ({"predicted": [3.0]}, "needed: a list for each rank"),
    ({"predicted": [[(0.0, 1.0)]]}, r"of \[1\] records by rank were given; needed: of \[4\]"),
])  # fmt: skip
def test_refusals(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=says):
        page([RankRecords(0, records=records(2))], tmp_path / "no.html", **options)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(ArgumentError, match="needed: a list with the RankRecords of each rank"):
        page([records(1)])  # type: ignore[list-item]


def test_predicted_times() -> None:
    made = page([RankRecords(0, records=records(1))], predicted=[[(0.0, 1e-6), (2e-6, 5e-6)]])
    assert content(made.html)["predicted"] == [[[0, 1000], [2000, 3000]]]


def test_calls_refer_to_their_link() -> None:
    ranks = programs("exp all_reduce@dp", "all_reduce@dp")
    ranks[0].records[0].calls.append(CallOf("exchange", "dp", "dp check", 1, (0, 1), 16, is_control=True))
    data = page_data(ranks)
    assert [list(itertools.accumulate(row)) for row in data["calls"]["link"]] == [[0, 1], [1]]
    assert [data["texts"][text] for text in data["links"]["ranks"]] == ["0 1", "0 1"]
    assert data["calls"]["kind"] == [[2, 0], [0]]


def test_no_records_at_all() -> None:
    assert page_data([RankRecords(0)])["moments"] == 0
    assert page([]).html
    assert page([RankRecords(0, records=records(1))])._repr_html_().startswith("<iframe srcdoc=")


def test_size_of_eight_ranks_with_two_thousand_operations() -> None:
    """At most 1 MB, with 16 random values for each record."""
    ranks = [RankRecords(r, (("dp", 8),), (r,), records(1000, r, 16)) for r in range(8)]
    assert len(page(ranks).html) <= 1_000_000
