"""Texts of the program that look like parts of the page: titles, names, errors. All are shown as texts.

The document is read by Python's parser, and what its scripts draw by Node.js, where there is no browser.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from collectives.inspect.record import CallOf, OperationRecord, RankRecords
from collectives.page import page

from .made import summary
from .test_data import content

PAYLOADS = [
    "@DATA@", "@SCRIPT@", "@TITLE@", "@CSS@", "@DATA@@TITLE@", "\\1 \\g<0>", "</script><script>alert(1)</script>",
    "<!--", "-->", "<!--<script>", "]]>", "</title><img src=x onerror=alert(1)>", "<img src=x onerror=alert(1)>",
    "'\"><u>", "&lt;b&gt;", "\u2028\u2029", "`${alert(1)}`", "</style>", "\x00\x08", "\udcff", "𝔘<i>",
    "javascript:alert(1)", "constructor", "__proto__",
]  # fmt: skip


class Reader(HTMLParser):
    """The elements of a document, the attributes that run something, and the text of its title."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.runs: list[str] = []
        self.title = ""

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append(tag)
        self.runs += [name for name, _ in attributes if name.startswith("on")]

    def handle_comment(self, data: str) -> None:
        self.tags.append(f"comment {data}")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "title" and "title" in self.tags[-1:]:
            self.title += data


def read(text: str) -> Reader:
    found = Reader()
    found.feed(text)
    found.close()
    return found


def records(text: str) -> list[RankRecords]:
    """Two ranks whose records have a text wherever the page shows one."""
    found, file = [], f"/{text}.py".replace("\x00", "")
    for rank in range(2):
        call = CallOf(text, text, text, 1, (0, 1), 8, algorithm=text, reason=text, begin_ns=5, end_ns=6, has_ended=True)
        operations = [
            OperationRecord(0, "forward", f"parameter {text}", 1, 0, (text,), "", 0, value=summary([1.0]), layout=text),
            OperationRecord(1, "forward", text, 1, 1, (text, text), file, 3, (0, -1), (text, text), (text, text),
                            f"{{{text}: V}}", summary([1.0, rank]), calls=[call], begin_ns=1, end_ns=9),
            OperationRecord(2, "backward", text, 1, 1, (text,), file, 3, adjoint_of=1, value=summary([2.0])),
            OperationRecord(3, "forward", text, 1, 2, (text,), file, 4, (1,), (text,), (text,), error=text),
        ]  # fmt: skip
        found.append(RankRecords(rank, ((text, 2),), (rank,), operations, error=text))
    return found


@pytest.mark.parametrize("text", PAYLOADS, ids=ascii)
def test_the_document_is_the_same_but_for_its_data(text: str, tmp_path: Path) -> None:
    usual = read(page(records("usual"), title="usual").html)
    made = page(records(text), tmp_path / "a.html", title=text).html
    found = read(made)
    assert (found.tags, found.runs) == (usual.tags, usual.runs) == (usual.tags, [])
    shown = text.encode(errors="replace").decode()
    assert found.title.rstrip("\n") == shown
    assert made.count("@DATA@") == text.count("@DATA@")  # in the title alone
    data = content(made)
    assert data["title"] == text and data["ends"] == [text] * 2 and text in data["texts"]
    assert (tmp_path / "a.html").read_bytes() == made.encode()


def drawn(made: str) -> Reader:
    """What the scripts of a page draw."""
    if (node := shutil.which("node")) is None:
        pytest.skip("no Node.js, which runs the scripts of a page without a browser")
    program = Path(__file__).with_name("without_browser.js")
    done = subprocess.run([node, str(program)], input=made.encode(), capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    texts = json.loads(done.stdout)
    assert len(texts) > 20
    return read("\n".join(texts))


@pytest.fixture(scope="module")
def usual() -> Reader:
    return drawn(page(records("usual"), title="usual").html)


@pytest.mark.parametrize("text", PAYLOADS, ids=ascii)
def test_texts_are_drawn_as_texts(text: str, usual: Reader) -> None:
    found = drawn(page(records(text), title=text).html)
    assert set(found.tags) <= set(usual.tags) and found.runs == []


def test_a_text_that_is_not_escaped_is_found(usual: Reader) -> None:
    text = "<img src=x onerror=alert(1)>"
    made = page(records(text), title=text).html
    found = drawn(made.replace('replace(/[&<>"]/g', "replace(/[~]/g"))
    assert "img" in set(found.tags) - set(usual.tags) and "onerror" in found.runs
