"""Data sets: examples by their index, in memory, in memory maps, or computed when they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import random
from ..arrays.device import is_array, move
from ..arrays.plain import require_plain
from ..engine.pytree import flatten
from ..engine.tensor import TENSORS
from ..errors import ArgumentError, DtypeError, LayoutError, OptionError, ShapeError, typed_errors
from ..layouts.layout import C, D, I, R
from ..layouts.messages import describe
from ..random.keys import real

__all__ = ["Dataset", "Subset", "TensorDataset", "default_collate", "random_split"]


@typed_errors
class Dataset:
    """Base class of data sets: define ``__len__`` and ``__getitem__``, which returns the example with an index.

    An example is an array or a number, or a tuple, list or dictionary of them. A data set that can read many examples
    at once faster than one by one also overrides `batch`. Any other object with these two methods is a data set, too,
    as those of torch are.

    With ``DataLoader(num_workers=)`` both run in other threads, possibly several at a time. A random choice of an
    example is a draw with a key of its index, ``key.at(index)``, not a call of `random.next_key` or ``numpy.random``.

    Examples
    --------
    >>> from autograd import data
    >>> class Squares(data.Dataset):
    ...     def __len__(self):
    ...         return 5
    ...     def __getitem__(self, index):
    ...         return {"x": index, "y": index**2}
    >>> Squares().batch([1, 4])
    {'x': array([1, 4]), 'y': array([ 1, 16])}
    """

    def __getitem__(self, index: Any) -> Any:
        """Return the example with an index."""
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__")

    def __len__(self) -> int:
        """Return the number of examples."""
        raise NotImplementedError(f"{type(self).__name__} has no __len__")

    def batch(self, indices: Sequence[int] | np.ndarray) -> Any:
        """Return the examples of at least one index, stacked."""
        return default_collate([self[int(i)] for i in indices])


@typed_errors
class TensorDataset(Dataset):
    """The rows of arrays of the same length: example i is the tuple of the i-th row of each.

    Parameters
    ----------
    *tensors : array, memory map, or Tensor
        A Tensor under a mesh is constant (C) or drawn with one key for all ranks (D) on every axis.
        Their first dimension counts the examples. They are not copied: a batch is a copy of its rows, so only these are
        read from a memory map.

    Raises
    ------
    ShapeError
        The arrays have different numbers of rows, or no dimension.
    DtypeError
        An array is masked, or has an arithmetic of its own.
    LayoutError
        A Tensor has another layout: every rank needs the same rows, all of them.

    Examples
    --------
    >>> import numpy
    >>> from autograd import data
    >>> X, y = numpy.arange(6.0).reshape(3, 2), numpy.array([0, 1, 0])
    >>> data.TensorDataset(X, y).batch([2, 0])
    (array([[4., 5.],
           [0., 1.]]), array([0, 0]))

    A file that is larger than the memory:

    >>> import os, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "X.npy")
    >>> numpy.save(path, X)
    >>> len(data.TensorDataset(numpy.load(path, mmap_mode="r"), y))
    3
    """

    def __init__(self, *tensors: Any):
        if not tensors:
            raise ArgumentError("TensorDataset: no array was given; needed: at least one")
        self.tensors = tuple(_plain(x) for x in tensors)
        shapes = [x.shape for x in self.tensors]
        if any(not shape for shape in shapes) or len({shape[0] for shape in shapes}) > 1:
            raise ShapeError(
                f"TensorDataset: arrays of shapes {', '.join(map(str, shapes))} were given; needed: the same number of "
                "rows, the first dimension, which counts the examples"
            )

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple(x[index] for x in self.tensors)

    def batch(self, indices: Sequence[int] | np.ndarray) -> tuple[Any, ...]:
        rows = np.asarray(indices, np.intp)
        return tuple(x[move(rows, x)] for x in self.tensors)


def _plain(x: Any) -> Any:
    if x.__class__ in TENSORS:
        labels = () if x.layout is None else x.layout.labels
        if any(label is not C and label is not D for label in labels):
            copies = all(label in (C, D, R, I) for label in labels)
            raise LayoutError(
                f"TensorDataset({describe(x.array, x.array.shape, x.layout)}): a Tensor with a layout was given; "
                "needed: plain arrays with all rows on every rank, of which DataLoader(axis=) gives each rank its "
                "share\n  fix: "
                + ("x.numpy(), of which every rank has a copy" if copies else
                   "make the data set of the array with all rows, before it becomes a Tensor or is sharded")
            )  # fmt: skip
        x = x.array
    require_plain(x, "TensorDataset", numbers=False)  # a collate_fn may make numbers of texts and objects
    try:
        return x if is_array(x) else np.asarray(x)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"TensorDataset: NumPy makes no array of a {type(x).__name__}: {error}") from None


@typed_errors
class Subset(Dataset):
    """Some examples of another data set, by their indices.

    Raises
    ------
    DtypeError
        The indices are not one sequence of integers.

    Examples
    --------
    >>> import numpy
    >>> from autograd import data
    >>> odd = data.Subset(data.TensorDataset(numpy.arange(10)), [1, 3, 5])
    >>> len(odd), odd.batch([0, 2])
    (3, (array([1, 5]),))
    """

    def __init__(self, dataset: Any, indices: Sequence[int] | np.ndarray):
        self.dataset = dataset
        given = np.asarray(indices)
        if given.ndim != 1 or given.dtype.kind not in "iu" and len(given):
            fix = "\n  fix: numpy.flatnonzero(mask)" if given.dtype.kind == "b" else ""
            raise DtypeError(
                f"Subset: indices of dtype {given.dtype} and shape {given.shape} were given; needed: a list of integers"
                + fix
            )  # fmt: skip
        self.indices = given.astype(np.int64)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[int(self.indices[index])]

    def batch(self, indices: Sequence[int] | np.ndarray) -> Any:
        return examples_of(self.dataset, self.indices[np.asarray(indices, np.intp)])


@typed_errors
def random_split(dataset: Any, lengths: Sequence[int | float], key: random.Key | None = None) -> list[Subset]:
    """Divide a data set into parts at random, the same on every rank.

    Parameters
    ----------
    dataset : Dataset
    lengths : sequence of int or of float
        The numbers of examples, or fractions that sum to 1. Fractions are rounded down, and what is left goes to the
        first parts, one each, as in torch.
    key : random.Key, optional
        By default the thread's next key; see `random`.

    Returns
    -------
    list of Subset

    Raises
    ------
    OptionError
        The lengths do not sum to that of the data set, or one is negative.
    DtypeError, LayoutError
        A length is no number, or depends on the rank.

    Examples
    --------
    >>> import numpy
    >>> from autograd import data, random
    >>> train, test = data.random_split(data.TensorDataset(numpy.arange(10)), [0.8, 0.2], random.Key(0, "split"))
    >>> len(train), len(test)
    (8, 2)
    """
    n, counts = len(dataset), [int(real(x, "random_split: a length")) for x in lengths]
    if any(isinstance(x, float) for x in lengths) and abs(sum(lengths) - 1) < 1e-6:
        counts = [int(n * x) for x in lengths]
        for i in range(n - sum(counts)):
            counts[i % len(counts)] += 1
    elif any(x != k for x, k in zip(lengths, counts, strict=True)):
        counts = [-1]
    if any(x < 0 for x in counts) or sum(counts) != n:
        raise OptionError(
            f"random_split: lengths={list(lengths)} of a data set of {n} examples; needed: numbers of examples that "
            f"sum to {n}, or fractions that sum to 1"
        )
    order = random.permutation(random.next_key("split") if key is None else key, n)
    ends = np.cumsum([0, *counts]).astype(int)
    return [Subset(dataset, order[a:b]) for a, b in zip(ends[:-1], ends[1:], strict=True)]


def examples_of(dataset: Any, indices: Sequence[int] | np.ndarray) -> Any:
    """The examples of at least one index, stacked, of a `Dataset` or of another object with ``__getitem__``."""
    if isinstance(dataset, Dataset):
        return dataset.batch(indices)
    return default_collate([dataset[int(i)] for i in indices])


@typed_errors
def default_collate(examples: Sequence[Any]) -> Any:
    """Stack examples of the same structure: each array or number in them gets a first dimension.

    Parameters
    ----------
    examples : sequence
        At least one. Each is an array or a number, or a tuple, list or dictionary of them.

    Returns
    -------
    array, or tuple, list or dictionary of arrays

    Raises
    ------
    ArgumentError
        The examples are not nested alike.
    ShapeError
        Arrays at the same place have different shapes.
    DtypeError
        A value is not numeric.

    Examples
    --------
    >>> from autograd import data
    >>> data.default_collate([(0.5, 1), (1.5, 2)])
    (array([0.5, 1.5]), array([1, 2]))
    """
    flat = [flatten(example) for example in examples]
    structure = flat[0][1]
    for i, (_, other) in enumerate(flat):
        if other != structure:
            raise ArgumentError(
                f"default_collate: example 0 of the batch is {structure!r} and example {i} is {other!r}; needed: the "
                "same nesting\n  fix: collate_fn=, a function from a list of examples to a batch"
            )
    return structure.rebuild([_stacked(column) for column in zip(*(leaves for leaves, _ in flat), strict=True)])


def _stacked(column: Sequence[Any]) -> np.ndarray:
    plain = [x.array if x.__class__ in TENSORS else x for x in column]
    require_plain(plain, "default_collate", numbers=False)
    arrays = [x if is_array(x) else np.asarray(x) for x in plain]
    for i, array in enumerate(arrays):
        if array.dtype.kind not in "biufc":
            raise DtypeError(
                f"default_collate: an example has {column[i]!r}; needed: arrays and numbers\n"
                "  fix: leave it out of the example, or collate_fn=, a function from a list of examples to a batch"
            )
        if array.shape != arrays[0].shape:
            raise ShapeError(
                f"default_collate: arrays of shapes {arrays[0].shape} and {array.shape} in one batch; needed: one "
                "shape\n  fix: pad them to one length, the same on all ranks: in the data set, or by collate_fn="
            )
    return np.stack(arrays)
