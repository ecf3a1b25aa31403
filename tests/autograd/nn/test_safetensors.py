"""`.safetensors` files: what is written is what the library reads, and damaged or hostile files are refused."""

from __future__ import annotations

import json
import os
import random as random_numbers
import struct
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim
from autograd.errors import (
    ArgumentError,
    DependencyError,
    DtypeError,
    FileError,
    LayoutError,
    OptionError,
    RingtapeError,
    ShapeError,
)
from autograd.nn import weights
from parallel import Column, DataParallel, Heads, Row, TopK, parallelize

library = pytest.importorskip("safetensors.numpy", reason="safetensors is in the extra checkpoint")
RNG = np.random.default_rng(3)


class Holder(nn.Module):
    """Buffers of any dtype."""

    def __init__(self, **values: Any):
        for name, x in values.items():
            self.register_buffer(name, x)


def same(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def values_of(module: nn.Module) -> dict[str, Any]:
    return {name: np.array(x) for name, x in module.state_dict().items()}


VALUES: dict[str, Any] = {
    **{name: np.arange(6).astype(name).reshape(2, 3) for name in (
        "float64", "float32", "float16", "complex64", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16",
        "uint8", "bool",
    )},
    "special": np.array([np.nan, -0.0, np.inf, 5e-324]),
    "no dimensions": np.array(3.5, "float32"), "no elements": np.zeros((0, 3), "int16"),
    "columns first": np.asfortranarray(RNG.standard_normal((3, 4))), "reversed": np.arange(5.0)[::-1],
    "every second": RNG.standard_normal((4, 6))[:, ::2],
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_in_the_file_bit_for_bit(tmp_path: Path, name: str) -> None:
    value, path = VALUES[name], tmp_path / "x.safetensors"
    nn.save(Holder(x=value), path)
    assert same(library.load_file(path)["x"], value)
    into = Holder(x=np.zeros_like(value))
    nn.load(into, path)
    assert same(into.x, value)
    (found,) = nn.contents(path).values()
    assert (found.shape, found.dtype, found.is_part) == (value.shape, value.dtype, False)


def test_bfloat16_and_other_byte_orders(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    half, big = np.arange(5).astype(ml_dtypes.bfloat16), np.arange(5, dtype=">f4")
    nn.save(Holder(half=half, big=big), tmp_path / "x.safetensors")
    found = library.load_file(tmp_path / "x.safetensors")
    assert same(found["half"], half) and same(found["big"], big.astype("<f4"))
    into = Holder(half=np.zeros_like(half), big=np.zeros(5, "float32"))
    nn.load(into, tmp_path / "x.safetensors")
    assert same(into.half, half) and (into.big == big).all()
    assert repr(nn.contents(tmp_path / "x.safetensors")["half"]) == "bfloat16[5], whole"


@pytest.mark.parametrize("value", [np.ones(2) + 1j, np.ones(2, np.longdouble)])
def test_a_dtype_that_the_format_lacks_is_refused(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "x.safetensors"
    nn.save(nn.Linear(2, 1), path)
    content = path.read_bytes()
    with pytest.raises(DtypeError, match=rf"x has dtype {value.dtype}.*\n  fix: .*\.npz"):
        nn.save(Holder(x=value), path)
    assert path.read_bytes() == content and os.listdir(tmp_path) == ["x.safetensors"]


def test_only_a_module_without_other_state_is_written(tmp_path: Path) -> None:
    layer, path = nn.Linear(2, 1), tmp_path / "x.safetensors"
    for several in ({"model": layer}, {"model": layer, "optimizer": optim.SGD(layer.parameters(), 0.1)}, {}):
        with pytest.raises(ArgumentError, match=r"several objects.*\n  fix: a name that ends in .npz"):
            nn.save(several, path)
    with pytest.raises(ArgumentError, match="needed: a Module"):
        nn.save([layer], path)

    def compressed() -> None:
        with cc.Mesh(dp=1):
            with pytest.raises(ArgumentError, match=r"\['reduction'\].*\n  fix: nn.save\(model.module, path\)"):
                nn.save(DataParallel(layer, "dp", reduction=TopK(0.5)), path)

    cc.run(compressed, 1)
    assert not path.exists()
    nn.save(layer, path)
    with pytest.raises(ShapeError, match=r"one module; missing: \['model'\]\n  fix: nn.load\(model, path\)"):
        nn.load({"model": layer}, path)
    several = {"a": layer}
    for call in (lambda: nn.load(several, path, names="torch"), lambda: nn.load(several, path, ignore="b"),
                 lambda: nn.save(several, "x.npz", names="torch")):  # fmt: skip
        with pytest.raises(OptionError, match="several objects"):
            call()


def test_parts_are_gathered_and_each_rank_takes_its_own(tmp_path: Path) -> None:
    whole = RNG.standard_normal((7, 4))

    def model() -> Any:
        made = nn.Linear(7, 4, dtype=float)
        made.weight = ag.Parameter(cc.shard(ag.tensor(whole, {"tp": cc.R}), "tp"))
        return made

    def save() -> None:
        with cc.Mesh(tp=3):
            layer = model()
            nn.save(layer, tmp_path / "x.safetensors")
            nn.save(layer, tmp_path / "t.safetensors", names="torch")

    def load(name: str) -> Any:
        with cc.Mesh(tp=-1):
            layer = model()
            layer.weight.data = layer.weight.numpy() * 0
            nn.load(layer, tmp_path / name)
            return layer.weight.numpy()

    cc.run(save, 3)
    assert same(library.load_file(tmp_path / "x.safetensors")["weight"], whole)
    assert same(library.load_file(tmp_path / "t.safetensors")["weight"], np.ascontiguousarray(whole.T))
    found = nn.contents(tmp_path / "x.safetensors")["weight"]
    assert repr(found) == "float64[7, 4], whole, saved from {tp: Shard(0)}"
    for name in ("x.safetensors", "t.safetensors"):
        for ranks in (1, 2, 4):
            assert (np.concatenate(cc.run(load, ranks, name)) == whole).all()


class Fused(nn.Module):
    """A projection to queries, keys and values, and an attention that has it inside."""

    def __init__(self) -> None:
        self.qkv, self.proj = nn.Linear(4, 24), nn.Linear(8, 4)
        self.attn = nn.MultiheadAttention(8, 4)


PLAN = {"qkv": Column("tp", blocks=3, unit=2), "proj": Row("tp", unit=2), "attn": Heads("tp")}


@pytest.mark.parametrize("names", ["torch", "ringtape"])
def test_blocks_of_a_divided_layer_are_one_dimension_in_the_file(tmp_path: Path, names: str) -> None:
    serial = Fused()
    right = values_of(serial)
    nn.save(serial, tmp_path / "serial.safetensors", names=names)

    def program() -> Any:
        with cc.Mesh(tp=-1) as mesh:
            made = Fused()
            parallelize(made, PLAN)
            blocked = made.qkv.weight.global_shape
            nn.load(made, tmp_path / "serial.safetensors")
            nn.save(made, tmp_path / f"{mesh.ranks.size}.safetensors", names=names)
            return tuple(blocked)

    for ranks in (1, 2, 3):
        blocked = cc.run(program, ranks)
        assert set(blocked) == {(4, 3, 8)}
        files = [library.load_file(tmp_path / f"{name}.safetensors") for name in ("serial", ranks)]
        assert files[0].keys() == files[1].keys() == right.keys()
        assert all(same(x, files[1][name]) for name, x in files[0].items())
        again = Fused()
        nn.load(again, tmp_path / f"{ranks}.safetensors")
        assert all(same(x, right[name]) for name, x in values_of(again).items())


def test_the_values_of_one_rank_are_refused_at_another_place(tmp_path: Path) -> None:
    def program() -> None:
        with cc.Mesh(pp=2) as mesh:
            rank = int(mesh.ranks.rank)
            layer = nn.Linear(1, 2)
            layer.weight = ag.Parameter(np.full((1, 2), 1.0 + rank, "float32"), {"pp": cc.V})
            nn.save(layer, tmp_path / f"{rank}.safetensors")
            nn.load(layer, tmp_path / f"{rank}.safetensors")
            with pytest.raises((LayoutError, RingtapeError), match="pp"):
                nn.load(layer, tmp_path / f"{1 - rank}.safetensors")
            assert (layer.weight.numpy() == 1 + rank).all()

    cc.run(program, 2)
    assert nn.contents(tmp_path / "1.safetensors")["weight"].places == {"pp": (1, 2)}


# -- names -------------------------------------------------------------------------------------------------------------
class Tied(nn.Module):
    def __init__(self) -> None:
        self.wte = nn.Embedding(4, 3)
        self.body = nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 3), nn.MultiheadAttention(3, 1), nn.BatchNorm1d(3))
        self.lm_head = nn.TiedLinear(self.wte)


def torchs(model: nn.Module, prefix: str = "") -> dict[str, Any]:
    """The state of a module as torch has it, by the rule that is stated: matrices but tables are [out, in]."""
    return {prefix + name: np.ascontiguousarray(x.T) if x.ndim == 2 and "wte" not in name else x
            for name, x in model.state_dict().items()}  # fmt: skip


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_torchs_names_and_transposes(tmp_path: Path, suffix: str) -> None:
    model, into, path = Tied(), Tied(), tmp_path / f"x.{suffix}"
    right = values_of(model)

    def check(**words: Any) -> None:
        for p in into.parameters():
            p.data = p.numpy() * 0
        nn.load(into, path, **words)
        assert all(same(x, right[name]) for name, x in values_of(into).items())
        assert all(p.numpy().flags.c_contiguous for p in into.parameters())

    write = library.save_file if suffix == "safetensors" else lambda arrays, path: np.savez(path, **arrays)
    nn.save(model, path, names="torch")
    held = library.load_file(path) if suffix == "safetensors" else dict(np.load(path))
    assert held.keys() == right.keys() and all(same(held[name], x) for name, x in torchs(model).items())
    check()
    check(names="torch")
    write(torchs(model), path)
    check(names="torch")
    write({**torchs(model, "net."), "net.lm_head.weight": right["wte.weight"]}, path)
    check(names=nn.torch_names(into, prefix="net."))
    named = {name: f"own_{i}" for i, name in enumerate(right)}
    nn.save(model, path, names=named)
    assert nn.contents(path).keys() == set(named.values())
    check()
    check(names=named)
    write({**right, "mask": np.ones(3), "other.mask": np.ones(3)}, path)
    check(names="ringtape", ignore=["*mask"])
    check(names="ringtape", ignore="*mask")


def test_a_tied_parameter_has_one_value_and_any_of_its_names(tmp_path: Path) -> None:
    model, path = Tied(), tmp_path / "x.safetensors"
    arrays = torchs(model)
    table = arrays.pop("wte.weight")
    for known in ({"wte.weight": table}, {"lm_head.weight": table}, {"wte.weight": table, "lm_head.weight": table}):
        library.save_file({**arrays, **known}, path)
        model.wte.weight.data = table * 0
        nn.load(model, path, names="torch")
        assert same(model.wte.weight.numpy(), table)
    library.save_file({**arrays, "wte.weight": table + 1, "lm_head.weight": table}, path)
    with pytest.raises(ShapeError, match=r"wte.weight and lm_head.weight differ.*\n  fix: ignore"):
        nn.load(model, path, names="torch")
    nn.load(model, path, names="torch", ignore=["lm_head.weight"])
    assert same(model.wte.weight.numpy(), table + 1)


def test_a_file_whose_matrices_may_be_either_way_is_not_guessed(tmp_path: Path) -> None:
    """A square matrix would be loaded the wrong way without a word."""
    layer, path = nn.Linear(3, 3), tmp_path / "x.safetensors"
    before = values_of(layer)
    library.save_file({"weight": np.ones((3, 3), "float32"), "bias": np.ones(3, "float32")}, path)
    with pytest.raises(OptionError, match=r"\[in, out\], as here.*\n  fix: names='torch'"):
        nn.load(layer, path)
    library.save_file({"weight": np.full(3, 2.0, "float32"), "bias": np.ones(3, "float32")}, path)
    norm = nn.LayerNorm(3)  # has no matrix, so that nothing is asked
    nn.load(norm, path)
    assert (norm.weight.numpy() == 2).all()
    nn.save(layer, path)
    with pytest.raises(OptionError, match=r"weight was saved as the module's.*\n  fix: leave names out"):
        nn.load(layer, path, names="torch")
    nn.save(layer, path, names="torch")
    with pytest.raises(OptionError, match="saved the transpose"):
        nn.load(layer, path, names="ringtape")
    assert all(same(x, before[name]) for name, x in values_of(layer).items())


def test_names_that_do_not_fit(tmp_path: Path) -> None:
    layer, path = nn.Sequential(nn.Linear(3, 2)), tmp_path / "x.safetensors"
    good = nn.torch_names(layer)
    wrong: list[tuple[Any, type[Exception], str]] = [
        ("numpy", ArgumentError, "needed: 'torch', 'ringtape'"), (3, ArgumentError, "needed: 'torch'"),
        ({**good, "0.bias": 3}, ArgumentError, "needed: a text or an nn.TorchName"),
        ({"0.weight": "w"}, OptionError, r"lacks \['0.bias'\]"), ({**good, "x": "y"}, OptionError, r"has \['x'\]"),
        ({"0.weight": "w", "0.bias": "w"}, OptionError, "'w' for '0.weight' and for '0.bias'"),
        ({**good, "0.bias": nn.TorchName("0.bias", True)}, ShapeError, "needed: a matrix"),
        ({**good, "0.bias": nn.TorchName(3)}, ArgumentError, "needed: a text"),
        ({**good, "0.bias": "\ud800"}, FileError, "x.safetensors'"),
        ({**good, "0.bias": "__metadata__"}, FileError, "which the format reserves"),
    ]  # fmt: skip
    for names, error, text in wrong:
        with pytest.raises(error, match=text):
            nn.save(layer, path, names=names)
    assert not path.exists()
    library.save_file(torchs(layer, "model.encoder."), path)
    with pytest.raises(ShapeError, match=r"fix: names=nn.torch_names\(module, prefix='model.encoder.'\)"):
        nn.load(layer, path, names="torch")
    library.save_file({**torchs(layer), "mask": np.ones(2)}, path)
    with pytest.raises(ShapeError, match=r"lacks nothing of S.*, and has \['mask'\].*\n  fix: ignore=\['mask'\]"):
        nn.load(layer, path, names="torch")
    library.save_file({f"x{i}": np.ones(2) for i in range(100)}, path)
    with pytest.raises(ShapeError, match="and 95 more besides") as found:
        nn.load(layer, path, names="torch")
    assert len(str(found.value)) < 1000


# -- the library, and writing ------------------------------------------------------------------------------------------
def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, path = nn.Linear(2, 1), tmp_path / "x.safetensors"
    nn.save(layer, path)
    for module in [name for name in sys.modules if name.partition(".")[0] == "safetensors"]:
        monkeypatch.setitem(sys.modules, module, None)
    for call in (lambda: nn.save(layer, path), lambda: nn.load(layer, path)):
        with pytest.raises(DependencyError, match=r"needs safetensors.*\n  fix: pip install 'ringtape\[checkpoint\]'"):
            call()
    assert list(nn.contents(path)) == ["bias", "weight"]  # reads the header alone
    nn.save(layer, tmp_path / "x.npz")


def test_an_older_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("safetensors.TensorSpec")
    with pytest.raises(DependencyError, match=r"0.8 or newer; .* is installed\n  fix: pip install -U"):
        nn.save(nn.Linear(2, 1), tmp_path / "x.safetensors")


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), "library"])
def test_an_interrupted_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Any) -> None:
    import safetensors

    path, layer = tmp_path / "x.safetensors", nn.Linear(2, 1)
    nn.save(layer, path)
    content = path.read_bytes()
    if fault == "library":
        fault = safetensors.SafetensorError("No space left on device")

    def fail(arrays: Any, filename: str, metadata: Any) -> None:
        Path(filename).write_bytes(b"half")
        raise fault

    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    with pytest.raises((KeyboardInterrupt, FileError)) as found:
        nn.save(nn.Linear(2, 1), path)
    assert path.read_bytes() == content and os.listdir(tmp_path) == ["x.safetensors"]
    assert found.type is KeyboardInterrupt or "x.safetensors'): No space left" in str(found.value)


def test_the_file_is_synced_and_keeps_its_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library opens the new file by its name: what it wrote has to be the file that is synced and renamed."""
    synced: list[int] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda n: (synced.append(os.fstat(n).st_ino), sync(n))[1])
    path = tmp_path / "x.safetensors"
    path.touch()
    path.chmod(0o440)
    nn.save(nn.Linear(2, 1), path)
    assert path.stat().st_mode & 0o777 == 0o440 and synced[0] == path.stat().st_ino
    assert synced[1] == tmp_path.stat().st_ino and len(library.load_file(path)) == 2


def test_an_archive_under_the_old_name_is_still_read(tmp_path: Path) -> None:
    first, second = nn.Linear(2, 1), nn.Linear(2, 1)
    nn.save(first, tmp_path / "x.npz")
    (tmp_path / "x.npz").rename(tmp_path / "x.safetensors")
    nn.load(second, tmp_path / "x.safetensors")
    assert same(second.weight.numpy(), first.weight.numpy())
    nn.save(first, tmp_path / "y.safetensors")
    (tmp_path / "y.safetensors").rename(tmp_path / "y.weights")
    nn.load(second, tmp_path / "y.weights")


def test_a_length_of_the_header_that_looks_like_an_archive(tmp_path: Path) -> None:
    path, layer = tmp_path / "x.safetensors", nn.LayerNorm(2)
    library.save_file({name: np.ones(2, "float32") for name in ("weight", "bias")}, path)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    text = content[8 : 8 + length].ljust(0x4B50)  # "PK"
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    assert path.read_bytes()[:2] == b"PK"
    nn.load(layer, path)
    assert (layer.bias.numpy() == 1).all()


@pytest.mark.parametrize("same_dtype", [True, False])
def test_a_load_and_a_save_need_little_more_than_the_file(tmp_path: Path, same_dtype: bool) -> None:
    path = tmp_path / "x.safetensors"
    net = nn.Sequential(*(nn.Linear(400, 400) for _ in range(8)))

    def peak(call: Callable[[], Any]) -> float:
        tracemalloc.start()
        try:
            call()
            return tracemalloc.get_traced_memory()[1] / (8 * 4 * 400 * 400)
        finally:
            tracemalloc.stop()

    names = None if same_dtype else "torch"
    assert peak(lambda: nn.save(net, path, names=names)) < (1.1 if same_dtype else 1.3)
    into = nn.Sequential(*(nn.Linear(400, 400, dtype="float32" if same_dtype else "float64") for _ in range(8)))
    assert peak(lambda: nn.load(into, path)) < (1.1 if same_dtype else 3.3)  # file, and what it becomes


# -- damaged and hostile files -----------------------------------------------------------------------------------------
def made(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


ONE = b'"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}'
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it is empty"),
    "seven bytes": (b"\0" * 7, "is truncated"),
    "a huge header": (made(b"{}", length=1 << 62), "its header would have"),
    "a header of 40 MB": (made(b"{".ljust(40_000_000)), "at most 33554432"),
    "a header beyond the file": (made({"weight": entry()}, length=1000), "is truncated"),
    "no JSON": (made(b"{weight"), "its header"),
    "no object": (made(b'["weight"]'), "is no JSON object"),
    "deep JSON": (made(b"{" + b'"a":{' * 100_000), "nested too deeply"),
    "other bytes": (made(b"\xff\xfe{}"), "its header"),
    "truncated": (made({"weight": entry()}, b"\0" * 7), "'weight': it ends at byte 8 of .*, of which the file has 7"),
    "more data": (made({"weight": entry()}, b"\0" * 9), "its arrays have 8 bytes, and the file has 9"),
    "a gap": (made({"weight": entry(offsets=(4, 12))}, b"\0" * 12), "'weight'.*leaves a gap"),
    "an overlap": (made({"weight": entry(), "bias": entry(offsets=(4, 12))}, b"\0" * 12), "'bias'.*overlaps"),
    "one place for two": (made({"weight": entry(), "bias": entry()}, b"\0" * 8), "'(weight|bias)'.*overlaps"),
    "beyond the file": (made({"weight": entry(shape=(1 << 40,), offsets=(0, 1 << 42))}), "'weight': it ends at byte"),
    "backwards": (made({"weight": entry(offsets=(8, 0))}, b"\0" * 8), "'weight'"),
    "negative": (made({"weight": entry(offsets=(-8, 0))}), "'weight'"),
    "a fraction": (made({"weight": entry(offsets=(0, 8.0))}, b"\0" * 8), "'weight'"),
    "true as a number": (made({"weight": entry(shape=(2, True))}, b"\0" * 8), "'weight'"),
    "a wrong size": (made({"weight": entry(shape=(3,))}, b"\0" * 8), r"'weight'.*an array of shape \(3,\)"),
    "a negative shape": (made({"weight": entry(shape=(-1, -2))}, b"\0" * 8), "'weight'"),
    "a shape without elements": (made({"weight": entry(shape=(0, 1 << 70), offsets=(0, 0))}), "'weight'"),
    "65 dimensions": (made({"weight": entry(shape=(1,) * 64 + (2,))}, b"\0" * 8), "'weight'"),
    "an unknown dtype": (made({"weight": entry("F4", (16,))}, b"\0" * 8), "'weight'.*has dtype F4"),
    "a dtype that is a list": (made({"weight": entry([])}, b"\0" * 8), "'weight'"),
    "no offsets": (made({"weight": {"dtype": "F32", "shape": [2]}}, b"\0" * 8), "'weight'"),
    "three offsets": (made({"weight": entry(offsets=(0, 4, 8))}, b"\0" * 8), "'weight'"),
    "a text as an entry": (made({"weight": "F32"}), "'weight'"),
    "a number as an entry": (made({"weight": 3}), "'weight'"),
    "a name twice": (made(b"{" + ONE + b"," + ONE + b"}", b"\0" * 8), "'weight' twice"),
    "a key twice": (made(b'{"weight": {"dtype": "F32", "dtype": "I64"}}'), "'dtype' twice"),
    "metadata of numbers": (made({"__metadata__": {"a": 1}, "weight": entry()}, b"\0" * 8), "no texts"),
    "metadata that is a list": (made({"__metadata__": [1]}), "'__metadata__'"),
    "notes that are no JSON": (made({"__metadata__": {"ringtape": "{"}}), "'__metadata__'"),
    "notes that are a list": (made({"__metadata__": {"ringtape": "[1]"}}), "'__metadata__'"),
    "a note that is a text": (made({"__metadata__": {"ringtape": '{"weight": 1}'}}), "'__metadata__'"),
    "notes of places": (made({"__metadata__": {"ringtape": '{"weight": {"places": []}}'}}), "'__metadata__'"),
    "a pickle": (b"\x80\x04K\x01.".ljust(50), "no .safetensors file"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_refused_before_memory_is_taken(tmp_path: Path, kind: str) -> None:
    content, text = HOSTILE[kind]
    path, layer = tmp_path / "hostile.safetensors", nn.LayerNorm(2)
    path.write_bytes(content)
    before = values_of(layer)
    for call in (lambda: nn.load(layer, path), lambda: nn.load(layer, path, names="torch"), lambda: nn.contents(path)):
        tracemalloc.start()
        try:
            with pytest.raises(FileError, match=text) as error:
                call()
            assert tracemalloc.get_traced_memory()[1] < 2 * min(len(content), 1 << 25) + 1_000_000
        finally:
            tracemalloc.stop()
        assert "hostile.safetensors" in str(error.value)
    assert all(same(x, before[name]) for name, x in values_of(layer).items())


@pytest.mark.parametrize("seed", range(4))
def test_mutated_files_give_typed_errors_or_values(tmp_path: Path, seed: int) -> None:
    """Bytes that change before the data: `test_weights_digests` changes bits of all of it."""
    path, layer, rng = tmp_path / "x.safetensors", nn.Linear(3, 4), random_numbers.Random(seed)
    nn.save(layer, path, names=rng.choice(["torch", "ringtape"]))
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    refused = 0
    tracemalloc.start()
    for _ in range(400):
        mutant = bytearray(content)
        for _ in range(rng.choice([1, 1, 2, 5])):
            mutant[rng.randrange(start)] = rng.choice([rng.randrange(256), *b'0123456789{}[]",:'])
        if rng.random() < 0.2:
            del mutant[rng.randrange(len(mutant)) :]
        path.write_bytes(mutant)
        into = nn.Linear(3, 4)
        before = values_of(into)
        try:
            nn.contents(path)
            nn.load(into, path)
        except RingtapeError:
            refused += 1
            assert all(same(x, before[name]) for name, x in values_of(into).items())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused > 200 and peak < 5_000_000


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, layer = tmp_path / "x.safetensors", nn.Linear(100, 100)
    nn.save(layer, path)
    found = weights.library("test")
    opened = found.safe_open

    def shrink(*given: Any, **words: Any) -> Any:
        reader = opened(*given, **words)
        os.truncate(path, 2000)
        return reader

    monkeypatch.setattr(found, "safe_open", shrink)
    with pytest.raises(FileError, match=r"x.safetensors'\), entry"):
        nn.load(layer, path)


def test_a_load_that_fails_changes_nothing(tmp_path: Path) -> None:
    path, model = tmp_path / "x.safetensors", nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    nn.save(model, path)
    other = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 4))
    before = values_of(other)
    with pytest.raises(ShapeError, match=r"size mismatch for 1.weight"):
        nn.load(other, path)
    assert all(same(x, before[name]) for name, x in values_of(other).items())


def test_names_in_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b[2J\x07name"
    path = tmp_path / "x.safetensors"
    library.save_file({evil: np.ones(2), "weight": np.ones(2), "bias": np.ones(2)}, path, {evil: evil})
    for call in (lambda: nn.load(nn.LayerNorm(2), path), lambda: nn.load(nn.Linear(2, 1), path, names="torch")):
        with pytest.raises(RingtapeError) as error:
            call()
        assert "\x1b" not in str(error.value) and "\x07" not in str(error.value)
    path.write_bytes(made({evil: entry(evil)}, b"\0" * 8))
    with pytest.raises(FileError) as refusal:
        nn.contents(path)
    assert "\x1b" not in str(refusal.value)
