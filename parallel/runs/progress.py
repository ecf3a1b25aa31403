"""`Progress`: how far a loop has come, and how many examples it processes in a second. Rank 0 shows it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from importlib import import_module
from typing import Any

from autograd.data import DataLoader
from autograd.errors import typed_errors

from .values import plain_value, writes

__all__ = ["Progress"]


@typed_errors
class Progress:
    """Iterate over an iterable and show the progress and the throughput on stderr, on rank 0 only.

    Over a `DataLoader` it counts the examples of all ranks, otherwise the items. With tqdm, of the extra "runs", it is
    a bar of tqdm. Without, it is a line: on a terminal it is overwritten, elsewhere a new one is written after
    `interval_s`.

    Parameters
    ----------
    iterable : iterable
    desc : str
        A text at the beginning.
    total : int, optional
        The number of items, if the iterable does not know it.
    interval_s : float
        The least time between two lines, where no terminal shows them.
    file : text file, optional
        Where to write. By default stderr.

    Attributes
    ----------
    count : int
        The examples, or items, that are done; in a resumed epoch with those before.
    rate : float
        The examples, or items, that were done in a second, since the iteration began.

    Examples
    --------
    >>> import io, numpy
    >>> from autograd import data
    >>> from parallel import Progress
    >>> progress = Progress(data.DataLoader(data.TensorDataset(numpy.arange(10.0)), 4), "epoch 0", file=io.StringIO())
    >>> for (x,) in progress:
    ...     progress.set_postfix(loss=x.sum())
    >>> progress.count, progress.rate > 0
    (10, True)
    """

    def __init__(
        self, iterable: Iterable[Any], desc: str = "", *, total: int | None = None, interval_s: float = 10.0,
        file: Any = None,
    ):  # fmt: skip
        self.iterable = iterable
        self.desc = desc
        self.total = total
        self.interval_s = interval_s
        self.file = file
        self.count = 0
        self._postfix: dict[str, str] = {}
        self._began_s = self._ended_s = 0.0
        self._before = 0

    @property
    def rate(self) -> float:
        passed_s = (self._ended_s or time.perf_counter()) - self._began_s
        return (self.count - self._before) / passed_s if self._began_s and passed_s > 0 else 0.0

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self.iterable)
        loader = self.iterable if isinstance(self.iterable, DataLoader) else None
        total = self.total
        if loader is not None:
            n = len(loader.dataset)
            total = len(loader) * loader.batch_size if loader.drop_last else n
        elif total is None and isinstance(self.iterable, Sized):
            total = len(self.iterable)
        self.count = self._before = loader.position if loader is not None else 0
        self._postfix = {}
        self._began_s, self._ended_s = time.perf_counter(), 0.0
        unit = "item" if loader is None else "example"
        show = _display(self.desc, total, unit, self.count, self.file, self.interval_s) if writes() else None
        try:
            for item in iterator:
                yield item
                self.count = self.count + 1 if loader is None else loader.position
                if show is not None:
                    show.update(self.count, self.rate, self._postfix)
        finally:
            self._ended_s = time.perf_counter()
            if show is not None:
                show.close(self.count, self.rate, self._postfix)

    def set_postfix(self, **values: Any) -> None:
        """Show these values behind the progress, from the next item on. All ranks call it.

        Raises
        ------
        LayoutError
            A value is an addend, a part, or another one on each rank, as in `RunLog.write`.
        """
        found = {name: plain_value(x, name, "Progress.set_postfix") for name, x in values.items()}
        self._postfix = {name: f"{x:.4g}" if isinstance(x, float) else str(x) for name, x in found.items()}


class _Line:
    """A display of one line, where tqdm is not installed."""

    def __init__(self, desc: str, total: int | None, unit: str, file: Any, interval_s: float):
        self.desc, self.total, self.unit, self.file = desc, total, unit, file
        self.is_terminal = bool(getattr(file, "isatty", lambda: False)())
        self.interval_s = 0.1 if self.is_terminal else interval_s
        self.shown_s = time.perf_counter()
        self.width = 0

    def update(self, count: int, rate: float, postfix: dict[str, str]) -> None:
        now_s = time.perf_counter()
        if now_s - self.shown_s >= self.interval_s:
            self.shown_s = now_s
            self._show(count, rate, postfix, "" if self.is_terminal else "\n")

    def _show(self, count: int, rate: float, postfix: dict[str, str], end: str) -> None:
        of = "" if self.total is None else f"/{self.total}"
        per_s = f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
        parts = [f"{count}{of} {self.unit}s", f"{per_s} {self.unit}s/s", *(f"{k}={v}" for k, v in postfix.items())]
        text = f"{self.desc}: " * bool(self.desc) + ", ".join(parts)
        shown = "\r" + text.ljust(self.width) if self.is_terminal else text
        self.width = len(text)
        self.file.write(shown + end)
        self.file.flush()

    def close(self, count: int, rate: float, postfix: dict[str, str]) -> None:
        self._show(count, rate, postfix, "\n")


class _Bar:
    """A bar of tqdm."""

    def __init__(self, bar: Any):
        self.bar = bar

    def update(self, count: int, rate: float, postfix: dict[str, str]) -> None:
        if postfix:
            self.bar.set_postfix(postfix, refresh=False)
        self.bar.update(count - self.bar.n)

    def close(self, count: int, rate: float, postfix: dict[str, str]) -> None:
        self.bar.close()


def _display(desc: str, total: int | None, unit: str, count: int, file: Any, interval_s: float) -> _Line | _Bar:
    file = sys.stderr if file is None else file
    try:
        tqdm = import_module("tqdm").tqdm
    except ImportError:
        return _Line(desc, total, unit, file, interval_s)
    return _Bar(tqdm(desc=desc or None, total=total, unit=f" {unit}s", initial=count, file=file))
