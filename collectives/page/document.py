"""The page as one HTML file: its data, its style and its program, with nothing to load from elsewhere."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from numbers import Integral

from autograd.errors import ArgumentError, short, typed_errors
from autograd.files import replacing

from ..inspect.record import RankRecords
from ..inspect.topology import Topology
from .data import Predicted, page_data, selected

__all__ = ["Page", "page"]


_SCRIPTS = ("run.js", "signs.js", "panel.js", "view.js", "page.js")


@typed_errors
class Page:
    """An HTML page of a program's ranks. A notebook shows it in place.

    Attributes
    ----------
    html : str
        The whole document.
    records : int
        The number of records on it, of all ranks.
    """

    def __init__(self, html: str, records: int):
        if not isinstance(html, str) or not isinstance(records, Integral):
            raise ArgumentError(
                f"Page({short(html)}, {short(records)}) was given; needed: a document, and the number of its records\n"
                "  fix: make it with page(records)"
            )
        self.html: str = html
        self.records: int = records

    def __repr__(self) -> str:
        return f"<page of {self.records:,} records, {len(self.html.encode()):,} bytes>"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the document to a file. An existing file is replaced at once, or not at all.

        Raises
        ------
        FileError
            Something is there that is no file, or a symbolic link that another user has made.
        WriteError
            The disk is full, or the folder is missing or may not be written. It is an OSError, too.
        """
        with replacing(path, "page") as file:
            file.write(self.html.encode())

    def _repr_html_(self) -> str:
        style = "width:100%;height:640px;border:1px solid #ccc"
        return f'<iframe srcdoc="{escape(self.html)}" style="{style}" title="ranks of a program"></iframe>'


@typed_errors
def page(
    records: Sequence[RankRecords],
    path: str | os.PathLike[str] | None = None,
    *,
    title: str = "",
    only: Sequence[int] | None = None,
    steps: tuple[int, int] | None = None,
    values: bool = True,
    predicted: Predicted | Topology | None = None,
) -> Page:
    """Make a page of the records of a program's ranks: one HTML file without a network, a library or a build step.

    A column is an operation in logical order, and a row a rank. The cotangents of the backward direction stand below
    their operations. Ranks whose programs differ are aligned by their communication. The page contains the values of
    small arrays, summaries of others, and the program's source around each line that ran: pass it on with care.

    Parameters
    ----------
    records : sequence of RankRecords
        One for each rank, as `recording_operations` makes them.
    path : path, optional
        The file to write. Without it nothing is written.
    title : str
        The title of the page.
    only : sequence of int, optional
        The world ranks to show. By default all.
    steps : (int, int), optional
        The first step of training to show, counted from 0, and the step after the last. By default everything.
    values : bool
        Whether the page contains values of arrays. Without them it still marks copies that differ and values that are
        not finite, if the records have values.
    predicted : Topology, or sequence of sequence of (float, float), optional
        Predicted times are another horizontal axis. For a `Topology`, computation takes its measured time, and
        communication that of a model of the machine. Or, by rank and record: the begin and end in seconds, not with
        `steps`.

    Returns
    -------
    Page

    Raises
    ------
    ArgumentError
        A rank without records, steps that were not marked, or predicted times of other records.

    Examples
    --------
    >>> from collectives.inspect.record import OperationRecord, RankRecords
    >>> from collectives.page import page
    >>> records = [OperationRecord(0, "forward", "exp"), OperationRecord(1, "backward", "exp", adjoint_of=0)]
    >>> made = page([RankRecords(0, records=records)], title="one operation")
    >>> made.html.startswith("<!doctype html>"), "http" in made.html.replace("http-equiv", "").replace("www.w3.org", "")
    (True, True)
    """
    if not isinstance(records, list | tuple) or not all(isinstance(of, RankRecords) for of in records):
        raise ArgumentError(
            f"page({short(records)}) was given; needed: a list with the RankRecords of each rank\n"
            "  fix: page(cc.run(program, ranks)), where the program returns what cc.recording_operations gave"
        )
    chosen = selected(records, only=only, steps=steps)
    data = page_data(chosen, title=title, values=values, predicted=predicted)
    text = _document(title, json.dumps(data, separators=(",", ":"), allow_nan=False))
    made = Page(text, sum(len(of.records) for of in chosen))
    if path is not None:
        made.write(path)
    return made


def _document(title: str, data: str) -> str:
    def read(name: str) -> str:
        return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")

    packed = base64.b64encode(gzip.compress(data.encode(), compresslevel=7, mtime=0)).decode()
    parts = {
        "TITLE": escape((title or "ringtape: ranks").encode(errors="replace").decode()),  # a file's name may be no text
        "CSS": read("page.css"),
        "SCRIPT": "\n".join(['"use strict";', *map(read, _SCRIPTS)]),
        "DATA": packed,
    }
    return re.sub("@([A-Z]+)@", lambda mark: parts[mark[1]], read("page.html"))  # once: a part may look like a mark
