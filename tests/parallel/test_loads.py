"""What every way to load a state keeps: finite numbers, and the groups of an optimizer that the program holds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim
from autograd.errors import ArgumentError, DtypeError, RingtapeError
from parallel import DataParallel, checkpoint

pytest.importorskip("safetensors", reason="safetensors is not installed")
try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None


class One(nn.Module):
    """A parameter, or a buffer, of a dtype."""

    def __init__(self, values: Any, dtype: Any, is_buffer: bool = False):
        x = np.asarray(values, dtype)
        if is_buffer:
            self.register_buffer("w", x)
        else:
            self.w = ag.Parameter(x)

    @property
    def value(self) -> Any:
        return np.asarray(self.w.data if isinstance(self.w, ag.Tensor) else self.w)


def by_file(suffix: str, **words: Any) -> Callable[[One, One, Path], object]:
    def load(source: One, into: One, folder: Path) -> None:
        nn.save(source, folder / f"x.{suffix}", **words)
        nn.load(into, folder / f"x.{suffix}")

    return load


def by_checkpoint(source: One, into: One, folder: Path) -> None:
    checkpoint.save(folder / "run", {"m": source}, 1, overwrite=True)
    checkpoint.load(folder / "run", {"m": into})


def by_data(source: One, into: One, folder: Path) -> None:
    into.w.data = source.value


LOADS: dict[str, Callable[[One, One, Path], object]] = {
    "load_state_dict": lambda source, into, folder: into.load_state_dict(source.state_dict()),
    "npz": by_file("npz"), "safetensors": by_file("safetensors"),
    "torch's names": by_file("safetensors", names="torch"), "checkpoint": by_checkpoint, "data": by_data,
}  # fmt: skip
TOO_LARGE: dict[str, tuple[Any, Any, Any]] = {
    "float32 to float16": ([1.0, -1e6], "float32", "float16"),
    "float64 to float16": ([65520.0, 1.0], "float64", "float16"),  # the first number that is rounded to infinity
    "float64 to float32": ([1e39, 1.0], "float64", "float32"),
    "float32 to bfloat16": ([np.finfo("float32").max, 1.0], "float32", bfloat16),
    "float64 to bfloat16": ([-1e300, 1.0], "float64", bfloat16),
    "bfloat16 to float16": ([1e20, 1.0], bfloat16, "float16"),
    "complex128 to complex64": ([1 + 1e39j, 1.0], "complex128", "complex64"),
    "complex64 to float32": ([1 + 1j, 1.0], "complex64", "float32"),
    "int64 to int8": ([1000, 1], "int64", "int8"), "int64 to uint64": ([-1, 1], "int64", "uint64"),
    "int64 to float16": ([70_000, 1], "int64", "float16"), "uint64 to int64": ([2**63, 1], "uint64", "int64"),
    "float32 to int32": ([1.5, 1.0], "float32", "int32"),
}  # fmt: skip


@pytest.mark.parametrize("ranks", [0, 2])
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("kind", TOO_LARGE)
def test_a_number_that_a_dtype_lacks_is_refused(tmp_path: Path, kind: str, load: str, ranks: int) -> None:
    values, have, need = TOO_LARGE[kind]
    if None in (have, need):
        pytest.skip("bfloat16 needs ml_dtypes")
    is_buffer = np.dtype(have).kind in "iu" or np.dtype(need).kind in "iu"
    lacks = "safetensors" in load or "torch" in load
    if (load == "data" and is_buffer) or (lacks and have == "complex128"):  # which the format has not
        pytest.skip("there is no such load")
    if ranks and load == "data":
        pytest.skip("it is of one rank")

    def program() -> None:
        source, into = One(values, have, is_buffer), One([3, 3], need, is_buffer)
        folder = tmp_path if not ranks else tmp_path / str(int(cc.world().rank) if "checkpoint" not in load else 0)
        folder.mkdir(exist_ok=True)
        with pytest.raises(DtypeError, match=rf"(w|leaf).* has dtype {np.dtype(have)}.*(infinite|would be lost)"):
            LOADS[load](source, into, folder)
        assert (into.value == 3).all()

    def on_ranks() -> None:
        with cc.Mesh(dp=-1):
            program()

    cc.run(on_ranks, ranks) if ranks else program()


@pytest.mark.parametrize("load", LOADS)
def test_rounding_infinities_and_nan_are_loaded(tmp_path: Path, load: str) -> None:
    """What is told must not tell too much: the largest number, numbers that are rounded, and those that are none."""
    values = [65519.0, 0.1, 1e-12, np.inf, -np.inf, np.nan]
    into = One(np.ones(6), "float16")
    LOADS[load](One(values, "float32"), into, tmp_path)
    assert np.array_equal(into.value, np.array([65504, 0.1, 0, np.inf, -np.inf, np.nan], "float16"), equal_nan=True)
    empty = One(np.zeros((0, 2)), "float16")
    LOADS[load](One(np.zeros((0, 2)), "float64"), empty, tmp_path)


def test_the_fix_of_the_message_leads_to_the_end() -> None:
    source, into = {"w": np.array([1e6, -2.0], "float32")}, One([0, 0], "float16")
    with pytest.raises(DtypeError) as error:
        into.load_state_dict(source)
    assert "fix: a destination of float32" in str(error.value)
    code = str(error.value).partition("or:")[2].partition(", if")[0].strip()
    x = source["w"]
    into.load_state_dict({"w": eval(code, {"numpy": np, "x": x})})
    assert into.value.tolist() == [65504.0, -2.0]
    wide = One([0, 0], "float32")
    wide.load_state_dict(source)
    assert wide.value.tolist() == [1e6, -2.0]


@pytest.mark.parametrize("make", [optim.Adagrad, optim.Adam])
def test_a_state_that_is_wider_than_its_parameter_is_kept(make: Any, tmp_path: Path) -> None:
    """The sums of squares of a parameter of 16 bits are of float32, and may be above its largest number."""
    p = ag.Parameter(np.ones(2, "float16"))
    opt = make([p], lr=0.1)
    p.grad = np.full(2, 6e4, "float16")
    opt.step()
    known = copy.deepcopy(opt.state_dict())
    assert any(x is not None and np.max(x) > 1e6 for each in opt.state_lists() for x in each if not isinstance(x, int))
    nn.save({"o": opt}, tmp_path / "o.npz")
    opt.load_state_dict(known)
    nn.load({"o": opt}, tmp_path / "o.npz")
    for name in known:
        assert name in ("names", "lr", "steps") or repr(opt.state_dict()[name]) == repr(known[name])


# -- groups ------------------------------------------------------------------------------------------------------------
X = np.random.default_rng(0).normal(size=(12, 4))
MAKERS: dict[str, Callable[[Any, Any], Any]] = {
    "AdamW": lambda a, b: optim.AdamW([{"params": a, "lr": 0.02}, {"params": b}], lr=0.05),
    "one group": lambda a, b: optim.SGD([{"params": a + b, "momentum": 0.5}], lr=0.05),
    "a schedule": lambda a, b: optim.Adam([{"params": a, "lr": lambda k: 0.02 / (k + 1)}, {"params": b}], lr=0.05),
    "masters": lambda a, b: optim.MasterWeights(optim.SGD, [{"params": a, "lr": 0.02}, {"params": b}], lr=0.05),
    "offload": lambda a, b: optim.Offload(optim.SGD, [{"params": a, "lr": 0.02}, {"params": b}], lr=0.05),
}  # fmt: skip


def load_none(objects: dict[str, Any], folder: Path) -> None:
    pass


def load_file(objects: dict[str, Any], folder: Path) -> None:
    nn.save(objects, folder / "x.npz")
    nn.load(objects, folder / "x.npz")


def load_checkpoint(objects: dict[str, Any], folder: Path) -> None:
    checkpoint.save(folder, objects, 0, overwrite=True)
    checkpoint.load(folder, objects)


def load_states(objects: dict[str, Any], folder: Path) -> None:
    for x in objects.values():
        x.load_state_dict(copy.deepcopy(x.state_dict()))


def load_twice(objects: dict[str, Any], folder: Path) -> None:
    for _ in range(2):
        load_states(objects, folder)


def load_refused(objects: dict[str, Any], folder: Path) -> None:
    """A load that raises leaves the groups as they are, too."""
    with pytest.raises(ag.RingtapeError):
        objects["o"].load_state_dict({**objects["o"].state_dict(), "names": [["x"]]})


@pytest.mark.parametrize("load", [load_none, load_file, load_checkpoint, load_states, load_twice, load_refused])
@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("maker", MAKERS)
def test_a_group_that_was_taken_before_a_load_is_the_optimizers(
    tmp_path: Path, maker: str, zero: int, load: Any
) -> None:
    """A rate that is set through it has its effect, beside a run that takes the group afterwards, and loads nothing."""
    if zero and maker in ("masters", "offload"):
        pytest.skip("they have copies of whole parameters")

    def program(load: Any, is_held: bool) -> Any:
        with cc.Mesh(dp=-1) as mesh:
            key = ag.random.Key(0, "m")
            model = nn.Sequential(nn.Linear(4, 6, dtype=float, key=key.fold("a")), nn.Tanh(),
                                  nn.Linear(6, 2, dtype=float, key=key.fold("b")))  # fmt: skip
            wrapped = DataParallel(model, "dp", zero=zero)
            parameters = list(wrapped.parameters())
            opt = MAKERS[maker](parameters[:2], parameters[2:])
            group = opt.param_groups[0]

            def step() -> float:
                x = cc.from_local(np.array_split(X, mesh.ranks.size)[mesh.ranks.index], {"dp": cc.Shard(0)})
                opt.zero_grad()
                with ag.Tape() as tape:
                    loss = cc.all_reduce((wrapped(x) ** 2).sum(), "dp", to=cc.I) / 12
                    scaled = opt.scale(loss) if hasattr(opt, "scale") else loss
                tape.backward(scaled)
                opt.step()
                return float(loss)

            step()
            step()
            load({"m": wrapped, "o": opt}, tmp_path)
            assert all(a is b for a, b in zip(parameters, wrapped.parameters(), strict=True))
            group = group if is_held else opt.param_groups[0]
            group["lr"] = 1e-3
            assert opt.param_groups[0]["lr"] == 1e-3 and dict(group) == dict(opt.param_groups[0])
            return [step() for _ in range(3)]

    right = cc.run(program, 1, load_none, False)[0]
    for ranks in (1, 3):
        assert np.allclose(cc.run(program, ranks, load, True), right, rtol=1e-10)


# -- plain values ------------------------------------------------------------------------------------------------------
class Quantity(np.ndarray):
    """Numbers with a unit, whose sum is another class's."""

    def __add__(self, other: Any) -> Any:
        return NotImplemented


FIELDS = [("a", "f4"), ("b", "i2")]
REFUSED: dict[str, Any] = {
    "fields": np.zeros(2, FIELDS), "a record": np.rec.array([(1, 2.0)], FIELDS), "void": np.zeros(2, "V4"),
    "a void number": np.void(b"abc"), "a masked array": np.ma.masked_array([1.0, 2.0], [0, 1]),
    "a masked array without a mask": np.ma.masked_array([1.0]), "a matrix": np.matrix([[1.0]]),
    "objects": np.array("x", object), "texts of any length": np.array(["a"], np.dtypes.StringDType()),
    "other arithmetic": np.ones(2).view(Quantity),
}  # fmt: skip
KEPT: dict[str, Any] = {
    "dates": np.array(["2020-01-01", "NaT"], "M8[25s]"), "time spans": np.array([1, 2], "m8[us]"),
    "a date": np.datetime64("2020-01-01"), "a text": np.str_("ab"), "bytes": np.array([b"ab", b"a\0b"]),
    "texts": np.array(["ab", "\N{SNOWMAN}", ""]), "no texts": np.array([], "U"), "empty texts": np.zeros(2, "U0"),
    "long doubles": np.ones(2, np.longdouble) / 3, "another byte order": np.arange(3, dtype=">f8"),
    "dates of another byte order": np.array(["2020"], ">M8[D]"), "columns first": np.asfortranarray(np.ones((2, 3))),
    "one number again": np.broadcast_to(1.0, (3, 2)), "reversed": np.arange(5)[::-1], "no elements": np.zeros((0, 3)),
    "no dimensions": np.array(3.0), "a recarray of numbers": np.arange(3).view(np.recarray),
    "bits": np.array([True, False]), "complex": np.array([1 + 2j], "complex64"), "a half": np.float16(1.5),
    "keys": {"a/b": np.ones(2), "": np.zeros(1), "array": 1, "scalar": {"tuple": [1.5, None]}},
}  # fmt: skip


def saved_in_file(value: Any, folder: Path) -> Any:
    nn.save({"m": nn.Linear(2, 1), "v": value}, folder / "x.npz")
    return nn.load({"m": nn.Linear(2, 1)}, folder / "x.npz")["v"]


def saved_in_checkpoint(value: Any, folder: Path) -> Any:
    checkpoint.save(folder / "run", {"m": nn.Linear(2, 1), "v": value}, 2)
    return checkpoint.load(folder / "run", {"m": nn.Linear(2, 1)}).values["v"]


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(x, b[key]) for key, x in a.items())
    if not isinstance(a, np.ndarray | np.generic):
        return bool(type(a) is type(b) and a == b)
    assert isinstance(b, np.generic) is isinstance(a, np.generic)
    same = a.dtype.newbyteorder("=") == b.dtype.newbyteorder("=") and a.shape == b.shape
    return same and np.array_equal(a, b, equal_nan=a.dtype.kind in "fcmM")


@pytest.mark.parametrize("save", [saved_in_file, saved_in_checkpoint])
@pytest.mark.parametrize("kind", KEPT)
def test_what_is_saved_is_loaded_equal(tmp_path: Path, kind: str, save: Any) -> None:
    assert equal(KEPT[kind], save(KEPT[kind], tmp_path))


@pytest.mark.parametrize("save", [saved_in_file, saved_in_checkpoint])
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_loaded_is_refused_when_it_is_saved(tmp_path: Path, kind: str, save: Any) -> None:
    """The file, or the checkpoint, that was there stays, and the fix of the message is saved and loaded."""
    folder = tmp_path / "run"
    nn.save({"m": nn.Linear(2, 1), "v": 1}, tmp_path / "x.npz")
    checkpoint.save(folder, {"m": nn.Linear(2, 1), "v": 1}, 1)
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    with pytest.raises(DtypeError, match=r"save: v: .* was given; needed: numbers, texts or dates\n  fix: ") as error:
        save(REFUSED[kind], tmp_path)
    assert before == {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    line = str(error.value).partition("fix: ")[2].partition("\n")[0]
    said, names = line.split(", "), {"numpy": np, "x": REFUSED[kind]}
    if " = " in line:
        exec(line, names)
        fixed = {"x": names["x"], "mask": names["mask"]}
    else:
        code = next(text for n in range(1, 9) if (text := ", ".join(said[:n])).count("(") == text.count(")"))
        fixed = eval(code, names)
    assert equal(fixed, save(fixed, tmp_path))


def test_names_of_a_file_that_two_values_have_or_none_can(tmp_path: Path) -> None:
    """Two arrays of one name were one of them, without a word."""
    for value, text in (({"x": {"y": np.ones(1)}, "x/y": np.zeros(1)}, r"two arrays have the name 'v/x/y'.*\n  fix: k"),
                        ({"k" * 70_000: np.ones(1)}, r"has 70002 characters.*\n  fix: shorter")):  # fmt: skip
        with pytest.raises(ArgumentError, match=text):
            saved_in_file(value, tmp_path)
        try:
            assert equal(value, saved_in_checkpoint(value, tmp_path))
        except RingtapeError:
            assert len(value) == 1
    assert not (tmp_path / "x.npz").exists()
