"""Digests of `.safetensors` files: every changed bit of a file of ours is told; files of others load, and say so."""

from __future__ import annotations

import json
import random as random_numbers
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn
from autograd.__main__ import main
from autograd.errors import FileError, FileWarning, RingtapeError
from autograd.nn import weights
from parallel import DataParallel

library = pytest.importorskip("safetensors.numpy", reason="safetensors is in the extra checkpoint")
CHECKSUMS = ["xxh3_64", "crc32"]


@pytest.fixture(params=CHECKSUMS)
def checksum(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The checksum that is written, with and without xxhash."""
    if request.param == "crc32":
        monkeypatch.setitem(sys.modules, "xxhash", None)
    else:
        pytest.importorskip("xxhash")
    return str(request.param)


class Held(nn.Module):
    """Parameters and buffers of many dtypes and shapes."""

    def __init__(self, **values: Any):
        for name, x in values.items():
            if np.asarray(x).dtype.kind in "fc" and np.ndim(x):
                setattr(self, name, ag.Parameter(x))
            else:
                self.register_buffer(name, x)


def values(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    found = {
        "double": rng.standard_normal((3, 4)), "single": rng.standard_normal(5).astype("f4"),
        "half": rng.standard_normal((2, 2)).astype("f2"), "pair": (rng.standard_normal(3) + 1j).astype("c8"),
        "bits": rng.random(7) < 0.5, "one": np.array(3.5), "none": np.zeros((0, 3)),
        "whole": rng.integers(-9, 9, (2, 3)),
    }  # fmt: skip
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        return found
    return found | {"brain": rng.standard_normal(6).astype(bfloat16)}


def is_told(content: bytes, path: Path, into: nn.Module) -> str:
    """The message of the error with which a file is refused; "" if it is loaded. The module keeps its values."""
    path.write_bytes(content)
    before = {name: x.tobytes() for name, x in into.state_dict().items()}
    try:
        nn.load(into, path)
    except RingtapeError as error:
        assert isinstance(error, FileError), error
        assert before == {name: x.tobytes() for name, x in into.state_dict().items()}
        return str(error)
    return ""


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 11])
def test_each_bit_of_a_file_of_ours_is_told(tmp_path: Path, checksum: str, every: int) -> None:
    """All bits, of the length, the names, dtypes, shapes and places, the notes and their digest, and the data."""
    made, path = nn.Linear(3, 2), tmp_path / "x.safetensors"
    nn.save(made, path, names="torch")
    content, into = path.read_bytes(), nn.Linear(3, 2)
    untold = []
    for i in range(0, 8 * len(content), every):
        changed = bytearray(content)
        changed[i // 8] ^= 1 << i % 8
        text = is_told(bytes(changed), path, into)
        if not text:
            untold.append((i // 8, content[max(0, i // 8 - 20) : i // 8 + 5]))
        assert not text or str(path) in text
    assert not untold
    assert not is_told(content, path, into) and np.array_equal(into.weight.numpy(), made.weight.numpy())


@pytest.mark.parametrize("seed", range(2))
def test_200_bits_of_a_file_of_all_dtypes_are_told_with_the_array(tmp_path: Path, checksum: str, seed: int) -> None:
    path, rng = tmp_path / "x.safetensors", random_numbers.Random(seed)
    nn.save(Held(**values()), path)
    content, into = path.read_bytes(), Held(**values(1))
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    places = {name: each["data_offsets"] for name, each in header.items() if name != "__metadata__"}
    for _ in range(200):
        at = rng.randrange(len(content)) if rng.random() < 0.5 else rng.randrange(start, len(content))
        changed = bytearray(content)
        changed[at] ^= 1 << rng.randrange(8)
        text = is_told(bytes(changed), path, into)
        named = [name for name, (a, b) in places.items() if a <= at - start < b]
        assert text and (not named or f"entry {named[0]!r}: it is not what was saved" in text), (at, text)


CHANGES: dict[str, Callable[[bytes, dict[str, Any]], bytes]] = {
    "truncated": lambda content, header: content[:-3],
    "no arrays": lambda content, header: content[: 8 + int.from_bytes(content[:8], "little")],
    "half a header": lambda content, header: content[:40],
    "bytes besides": lambda content, header: content + b"\0" * 8,
    "zeros for the data": lambda content, header: content[:-16] + b"\0" * 16,
    "no digest": lambda content, header: without(content, header, "ringtape.digest"),
    "no notes": lambda content, header: without(content, header, "ringtape"),
    "the digest of nothing": lambda content, header: other(content, header, "ringtape.digest", ""),
    "an unknown checksum": lambda content, header: other(content, header, "ringtape.digest", "md5 00"),
    "notes of nobody": lambda content, header: other(content, header, "ringtape", "{}"),
    "another text": lambda content, header: other(content, header, "format", "np"),
    "a text besides": lambda content, header: other(content, header, "note", "x"),
    "the data of another array": lambda content, header: swapped(content, header),
}  # fmt: skip


def rewritten(content: bytes, header: dict[str, Any]) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + int.from_bytes(content[:8], "little") :]


def without(content: bytes, header: dict[str, Any], name: str) -> bytes:
    kept = {key: text for key, text in header["__metadata__"].items() if key != name}
    return rewritten(content, {**header, "__metadata__": kept})


def other(content: bytes, header: dict[str, Any], name: str, text: str) -> bytes:
    return rewritten(content, {**header, "__metadata__": {**header["__metadata__"], name: text}})


def swapped(content: bytes, header: dict[str, Any]) -> bytes:
    a, b = header["0.bias"], header["1.bias"]
    places = {"data_offsets": b["data_offsets"]}, {"data_offsets": a["data_offsets"]}
    return rewritten(content, {**header, "0.bias": {**a, **places[0]}, "1.bias": {**b, **places[1]}})


@pytest.mark.parametrize("kind", CHANGES)
def test_other_changes_of_a_file_of_ours_are_told(tmp_path: Path, checksum: str, kind: str) -> None:
    path = tmp_path / "x.safetensors"
    nn.save(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), path, names="torch")
    content, into = path.read_bytes(), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert not is_told(rewritten(content, header), path, into)  # the same content, written as another program does
    assert is_told(CHANGES[kind](content, header), path, into)
    with pytest.raises(FileError):
        nn.contents(path, check=True)


def test_the_fix_of_the_message_leads_to_the_end(tmp_path: Path) -> None:
    path, into = tmp_path / "x.safetensors", nn.Linear(3, 2)
    nn.save(into, path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 64
    text = is_told(bytes(content), path, into)
    (code,) = re.findall(r"or:  (safetensors\.numpy\.save_file.*?\)), if", text)
    exec(code, {"safetensors": sys.modules["safetensors"], "path": path})
    nn.load(into, path, names="ringtape")
    assert "without digest" in repr(nn.contents(path))
    nn.save(into, path)  # and has digests again
    assert not is_told(path.read_bytes(), path, into)


def test_other_programs_read_ours_and_we_read_theirs_and_say_so(
    tmp_path: Path, checksum: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, model = tmp_path / "x.safetensors", Held(**values())
    nn.save(model, path)
    theirs = library.load_file(path)
    assert theirs.keys() == values().keys()
    assert all(np.asarray(x).tobytes() == theirs[name].tobytes() for name, x in values().items())
    assert {each.checksum for each in nn.contents(path, check=True).values()} == {checksum}
    assert main(["weights", str(path)]) == 0
    assert "each is as it was saved" in capsys.readouterr().out
    library.save_file(theirs, path, {"format": "pt", "note": "ringtape"})
    into = Held(**values(1))
    nn.load(into, path, names="ringtape")
    assert all(np.array_equal(np.asarray(x), into.state_dict()[name]) for name, x in values().items())
    found = nn.contents(path, check=True)
    assert {each.checksum for each in found.values()} == {""} and "whole, without digest" in repr(found["single"])
    assert main(["weights", str(path)]) == 0
    assert "it has no digests, so that changed bits cannot be seen" in capsys.readouterr().out


def test_the_command_and_contents_read_the_data_if_they_are_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.safetensors"
    nn.save(nn.Linear(3, 2), path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert list(nn.contents(path)) == ["bias", "weight"]
    with pytest.raises(FileError, match=r"x.safetensors'\), entry 'weight': it is not what was saved"):
        nn.contents(path, check=True)
    assert main(["weights", str(path), str(tmp_path / "none")]) == 1
    errors = capsys.readouterr().err
    assert "entry 'weight': it is not what was saved" in errors and "No such file" in errors
    with pytest.raises(RingtapeError, match="needed: True or False"):
        nn.contents(path, check="yes")  # type: ignore[arg-type]


def test_an_archive_says_that_it_has_checksums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.npz"
    nn.save({"m": nn.Linear(3, 2), "best": 0.25}, path)
    assert {each.checksum for each in nn.contents(path, check=True).values() if each.kind == "array"} == {"crc32"}
    assert main(["weights", str(path)]) == 0
    content = bytearray(path.read_bytes())
    content[content.index(b"NUMPY") + 150] ^= 1
    path.write_bytes(content)
    with pytest.raises(FileError, match="damaged"):
        nn.contents(path, check=True)
    assert main(["weights", str(path)]) == 1


def test_a_reader_without_xxhash_loads_and_says_that_it_does_not_compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What needs no library is compared: the header."""
    pytest.importorskip("xxhash")
    path, made, into = tmp_path / "x.safetensors", nn.Linear(3, 2), nn.Linear(3, 2)
    nn.save(made, path)
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.warns(FileWarning, match=r"not compared with their digests.*\n  fix: pip install") as told:
        nn.load(into, path)
    assert len(told) == 1 and np.array_equal(into.weight.numpy(), made.weight.numpy())
    assert main(["weights", str(path)]) == 1 and "not compared" in capsys.readouterr().err
    content = bytearray(path.read_bytes())
    at = content.index(b'"dtype"')
    content[at + 9] ^= 1
    assert is_told(bytes(content), path, into)


def test_a_file_of_an_earlier_version_loads(tmp_path: Path) -> None:
    """It has the notes of ringtape, and no digests."""
    path, made, into = tmp_path / "x.safetensors", nn.Linear(3, 2), nn.Linear(3, 2)
    state = {name: np.array(x) for name, x in made.state_dict().items()}
    library.save_file(state, path, {"ringtape": json.dumps({"weight": {"name": "weight", "transposed": False}})})
    nn.load(into, path)
    assert np.array_equal(into.weight.numpy(), made.weight.numpy())
    assert nn.contents(path)["weight"].checksum == ""


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("ranks", [2, 3])
def test_each_rank_compares_what_it_reads(tmp_path: Path, ranks: int, zero: int) -> None:
    """A rank that takes a part reads the whole array: a bit in the part of another rank is told on all of them."""
    path = tmp_path / "x.safetensors"

    def save() -> None:
        with cc.Mesh(dp=-1):
            nn.save(DataParallel(nn.Linear(7, 5), "dp", zero=zero), path)

    def load() -> list[str]:
        with cc.Mesh(dp=-1):
            model = DataParallel(nn.Linear(7, 5), "dp", zero=zero)
            before = [p.data.copy() for p in model.parameters()]
            with pytest.raises(RingtapeError, match="entry '.*weight': it is not what was saved") as told:
                nn.load(model, path)
            assert all(np.array_equal(p.data, x) for p, x in zip(model.parameters(), before, strict=True))
            return [str(told.value)]

    cc.run(save, ranks)
    content = bytearray(path.read_bytes())
    content[-1] ^= 128
    path.write_bytes(content)
    assert len(cc.run(load, ranks)) == ranks


def test_a_merged_checkpoint_has_digests(tmp_path: Path, checksum: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from parallel import checkpoint
    from parallel.checkpoint import commands, disk

    monkeypatch.setattr(disk, "CHECKSUM", checksum)
    monkeypatch.setattr(disk, "NO_CHECKSUM", "0" * len(disk.checksum_named(checksum, "")(b"")))
    run, path, made = tmp_path / "run", tmp_path / "x.safetensors", nn.Linear(3, 2)
    checkpoint.save(run, {"model": made, "big": np.ones(3, ">f8"), "pairs": np.ones(2) * 1j}, 1)
    for words in ([], ["--all"]):
        path.unlink(missing_ok=True)
        assert commands.main(["merge", str(run), str(path), *words]) == 0
        assert {each.checksum for each in nn.contents(path, check=True).values()} == {checksum}
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(FileError, match="it is not what was saved"):
            nn.contents(path, check=True)
    path.unlink()
    assert commands.main(["merge", str(run), str(path)]) == 0
    into = nn.Linear(3, 2)
    assert not is_told(path.read_bytes(), path, into) and np.array_equal(into.weight.numpy(), made.weight.numpy())


# -- several files -----------------------------------------------------------------------------------------------------
def sharded(folder: Path, model: nn.Module, ours: bool) -> Path:
    """The state of a model in two files and their index, as other programs write large models."""
    state = {name: np.array(x) for name, x in model.state_dict().items()}
    places: dict[str, str] = {}
    for i in range(2):
        part = dict(list(state.items())[i::2])
        where = f"model-0000{i + 1}-of-00002.safetensors"
        nn.save(Held(**part), folder / where) if ours else library.save_file(part, folder / where, {"format": "pt"})
        places |= dict.fromkeys(part, where)
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return path


@pytest.mark.parametrize("ranks", [0, 3])
@pytest.mark.parametrize("ours", [True, False])
def test_the_index_of_several_files_loads_them_all(tmp_path: Path, ours: bool, ranks: int) -> None:
    made = nn.Sequential(nn.LayerNorm(4), nn.LayerNorm(4))
    path = sharded(tmp_path, made, ours)

    def load() -> bool:
        into = nn.Sequential(nn.LayerNorm(4), nn.LayerNorm(4))
        nn.load(into, path, names="ringtape")
        return all(np.array_equal(x, into.state_dict()[name]) for name, x in made.state_dict().items())

    def on_ranks() -> bool:
        with cc.Mesh(dp=-1):
            return load()

    assert all(cc.run(on_ranks, ranks)) if ranks else load()
    assert {bool(each.checksum) for each in nn.contents(path, check=True).values()} == {ours}
    data = tmp_path / "model-00002-of-00002.safetensors"
    content = bytearray(data.read_bytes())
    content[-1] ^= 2
    data.write_bytes(content)
    if ours:
        with pytest.raises(FileError, match="model-00002-of-00002.safetensors, entry .*it is not what was saved"):
            load()
    else:
        assert not load()


def test_bits_of_an_index_are_refused_or_change_nothing(tmp_path: Path) -> None:
    made, into = nn.Sequential(nn.LayerNorm(4)), nn.Sequential(nn.LayerNorm(4))
    path = sharded(tmp_path, made, ours=True)
    content = path.read_bytes()
    for i in range(0, 8 * len(content), 3):
        changed = bytearray(content)
        changed[i // 8] ^= 1 << i % 8
        if not is_told(bytes(changed), path, into):
            assert all(np.array_equal(x, into.state_dict()[name]) for name, x in made.state_dict().items())


INDICES: dict[str, tuple[Any, str]] = {
    "no map": ({}, "its index"), "an empty map": ({"weight_map": {}}, "has no arrays"), "a list": ([], "its index"),
    "a number for a file": ({"weight_map": {"0.weight": 3}}, "needed: the name of a .safetensors file"),
    "a file elsewhere": ({"weight_map": {"0.weight": "../x.safetensors"}}, "needed: the name of a .safetensors file"),
    "an absolute path": ({"weight_map": {"0.weight": "/x.safetensors"}}, "needed: the name of a .safetensors file"),
    "no such file": ({"weight_map": {"0.weight": "x.safetensors"}}, "'x.safetensors', which is no file"),
    "another array": ({"weight_map": {"y": "model-00001-of-00002.safetensors"}}, "do not both have it"),
}  # fmt: skip


@pytest.mark.parametrize("kind", INDICES)
def test_a_wrong_index_is_refused(tmp_path: Path, kind: str) -> None:
    code, text = INDICES[kind]
    path = sharded(tmp_path, nn.Sequential(nn.LayerNorm(4)), ours=True)
    path.write_text(json.dumps(code))
    with pytest.raises(FileError, match=text):
        nn.load(nn.Sequential(nn.LayerNorm(4)), path)


def test_a_name_that_looks_like_the_digest(tmp_path: Path) -> None:
    path, into = tmp_path / "x.safetensors", nn.LayerNorm(2)
    names = {"weight": '"ringtape.digest":"', "bias": "ringtape.digest"}
    nn.save(into, path, names=names)
    assert not is_told(path.read_bytes(), path, into) and list(nn.contents(path)) == sorted(names.values())
    assert weights.is_weights(str(path))
