"""Plain arrays: which arrays may be operands or parts of files, and the fix for each that may not."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from autograd.arrays.plain import require_plain_array
from autograd.errors import DtypeError


class Labelled(np.ndarray):
    """A subclass that adds a name and changes no arithmetic, as in NumPy's guide to subclasses."""

    def __array_finalize__(self, of: Any) -> None:
        self.label = getattr(of, "label", "")


class WithUnit(np.ndarray):
    """A subclass with NumPy's protocol, as those of units have."""

    def __array_ufunc__(self, *args: Any, **words: Any) -> Any:
        return NotImplemented


class SkipsNan(np.ndarray):
    """A subclass with a reduction of its own."""

    def mean(self, *args: Any, **words: Any) -> Any:
        return np.nanmean(np.asarray(self), *args, **words)


class Mixed(SkipsNan, Labelled):
    """A class that inherits a reduction."""


def _matrix(values: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        return np.matrix(values)


PLAIN = {
    "array": np.ones(3),
    "no dimensions": np.array(1.0),
    "scalar": np.float32(1),
    "subclass": np.ones(3).view(Labelled),
    "recarray of numbers": np.ones(3).view(np.recarray),
    "float16": np.ones(3, "f2"),
    "long double": np.ones(3, np.longdouble),
    "other byte order": np.ones(3, ">f4"),
    "booleans": np.ones(3, bool),
}
STORED = {
    "texts": np.array(["a", "bc"]),
    "bytes": np.array([b"a"]),
    "dates": np.array(["2020-01-01"], "M8[D]"),
    "spans": np.array([3], "m8[s]"),
}
REFUSED = {
    "masked": (np.ma.masked_array([1.0, 2.0], [0, 1]), "a masked array"),
    "masked without a mask": (np.ma.masked_array([1.0, 2.0]), "a masked array"),
    "masked scalar": (np.ma.masked, "a masked array"),
    "masked labels": (np.ma.masked_array([1, 2], [0, 1]), "x.filled(-100)"),
    "matrix": (_matrix([[1.0]]), "a numpy.matrix"),
    "protocol": (np.ones(3).view(WithUnit), "WithUnit, which has a __array_ufunc__ of its own"),
    "reduction": (np.ones(3).view(SkipsNan), "SkipsNan, which has a mean of its own"),
    "inherited": (np.ones(3).view(Mixed), "Mixed, which has a mean of its own"),
    "fields": (np.zeros(2, [("a", "f4"), ("b", "i2")]), "x['a'], one field"),
    "record": (np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])[0], "x['a'], one field"),
    "bytes of no type": (np.zeros(2, "V4"), "dtype |V4"),
    "objects": (np.array([None, 1]), "an array of objects"),
    "texts of any length": (np.array(["a"], np.dtypes.StringDType()), "dtype StringDType"),
}


@pytest.mark.parametrize("name", [*PLAIN, *STORED, *REFUSED])
def test_plain_arrays_pass_and_others_are_refused(name: str) -> None:
    x, words = REFUSED[name] if name in REFUSED else ({**PLAIN, **STORED}[name], "")
    for stored in (False, True):
        if name in PLAIN or (stored and name in STORED):
            require_plain_array(x, "a caller", stored=stored)
            continue
        with pytest.raises(DtypeError, match="^a caller: .* was given; needed: [^\n]+\n  fix: ") as caught:
            require_plain_array(x, "a caller", stored=stored)
        if not stored:
            assert words in str(caught.value)


def test_a_memmap_is_plain(tmp_path: Any) -> None:
    require_plain_array(np.memmap(tmp_path / "x", "f8", "w+", shape=(2,)))


FIXES = [
    (_matrix([[1.0, 2.0]]), "numpy.asarray(x)"),
    (np.ones(3).view(WithUnit), "numpy.asarray(x)"),
    (np.zeros(2, [("a", "f4"), ("b", "i2")]), "x['a']"),
    (np.zeros((2, 3), "V4"), "numpy.frombuffer(x.tobytes(), 'u1').reshape(-1, 4)"),
    (np.array([1.0, 2], object), "x.astype(float)"),
    (np.array(["1.5"]), "x.astype(float)"),
    (np.array(["a", "b"]), "numpy.unique(x, return_inverse=True)[1]"),
    (np.array(["2020-01-01"], "M8[D]"), "x.astype('int64')"),
    (np.ma.masked_array([1, 2], [0, 1]), "x.filled(-100)"),
    (np.ma.masked_array([1.0, 2.0], [0, 1]), "x.filled(0)"),
]


@pytest.mark.parametrize(("x", "fix"), FIXES)
def test_a_fix_gives_a_plain_array(x: Any, fix: str) -> None:
    with pytest.raises(DtypeError) as caught:
        require_plain_array(x)
    assert fix in str(caught.value)
    require_plain_array(eval(fix, {"numpy": np, "x": x}))


STORED_FIXES = [
    (_matrix([[1.0, 2.0]]), "numpy.asarray(x)"),
    (np.zeros(2, [("a", "f4"), ("b", "i2")]), "{name: x[name] for name in x.dtype.names}"),
    (np.zeros((2, 3), "V4"), "numpy.frombuffer(x.tobytes(), 'u1').reshape(-1, 4)"),
    (np.array(["a"], np.dtypes.StringDType()), "numpy.array(x.tolist())"),
    (np.array(["a", 2], object), "x.tolist()"),
    (np.ma.masked_array([1.0, 2.0], [0, 1]), "x.filled(0)"),
    (np.ma.masked_array([1.0, 2.0], [0, 1]), "numpy.ma.getmaskarray(x)"),
]


@pytest.mark.parametrize(("x", "fix"), STORED_FIXES)
def test_a_fix_gives_what_a_file_holds(x: Any, fix: str) -> None:
    with pytest.raises(DtypeError) as caught:
        require_plain_array(x, stored=True)
    assert fix in str(caught.value)
    found = eval(fix, {"numpy": np, "x": x})
    for part in found.values() if isinstance(found, dict) else [] if isinstance(found, list) else [found]:
        require_plain_array(part, stored=True)
