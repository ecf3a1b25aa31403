"""Files that are damaged, or of another kind: typed errors that name them, or the right values; and writing files."""

from __future__ import annotations

import io
import json
import os
import pickle
import stat
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import data, nn, optim, random
from autograd.errors import DtypeError, FileError, RingtapeError, ShapeError
from autograd.nn import archive
from parallel import DataParallel, RunLog, TopK, read_log

WIDTH = 192


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 3))


def flat(x: Any) -> Any:
    """A value that == compares."""
    if isinstance(x, dict):
        return {key: flat(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [type(x).__name__, *map(flat, x)]
    return (x.dtype.str, x.shape, x.tobytes()) if isinstance(x, np.ndarray | np.generic) else repr(x)


class Kind:
    """A kind of file: how it is written, and what reading it into new objects gives."""

    peak = 0

    def measured(self, read: Callable[[], Any]) -> Any:
        """Call a function, and note the memory that it needs."""
        tracemalloc.start()
        try:
            return read()
        finally:
            self.peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()

    def write(self, path: Path) -> None:
        raise NotImplementedError

    def read(self, path: Path) -> Any:
        raise NotImplementedError


class OfModule(Kind):
    def __init__(self) -> None:
        self.into = model()
        self.before = flat(self.into.state_dict())

    def write(self, path: Path) -> None:
        nn.save(model(), path)

    def read(self, path: Path) -> Any:
        try:
            self.measured(lambda: nn.load(self.into, path))
        except BaseException:
            assert flat(self.into.state_dict()) == self.before, "a refused file has changed the module"
            raise
        found = flat(self.into.state_dict())
        for name, p in self.into.named_parameters():
            p.data = np.zeros(p.shape, "float32")
            assert name
        self.before = flat(self.into.state_dict())
        return found


class OfRun(Kind):
    plain = {"best": 0.25, "rates": [0.1, np.arange(5)], "pair": (1, None, "text"), "inf": -np.inf}

    def objects(self) -> dict[str, Any]:
        net = DataParallel(model(), "dp", reduction=TopK(0.1))
        net._buckets["reduction"].state.steps = {"0.weight": 2}
        net._buckets["reduction"].state.slots["residual"]["0.weight"] = np.arange(64.0)
        optimizer = optim.Adam(net.parameters(), lr=0.1)
        for p in optimizer.parameters:
            p.grad = np.ones(p.shape, "float32")
        optimizer.step()
        loader = data.DataLoader(data.TensorDataset(np.arange(9)), 2, shuffle=True, key=random.Key(0, "a"))
        return {"net": net, "optimizer": optimizer, "loader": loader, "random": random}

    def write(self, path: Path) -> None:
        nn.save({**self.objects(), **self.plain}, path)

    def __init__(self) -> None:
        self.into = self.objects()

    def states(self) -> Any:
        return flat([{name: x.state_dict() for name, x in self.into.items()},
                     self.into["net"]._buckets["reduction"].state.own()])  # fmt: skip

    def read(self, path: Path) -> Any:
        before = self.states()
        try:
            plain = self.measured(lambda: nn.load(self.into, path))
        except BaseException:
            assert self.states() == before, "a refused file has changed an object"
            raise
        return flat(plain), self.states()


class Contents(OfModule):
    def read(self, path: Path) -> Any:
        return repr(self.measured(lambda: nn.contents(path)))


class OfLog(Kind):
    def write(self, path: Path) -> None:
        for k in range(3):
            with RunLog(path, lr=0.1) as log:
                for step in range(k, k + 9):
                    log.write(step=step, loss=step / 7, text="a", norms=[1.5, float("nan")], time_of=1)

    def read(self, path: Path) -> Any:
        return flat(read_log(path, repeated=True))


KINDS: dict[str, Callable[[], Kind]] = {"module": OfModule, "run": OfRun, "contents": Contents, "log": OfLog}


def damaged(content: bytes, seed: int) -> tuple[str, bytes]:
    """The content with flipped bits, cut off, or with parts that are elsewhere, lost or repeated."""
    rng = np.random.default_rng(seed)
    n, made = len(content), bytearray(content)
    kind = ("flip", "flip near the end", "flips", "truncation", "splice", "loss", "zeros")[seed % 7]
    # the directory of an archive is at its end; most of the rest is numbers
    i, j = sorted(int(x) for x in rng.integers(0, n, 2))
    if kind.startswith("flip"):
        low = max(0, n - 3000) if kind == "flip near the end" else 0
        for _ in range(1 if kind != "flips" else 4):
            made[int(rng.integers(low, n))] ^= 1 << int(rng.integers(8))
    elif kind == "truncation":
        del made[int(rng.integers(0, n)) :]
    elif kind == "splice":
        made[i : i + 50] = content[j : j + int(rng.integers(0, 100))]
    elif kind == "loss":
        del made[i : i + int(rng.integers(1, 300))]
    else:
        made[i : i + 512] = bytes(len(made[i : i + 512]))
    return kind, bytes(made)


def sweep(name: str, tmp_path: Path, seeds: Any) -> dict[str, int]:
    kind, path, counts = KINDS[name](), tmp_path / "file", {"refused": 0, "right": 0}
    kind.write(path)
    content, right = path.read_bytes(), kind.read(path)
    for seed in seeds:
        what, made = damaged(content, seed)
        path.write_bytes(made)
        try:
            found = kind.read(path)
        except RingtapeError as error:
            text = str(error)
            assert str(path) in text and "pickle" not in text and text.isprintable() is ("\n" not in text), text
            assert isinstance(error, FileError), f"{seed} {what}: {text}"
            counts["refused"] += 1
        else:
            counts["right"] += 1
            if name == "log" and found != right:  # as after a crash: the last line of a run is cut off
                assert what in ("truncation", "zeros", "loss", "splice") and found == right[: len(found)], seed
            else:
                assert found == right, f"{seed} {what}"
        # without the numbers of a log, which are objects, each larger than its digits
        assert kind.peak <= 2 * len(content) + 100_000, f"{seed} {what}: {kind.peak} bytes for {len(content)}"
    return counts


@pytest.mark.parametrize("name", KINDS)
def test_damaged_files_are_refused_or_loaded_right(tmp_path: Path, name: str) -> None:
    counts = sweep(name, tmp_path, range(28))
    assert counts["refused"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_400_damaged_files_of_each_kind(tmp_path: Path, name: str) -> None:
    counts = sweep(name, tmp_path, range(1000, 1400))
    print(name, counts)
    assert sum(counts.values()) == 400 and counts["refused"] > 200


def test_each_byte_of_a_directory_counts_or_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksums of zip are of the entries; of which rank an entry is, the directory says."""
    path = tmp_path / "part.npz"
    layer = nn.Linear(2, 1)
    with cc.Mesh(dp=1):
        layer.weight = ag.Parameter(layer.weight.data, {"dp": cc.V})
        nn.save(layer, path)

    def wrong() -> int:
        content, right, found = path.read_bytes(), repr(nn.contents(path)), 0
        assert "dp: V" in right
        for i in range(content.index(b"PK\x01\x02"), len(content)):
            made = bytearray(content)
            made[i] ^= 1 << i % 5
            path.write_bytes(made)
            with suppress(FileError):
                found += repr(nn.contents(path)) != right
        return found

    assert wrong() == 0
    monkeypatch.setattr(archive, "_digest", lambda infos: b"")  # that of the directory is what finds them
    with cc.Mesh(dp=1):
        nn.save(layer, path)
    assert wrong() > 5


# -- files of another kind ---------------------------------------------------------------------------------------------
def zipped(**entries: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, content in entries.items():
            made.writestr(name.replace("__", "."), content)
    return file.getvalue()


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def compressed() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, weight=np.zeros((1 << 24, 1), "float32"), bias=np.zeros(1, "float32"))
    return file.getvalue()


def bomb() -> bytes:
    """An entry that says that it is larger than the file."""
    made = bytearray(zipped(weight__npy=b"x" * 64))
    at = made.index(b"PK\x01\x02")
    made[at + 20 : at + 28] = (1 << 30).to_bytes(4, "little") * 2
    return bytes(made)


def twice() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made, pytest.warns(UserWarning, match="Duplicate"):
        for _ in range(2):
            made.writestr("weight.npy", npy(np.ones((2, 1), "float32")))
    return file.getvalue()


STRANGE: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "it is empty"),
    "text": (lambda: b"weights: none\n", "no .npz archive"),
    ".npy": (lambda: npy(np.ones(3)), r"a .npy file.*\n  fix: array = numpy.load"),
    "pickle": (lambda: pickle.dumps({"weight": 1}), r"a pickle.*\n  fix: save arrays"),
    "objects": (lambda: zipped(weight__npy=npy(np.array([None]), allow_pickle=True)), "dtype object, and not numbers"),
    "records": (lambda: zipped(weight__npy=npy(np.zeros(2, "i4,f4"))), "and not numbers"),
    "compressed": (compressed, r"it is compressed.*\n  fix: module.load_state_dict"),
    "a size that is a lie": (bomb, "larger than the file"),
    "an entry twice": (twice, "an entry twice"),
    "another zip": (lambda: zipped(data__pkl=b"x"), "no array"),
    "deep JSON": (lambda: zipped(structure__json=b"[" * 200_000), "nested too deeply"),
    "deep objects": (lambda: zipped(structure__json=b'{"a":' * 900 + b"1" + b"}" * 900), "structure.json"),
    "JSON of another kind": (lambda: zipped(structure__json=b"[1]"), "no JSON object"),
    "a structure of nothing": (lambda: zipped(structure__json=b'{"m": {"array": "a", "scalar": false}}'), "'a'"),
    "a deep header": (lambda: zipped(weight__npy=header("(" * 9000)), "'weight'"),
    "a header without a shape": (lambda: zipped(weight__npy=header("{'descr': '<f4'}")), "'weight'"),
    "a shape that is a lie": (
        lambda: zipped(weight__npy=header("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999,)}")), "would"),
    "a negative shape": (
        lambda: zipped(weight__npy=header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -4)}") + b"0" * 16),
        "would"),
    "version 9 of .npy": (lambda: zipped(weight__npy=b"\x93NUMPY\x09\x00"), "'weight'"),
    "no header": (lambda: zipped(weight__npy=b""), "'weight'"),
}  # fmt: skip


@pytest.mark.parametrize("kind", STRANGE)
def test_files_of_another_kind_are_refused_without_memory_and_advice_to_trust_them(tmp_path: Path, kind: str) -> None:
    make, text = STRANGE[kind]
    path = tmp_path / "strange.npz"
    path.write_bytes(make())
    layer, size = nn.Linear(2, 1), path.stat().st_size
    before = flat(layer.state_dict())
    for read in (lambda: nn.load(layer, path), lambda: nn.load({"m": layer}, path), lambda: nn.contents(path)):
        tracemalloc.start()
        try:
            with pytest.raises((FileError, ShapeError)) as error:
                read()
                raise ShapeError("contents may list what load refuses")
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 2 * size + 4_000_000 and "allow_pickle" not in str(error.value)
    with pytest.raises(FileError, match=text) as refusal:
        nn.load({} if "structure" in text or "JSON" in kind or kind in ("a structure of nothing",) else layer, path)
    assert "strange.npz" in str(refusal.value) and flat(layer.state_dict()) == before


@pytest.mark.parametrize("whole", [True, False])
def test_a_load_needs_at_most_twice_the_size_of_the_file(tmp_path: Path, whole: bool) -> None:
    """Arrays of the file become those of the objects. Where they are cast they are copied: once."""

    def objects(dtype: str) -> dict[str, Any]:
        net = nn.Linear(500, 1000, dtype=dtype)
        optimizer = optim.SGD([net.weight], lr=0.1, momentum=0.9)
        net.weight.grad = np.ones(net.weight.shape, dtype)
        optimizer.step()
        return {"net": net, "optimizer": optimizer}

    nn.save(objects("float32"), tmp_path / "file")
    size, into = (tmp_path / "file").stat().st_size, objects("float32" if whole else "float16")
    tracemalloc.start()
    try:
        nn.load(into, tmp_path / "file")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (1.1 if whole else 1.6) * size, f"{peak} bytes for {size}"


def test_a_directory_and_a_missing_file(tmp_path: Path) -> None:
    layer = nn.Linear(2, 1)
    os.mkfifo(tmp_path / "pipe")
    for read in (lambda: nn.load(layer, tmp_path), lambda: nn.contents(tmp_path), lambda: read_log(tmp_path)):
        with pytest.raises(FileError, match="it is a directory; needed: a file"):
            read()
    for read in (lambda: nn.load(layer, tmp_path / "pipe"), lambda: nn.contents(tmp_path / "pipe")):
        with pytest.raises(FileError, match="it is no regular file; needed: a file"):
            read()
    with pytest.raises(FileNotFoundError):
        nn.load(layer, tmp_path / "missing.npz")
    with pytest.raises(FileError, match="a directory is there"):
        nn.save(layer, tmp_path)
    with pytest.raises(FileError, match="no regular file"):
        nn.save(layer, tmp_path / "pipe")
    for content in (b"[" * 300_000, b"\xff\xfe", b"[1]\n{}\n", b"\x93NUMPY"):
        (tmp_path / "log").write_bytes(content + b"\n")
        with pytest.raises(FileError, match="log'.*, line 1: it is damaged"):
            read_log(tmp_path / "log")


def test_files_of_numpy_and_of_older_versions_are_read(tmp_path: Path) -> None:
    layer = nn.Linear(2, 3)
    weights = {"weight": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "bias": np.arange(3, dtype=">f8")}
    np.savez(tmp_path / "numpy.npz", **weights)
    nn.load(layer, tmp_path / "numpy.npz")
    assert all((layer.state_dict()[name] == x).all() for name, x in weights.items())
    # an older version: entries have no shape in their comments, and the archive none
    with zipfile.ZipFile(tmp_path / "old.npz", "w") as file:
        file.writestr("structure.json", json.dumps({"net": {"state": {
            name: {"array": f"net/{name}", "scalar": False} for name in weights}}, "best": 0.5}))  # fmt: skip
        for name, x in weights.items():
            info = zipfile.ZipInfo(f"net/{name}.npy")
            info.comment = json.dumps({"layout": {"dp": "I"}, "places": {}}).encode()
            file.writestr(info, npy(x + 1))
    assert nn.load({"net": layer}, tmp_path / "old.npz") == {"best": 0.5}
    assert all((layer.state_dict()[name] == x + 1).all() for name, x in weights.items())
    assert repr(nn.contents(tmp_path / "old.npz")["net/weight"]) == "float64[2, 3], whole, saved from {dp: I}"


def test_bfloat16_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    pytest.importorskip("ml_dtypes")
    first, second = (nn.Linear(2, 3).to("bfloat16") for _ in range(2))
    nn.save({"net": first, "x": first.weight.data}, tmp_path / "half.npz")
    found = nn.load({"net": second}, tmp_path / "half.npz")
    assert (second.weight.numpy() == first.weight.numpy()).all() and found["x"].dtype == first.weight.dtype
    assert repr(nn.contents(tmp_path / "half.npz")["net/weight"]) == "bfloat16[2, 3], whole"


# -- what is written ---------------------------------------------------------------------------------------------------
def test_a_file_keeps_its_permissions_and_a_link_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of mode 0600 used to become 0644, and a symbolic link a file."""
    synced: list[str] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda n: (synced.append(os.readlink(f"/proc/self/fd/{n}")), sync(n))[1])
    layer, folder = nn.Linear(2, 1), tmp_path / "elsewhere"
    folder.mkdir()
    private, link = folder / "model.npz", tmp_path / "link.npz"
    for mode in (0o600, 0o640, 0o444):
        private.unlink(missing_ok=True)
        private.touch(mode)
        private.chmod(mode)
        nn.save(layer, private)
        assert stat.S_IMODE(private.stat().st_mode) == mode
    link.symlink_to(Path("elsewhere") / "model.npz")
    relative = tmp_path / "again.npz"
    relative.symlink_to("link.npz")
    inode = private.stat().st_ino
    nn.save(nn.Linear(2, 1), relative)
    assert relative.is_symlink() and link.is_symlink() and private.stat().st_ino != inode
    nn.load(layer, private)
    assert [Path(x).parent for x in synced[-2:]] == [folder, tmp_path] and synced[-2].endswith(".part")
    dangling = tmp_path / "dangling.npz"
    dangling.symlink_to(folder / "new.npz")
    nn.save(layer, dangling)
    assert sorted(x.name for x in folder.iterdir()) == ["model.npz", "new.npz"]
    old = os.umask(0o027)
    try:
        nn.save(layer, folder / "mask.npz")
    finally:
        os.umask(old)
    assert stat.S_IMODE((folder / "mask.npz").stat().st_mode) == 0o640


def test_an_interrupted_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, layer = tmp_path / "model.npz", nn.Linear(2, 1)
    nn.save(layer, path)
    content = path.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np.lib.format, "write_array", fail)
    with pytest.raises(KeyboardInterrupt):
        nn.save(nn.Linear(2, 1), path)
    assert path.read_bytes() == content and [x.name for x in tmp_path.iterdir()] == ["model.npz"]


# -- all or nothing, and what would be lost ----------------------------------------------------------------------------
class Foreign:
    """An object of a program, with a state of its own."""

    def __init__(self, fails: bool = False):
        self.value, self.fails = 0, fails

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]
        if self.fails and self.value:
            raise ZeroDivisionError


@pytest.mark.parametrize("fault", ["second", "foreign", "subclass", "damaged", "missing"])
def test_a_load_that_fails_changes_nothing(tmp_path: Path, fault: str) -> None:
    """The first object used to be replaced when the second one failed."""
    class Own(optim.Adam):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict(state_dict)
            if state_dict["steps"]:
                raise ZeroDivisionError

    def objects(wrong: bool) -> dict[str, Any]:
        net = nn.Linear(2, 3)
        kind = Own if wrong and fault == "subclass" else optim.Adam
        optimizer = kind(net.parameters()[1:] if wrong and fault == "second" else net.parameters())
        for p in optimizer.parameters:
            p.grad = np.ones(p.shape, "float32")
        others = {"a": Foreign(), "b": Foreign(wrong and fault == "foreign")}
        return {**others, "net": net, "optimizer": optimizer, "random": random}

    saved = objects(False)
    saved["optimizer"].step()
    saved["a"].value = saved["b"].value = 1
    nn.save({name: x for name, x in saved.items() if not (fault == "missing" and name == "optimizer")},
            tmp_path / "run.npz")  # fmt: skip
    if fault == "damaged":
        content = bytearray((tmp_path / "run.npz").read_bytes())
        content[content.index(b"optimizer/second/1.npy") + 160] ^= 1
        (tmp_path / "run.npz").write_bytes(content)
    mine = objects(True)
    before = flat({name: x.state_dict() for name, x in mine.items()})
    with pytest.raises((RingtapeError, ZeroDivisionError)) as error:
        nn.load(mine, tmp_path / "run.npz")
    assert flat({name: x.state_dict() for name, x in mine.items()}) == before
    if fault == "second":
        assert error.value.__notes__ == [f"while load({str(tmp_path / 'run.npz')!r}) checked the state of 'optimizer'"]


LOSSES: dict[str, tuple[Any, str, bool]] = {  # a value, the dtype that it is loaded into, whether it is refused
    "complex to real": (np.ones(2) + 1j, "float64", True),
    "complex to float32": (np.ones(2, "complex64"), "float32", True),
    "complex to integer": (np.ones(2) + 1j, "int64", True),
    "fractions to integers": (np.array([2.7, 1.0]), "int64", True),
    "fractions to booleans": (np.array([2.7, 1.0]), "bool", True),
    "integers to booleans": (np.array([2, 1]), "bool", True),
    "large integers": (np.array([300, 1]), "uint8", True),
    "negative integers": (np.array([-1, 1]), "uint64", True),
    "integers beyond floats": (np.array([2**53 + 1, 1]), "float64", True),
    "texts": (np.array(["a", "b"]), "float64", True),
    "float64 to float32": (np.array([0.1, 1e-50]), "float32", False),
    "float32 to float64": (np.ones(2, "float32"), "float64", False),
    "real to complex": (np.ones(2), "complex128", False),
    "complex128 to complex64": (np.ones(2) + 1j, "complex64", False),
    "small integers": (np.array([255, 1]), "uint8", False),
    "booleans to integers": (np.array([True, False]), "int64", False),
    "integers to floats": (np.array([3, 1]), "float32", False),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_a_value_that_would_lose_more_than_rounding_is_refused(tmp_path: Path, name: str) -> None:
    """Imaginary parts used to be dropped, and 2.7 to become 2."""
    value, dtype, is_refused = LOSSES[name]

    class Holder(nn.Module):
        def __init__(self, x: Any):
            self.register_buffer("x", x)

    class Learned(nn.Module):
        def __init__(self, x: Any):
            self.x = ag.Parameter(x)

    like = np.zeros(2, dtype)
    into, loads = Holder(like), []
    leaf = ag.tensor(like)
    if value.dtype.kind in "biufc":
        loads = [lambda: setattr(leaf, "data", value), lambda: setattr(leaf, "data", value.tolist())]
    loads += [lambda: into.load_state_dict({"x": value})]
    np.savez(tmp_path / "x.npz", x=value)
    loads.append(lambda: nn.load(into, tmp_path / "x.npz"))
    held: list[Any] = [lambda: leaf.numpy(), lambda: leaf.numpy(), lambda: into.x, lambda: into.x][-len(loads) :]
    if like.dtype.kind in "fc":
        learned = Learned(like)
        optimizer = optim.SGD(learned.parameters(), lr=0.1, momentum=0.9)
        loads.append(lambda: optimizer.load_state_dict({"steps": 1, "lr": 0.1, "velocity": [value]}))
        held.append(lambda: np.zeros(2) if optimizer.velocity[0] is None else optimizer.velocity[0])
        if value.dtype.kind in "fc" or is_refused:  # integers are no weights
            loads.append(lambda: learned.load_state_dict({"x": value}))
            held.append(lambda: learned.x.numpy())
    for load, now in zip(loads, held, strict=True):
        if is_refused:
            with pytest.raises(DtypeError):
                load()
            assert not now().any()
        else:
            load()
            assert now().dtype == dtype and (now() == value.astype(dtype)).all()


# -- control characters ------------------------------------------------------------------------------------------------
def test_control_characters_in_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b[2J\x1b]0;title\x07name"
    layer, path = nn.Linear(2, 1), tmp_path / "evil.npz"
    np.savez(path, **{evil: np.ones(2), "weight": np.ones((2, 1)), "bias": np.ones(1)})
    (tmp_path / "log").write_text('{"started": 1}\n' + evil + "\n{}\n")
    bad = tmp_path / f"bad{evil}.npz"
    bad.write_bytes(zipped(**{evil + "__npy": b"x"}))
    p, q = ag.Parameter(np.ones(2), name=evil), ag.Parameter(np.ones(2), name="b")
    state = optim.SGD([p], 0.1).state_dict()
    nn.save({evil.replace("/", ""): random}, tmp_path / "names.npz")
    calls: list[Callable[[], Any]] = [
        lambda: nn.load(layer, path), lambda: layer.load_state_dict({evil: np.ones(2)}),
        lambda: read_log(tmp_path / "log"), lambda: nn.load(layer, bad), lambda: nn.contents(bad),
        lambda: optim.SGD([q], 0.1).load_state_dict(state), lambda: nn.load({"other": random}, tmp_path / "names.npz"),
        lambda: setattr(p, "data", np.ones(3)), lambda: setattr(p, "grad", np.ones(3)),
        lambda: random.load_state_dict({evil: 1}), lambda: optim.SGD([p, p], 0.1),
    ]  # fmt: skip
    with pytest.raises(ShapeError, match=r'"a\\n  fix: \\"this"'):
        layer.load_state_dict({'a\n  fix: "this': np.ones(2)})
    info = zipfile.ZipInfo("weight.npy")
    info.comment = json.dumps({"layout": {evil: evil}}).encode()
    with zipfile.ZipFile(tmp_path / "layout.npz", "w") as file:
        file.writestr(info, npy(np.ones(2)))
    assert "\x1b" not in str(nn.contents(tmp_path / "layout.npz"))
    for call in calls:
        with pytest.raises(RingtapeError) as error:
            call()
        text = str(error.value)
        assert "\x1b" not in text and "\x07" not in text, repr(text)
        assert all(x.isprintable() or x == "\n" or x == "\t" for x in text)
