"""`DataLoader`: the batches of a data set, on one process or shared by the ranks of a mesh."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np

from .. import random
from ..arrays.device import as_array, to_host
from ..digests import bytes_of_values
from ..engine.leaves import Leaf, make_leaf
from ..engine.pytree import tree_map
from ..engine.state import state
from ..engine.tensor import TENSORS
from ..errors import ArgumentError, DtypeError, LayoutError, MeshError, OptionError, ShapeError, typed_errors
from ..layouts.layout import C, Grid, I, Label, Shard
from ..layouts.partition import labels_of_parts
from ..layouts.rank_values import rank_axes
from ..random.keys import check_key
from .datasets import Subset, TensorDataset, examples_of
from .sampling import parts_of

__all__ = ["DataLoader"]


@typed_errors
class DataLoader:
    """Iterate over the batches of a data set, an epoch at a time.

    Each iteration is the next epoch, with another random order, also after one that was broken off:
    ``next(iter(loader))`` counts as an epoch. A batch is a global batch, whatever the number of ranks: rank r of the
    axis `axis` gets the r-th part of its rows, divided as by `numpy.array_split`, which may be empty. The arrays of a
    batch are Tensors: without a mesh they have no layout; on a mesh their label is ``Shard(0)`` on `axis`, with the
    extents of all parts (``x.global_shape[0]`` is the number of rows of the global batch), and C, the same on all
    ranks, on the other axes. This needs no communication.

    Parameters
    ----------
    dataset : Dataset
        The same on every rank, with all examples; or any object with ``__len__`` and ``__getitem__``.
    batch_size : int
        The number of examples in a batch, over all ranks.
    shuffle : bool
        Whether the order of an epoch is random.
    axis : str or sequence of str, optional
        The mesh axis whose ranks share the rows of a batch, or several. ``()``: each rank gets all rows. On a mesh it
        must be stated.
    key : random.Key, optional
        The key of the orders: epoch e has that of ``key.at(key.step + e)``. By default the thread's next key of the
        name "shuffle"; see `random`.
    drop_last : bool
        Whether to leave out a smaller last batch.
    num_workers : int
        The number of threads that load batches ahead. With 0 a batch is loaded when it is asked for.
    prefetch_factor : int
        The number of batches that each thread loads ahead.
    shares : sequence of float, optional
        A number of at least 0 for each rank of `axis`, the same on all ranks: the rows of a batch are divided in
        proportion to them, as by `share`. `parallel.report.StepReport.shares` returns those of the measured speeds.
        The attribute may be assigned, and holds from the next iteration on; to change it in mid-epoch,
        ``loader.load_state_dict(loader.state_dict())`` and iterate again: the epoch continues. Batches and their order
        do not depend on it, and a loss that is divided by the global number of rows has the same gradient.
    collate_fn : callable, optional
        Makes a batch from a list of examples, in place of `default_collate`. Each array of the batch has a first
        dimension of the length of the list, and for the rest the same shape on all ranks.
    device : str, optional
        Where batches are put: "cpu", or with CuPy "cuda" or "cuda:0". By default they stay where the data set is.

    Attributes
    ----------
    epoch : int
        The epoch of the present iteration, or of the next one if it has ended.
    position : int
        The number of examples of the epoch that the iteration has given, over all ranks.

    Raises
    ------
    ArgumentError
        The data set has no length or no ``__getitem__``.
    OptionError
        A number is out of range, `shares` is not a number for each rank, or `axis` is not stated on a mesh.
    MeshError
        `axis` is stated, and there is no mesh; or the mesh has changed since the iteration began.
    LayoutError
        The key has axes (`Key.along`), so the ranks would have different orders.
    ShapeError
        `collate_fn` has returned an array without a row for each example.

    Notes
    -----
    Ranks whose orders differ, as from different keys, or whose data sets have different lengths, get a
    `ReplicaMismatch` at the next collective, unless the check mode is ``off``. An exception in a thread is raised where
    its batch is asked for, with a note that names the examples. The threads end with the iteration, also if it is
    broken off. They do not communicate, so deadlocks are found as without them.

    Examples
    --------
    >>> import numpy
    >>> from autograd import data, random
    >>> X, y = numpy.arange(10.0).reshape(5, 2), numpy.arange(5)
    >>> loader = data.DataLoader(data.TensorDataset(X, y), 2, shuffle=True, key=random.Key(0, "train"))
    >>> [(xb.shape, yb.tolist()) for xb, yb in loader]
    [((2, 2), [1, 0]), ((2, 2), [3, 2]), ((1, 2), [4])]
    >>> loader.epoch
    1

    Two ranks get the same batches, each its part of them:

    >>> import collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=2):
    ...         mine = data.DataLoader(data.TensorDataset(X, y), 2, shuffle=True, key=random.Key(0, "train"), axis="dp")
    ...         return [(yb.numpy().tolist(), yb.global_shape) for _, yb in mine]
    >>> for rank in cc.run(program, ranks=2):
    ...     print(rank)
    [([1], (2,)), ([3], (2,)), ([4], (1,))]
    [([0], (2,)), ([2], (2,)), ([], (1,))]
    """

    def __init__(
        self, dataset: Any, batch_size: int = 1, shuffle: bool = False, *, axis: str | Sequence[str] | None = None,
        key: random.Key | None = None, drop_last: bool = False, num_workers: int = 0, prefetch_factor: int = 2,
        collate_fn: Callable[[list[Any]], Any] | None = None, shares: Sequence[float] | None = None,
        device: str | None = None,
    ):  # fmt: skip
        is_one = getattr(dataset, "shape", None) == ()  # an array that is a number
        if isinstance(dataset, tuple) or is_one or not (
            hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        ):  # fmt: skip
            fix = f"fix: data.TensorDataset({'X, y' if isinstance(dataset, tuple) else 'X'}), or a list of examples"
            raise ArgumentError(
                f"DataLoader: dataset is a {type(dataset).__name__}{' of no dimensions' * is_one}; needed: a "
                f"Dataset, with __len__ and __getitem__\n  {fix}"
            )
        self.dataset = dataset
        self.batch_size = _count("batch_size", batch_size, 1)
        self.shuffle = bool(shuffle)
        self.axis = axis
        self.drop_last = bool(drop_last)
        self.num_workers = _count("num_workers", num_workers, 0)
        self.prefetch_factor = _count("prefetch_factor", prefetch_factor, 1)
        self.collate_fn = collate_fn
        self.shares = shares
        self.device = device
        self.key: random.Key | None = None
        if self.shuffle:
            self.key = random.next_key("shuffle") if key is None else key
            check_key(self.key, "DataLoader")
            if self.key.axes:
                raise LayoutError(
                    f"DataLoader: key={self.key!r} gives the ranks of axis {self.key.axes[0]!r} orders of their own; "
                    "needed: one order, of which each rank takes its share\n  fix: a key without along(...)"
                )
        self.epoch = 0
        self.position = 0
        self._is_restored = False  # whether the next iteration continues at `position`
        self._latest: object = None  # the latest iteration, which alone counts

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        n = len(self.dataset)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch, or continue the one of `load_state_dict`."""
        if self.position and not self._is_restored:  # the last iteration was broken off
            self.epoch, self.position = self.epoch + 1, 0
        self._is_restored = False
        n, grid = len(self.dataset), state.grid
        axes = self._axes(grid)
        if grid is not None:
            text = f"{n} examples{_digests(self.dataset)}, {self.batch_size} a batch, epoch {self.epoch} from "
            text += f"{self.position} on, {self.key!r}"
            if self.shares is not None:
                text += f", shares {[float(s) for s in self.shares]}"
            named = Leaf(np.frombuffer(text.encode(), np.uint8), grid.layout([I] * len(grid.names)), name=text)
            state.distribution.note_declaration("order", named)
        order = np.arange(n)
        if self.key is not None:
            order = random.permutation(self.key.at(self.key.step + self.epoch), n)
        last = n - self.batch_size + 1 if self.drop_last else n
        whole = [order[i : i + self.batch_size] for i in range(self.position, last, self.batch_size)]
        if self.shares is not None and not axes:
            raise OptionError(
                f"DataLoader: shares={self.shares!r} was given, and no axis along which to divide the rows\n  fix: "
                "axis=..., or leave shares out"
            )
        parts = {k: parts_of(k, axes, self.shares, "DataLoader") if axes else ((k,), 0) for k in set(map(len, whole))}
        mine = []
        for rows in whole:
            extents, place = parts[len(rows)]
            start = sum(extents[:place])
            mine.append(rows[start : start + extents[place]])
        labels = partial(_labels, axes=axes, extents=None if self.shares is None else parts)
        self._latest = token = object()
        return self._run(token, whole, mine, grid, labels)

    def _axes(self, grid: Grid | None) -> tuple[str, ...]:
        axes = (self.axis,) if isinstance(self.axis, str) else tuple(self.axis or ())
        if grid is None:
            if axes:
                raise MeshError(
                    f"DataLoader: axis={self.axis!r} was given, and no mesh is current\n  fix: iterate inside "
                    f"`with cc.Mesh({axes[0]}=-1):`"
                )
        elif self.axis is None:
            raise OptionError(
                f"DataLoader: axis was not given, and a mesh with axes {', '.join(map(repr, grid.names))} is current\n"
                f"  fix: axis={grid.names[0]!r}: the ranks of the axis share the rows of each batch\n"
                "  or:  axis=(): every rank gets all rows of each batch"
            )
        for name in axes:
            grid is not None and grid.axis(name)  # raises MeshError
        return axes

    def _run(
        self, token: object, whole: list[np.ndarray], mine: list[np.ndarray], grid: Grid | None, labels: Any
    ) -> Iterator[Any]:
        with closing(self._loaded(mine, whole)) as loaded:
            for rows, indices, values in zip(whole, mine, loaded, strict=True):
                if state.grid is not grid:
                    raise MeshError(
                        "DataLoader: the mesh has changed since the iteration began\n  fix: begin it in "
                        "the block of the mesh in which its batches are used"
                    )
                if token is self._latest:
                    self.position += len(rows)
                made = partial(_labelled, count=len(indices), total=len(rows), labels=labels, device=self.device)
                yield tree_map(made, values)
        if token is self._latest:
            self.epoch, self.position = self.epoch + 1, 0

    def _loaded(self, mine: list[np.ndarray], whole: list[np.ndarray]) -> Generator[Any]:
        """The batches in order, loaded by this thread, or ahead by others."""
        if not self.num_workers:
            for indices, rows in zip(mine, whole, strict=True):
                yield self._load(indices, rows)
            return
        pool = ThreadPoolExecutor(self.num_workers, "ringtape data loader")
        try:
            waiting: deque[Future[Any]] = deque()
            for indices, rows in zip(mine, whole, strict=True):
                waiting.append(pool.submit(self._load, indices, rows))
                if len(waiting) > self.num_workers * self.prefetch_factor:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _load(self, indices: np.ndarray, rows: np.ndarray) -> Any:
        """The examples of `indices`. Without any, an empty batch of the kind that the batch of `rows` is."""
        used = indices if len(indices) else rows[:1]
        try:
            if self.collate_fn is None:
                values = examples_of(self.dataset, used)
            else:
                values = self.collate_fn([self.dataset[int(i)] for i in used])
        except Exception as error:
            shown = ", ".join(map(str, used[:5].tolist())) + (f", ... ({len(used)})" if len(used) > 5 else "")
            error.add_note(f"while DataLoader loaded the examples {shown} of epoch {self.epoch}")
            raise
        return values if len(indices) else tree_map(lambda x: x[:0], values)

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the run, as numbers and texts that any format can save: epoch, position and key.

        A loader that loads it continues with the batch after the last one that was given, also with another number of
        ranks or another batch size. Batches that were loaded ahead do not count.

        Examples
        --------
        >>> import numpy
        >>> from autograd import data, random
        >>> X = data.TensorDataset(numpy.arange(6))
        >>> first = data.DataLoader(X, 2, shuffle=True, key=random.Key(0, "train"))
        >>> batches = iter(first)
        >>> _ = next(batches)
        >>> second = data.DataLoader(X, 2, shuffle=True)
        >>> second.load_state_dict(first.state_dict())
        >>> [x.tolist() for (x,) in batches] == [x.tolist() for (x,) in second]
        True
        """
        key = self.key and {"seed": self.key.seed, "name": self.key.name, "step": self.key.step}
        return {"epoch": self.epoch, "position": self.position, "examples": len(self.dataset), "key": key}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the place of a `state_dict`: the next iteration begins there. The key is restored, too.

        Raises
        ------
        OptionError
            An entry is missing or unknown, the data set has another number of examples, or one loader shuffles and the
            other does not.
        """
        self.prepare_state_dict(state)()

    def prepare_state_dict(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Check a `state_dict`, and return the function that sets it. `nn.load` calls it."""
        mine = self.state_dict()
        if set(state) != set(mine):
            raise OptionError(
                f"load_state_dict: {sorted(state)} was given; needed: {sorted(mine)}, the state_dict of a DataLoader"
            )
        if int(state["examples"]) != mine["examples"] or (state["key"] is None) != (self.key is None):
            given, needed = (
                f"{s['examples']} examples, {'not ' * (s['key'] is None)}shuffled" for s in (state, mine)
            )
            raise OptionError(
                f"load_state_dict: the state is that of a loader of {given}; this loader has {needed}; needed: the "
                "same, for the order of the epoch to be the same"
            )
        key = self.key if state["key"] is None else random.Key(**state["key"])
        check = {name: _count(name, state[name], 0) for name in ("epoch", "position")}

        def commit() -> None:
            self.key = key
            self.epoch, self.position = check["epoch"], check["position"]
            self._is_restored = True
            self._latest = None

        return commit

    def __repr__(self) -> str:
        n = len(self.dataset)
        shared = "" if self.axis is None else f", axis={self.axis!r}"
        return (
            f"DataLoader({type(self.dataset).__name__} of {n} examples, batch_size={self.batch_size}, "
            f"shuffle={self.shuffle}{shared}, epoch={self.epoch}, position={self.position})"
        )


def _count(name: str, value: Any, least: int) -> int:
    if rank_axes(value):
        raise LayoutError(f"DataLoader: {name}={value!r} depends on the rank; needed: one number")
    try:
        n = int(operator.index(value))
    except TypeError:
        raise DtypeError(f"DataLoader: {name}={value!r} was given; needed: an integer") from None
    if n < least:
        raise OptionError(f"DataLoader: {name}={n} was given; needed: at least {least}")
    return n


def _labels(
    total: int, axes: tuple[str, ...], extents: dict[int, tuple[tuple[int, ...], int]] | None
) -> tuple[dict[str, Label] | None, bool]:
    """The labels of a batch of `total` rows, and whether its parts follow the rule for a stated global shape."""
    grid = state.grid
    if grid is None:
        return None, False
    labels: dict[str, Label] = {name: Shard(0) if name in axes else C for name in grid.names}
    if extents is not None:
        at = [grid.axis(name) for name in axes]
        sizes, places = [grid.sizes[k] for k in at], [int(grid.place[k]) for k in at]
        labels |= zip(axes, labels_of_parts(0, extents[total][0], sizes, places), strict=True)
    return labels, bool(axes) and extents is None


def _labelled(x: Any, count: int, total: int, labels: Any, device: str | None) -> Any:
    """The Tensor of an array of a batch with `count` rows on this rank, and `total` on all."""
    if x.__class__ in TENSORS:
        x = x.array
    array = as_array(x)
    if array.ndim == 0 or len(array) != count:
        raise ShapeError(
            f"DataLoader: collate_fn, or batch() of the data set, returned an array of shape {array.shape} for {count} "
            "examples; needed: a row for each"
        )
    found, is_stated = labels(total)
    shape = (total, *array.shape[1:]) if is_stated else None
    return make_leaf("DataLoader", array, found, False, shape, device=device)


def _digests(dataset: Any) -> str:
    """The digests of the indices of a `Subset` and of three examples of arrays, for the comparison between ranks.

    Three examples show the commonest mistake, that each rank has rows of its own. Other data sets may draw at random or
    be slow, so none of their examples is made for this.
    """
    of_indices, whole, n = 0, dataset, len(dataset)
    while isinstance(dataset, Subset):
        of_indices, dataset = crc32(dataset.indices.tobytes(), of_indices), dataset.dataset
    text = f" of a subset with digest {of_indices:08x}" if of_indices else ""
    if n and isinstance(dataset, TensorDataset):
        of_rows = 0
        for rows in whole.batch([0, n // 2, n - 1]):
            of_rows = crc32(bytes_of_values(to_host(rows)).data, of_rows)
        text += f", three with digest {of_rows:08x}"
    return text
