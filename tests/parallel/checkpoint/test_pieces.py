"""Pieces of values as objects, and in arrays: the same results, and the same errors."""

from __future__ import annotations

import copy
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autograd.digests import blake2b
from autograd.errors import DamagedCheckpoint
from parallel.checkpoint import manifest as module
from parallel.checkpoint.boxes import cut, whole_box
from parallel.checkpoint.manifest import Manifest, Value
from parallel.checkpoint.pieces import Pieces, Stretch, are_apart, equal_to, meeting, numbers_of

FOLDER = Path("run")


def divided(rng: Any, shape: tuple[int, ...], count: int) -> list[Any]:
    """A value's whole box, cut in rows, and in columns here and there."""
    boxes = [whole_box(shape)]
    for _ in range(count if all(shape) and shape else 0):
        box = boxes.pop(rng.integers(len(boxes)))
        dim = int(rng.integers(len(shape)))
        turned = (box[dim], *box[:dim], *box[dim + 1 :])
        for part in (cut(turned, 0.0, 0.4), cut(turned, 0.4, 1.0)):
            if part is not None:
                boxes.append((*part[1 : dim + 1], part[0], *part[dim + 1 :]))
    return boxes


def made(rng: Any, rows_only: bool = False) -> Manifest:
    values, at, tree = {}, 0, {}
    for v, shape in enumerate([(40, 6), (9,), (12, 3, 5), (), (7, 8), (0, 3)]):
        boxes = divided(rng, shape, int(rng.integers(0, 14)))
        if rows_only and shape:
            boxes = [((a, a + 1), *whole_box(shape[1:])) for a in range(shape[0])]
        pieces = []
        for box in boxes:
            n = int(np.prod([b - a for a, b in box], dtype=int)) * 4
            pieces.append(Stretch(int(rng.integers(3)), at, at + n, box, f"{at:08x}"))
            at += n
        rng.shuffle(pieces)
        values[f"x{v}"] = Value(shape, "float32", {}, {}, tuple(pieces))
        tree[f"x{v}"] = {"value": f"x{v}"}
    return Manifest(1, tree, values, [(f"f{k}", 10**6) for k in range(3)], {}, [0], "crc32", {})


def plain(found: Manifest) -> Any:
    return {key: (v.shape, v.dtype, list(v.pieces)) for key, v in found.values.items()}


@pytest.mark.parametrize("few, at_once", [(0, 1 << 16), (3, 0), (10**9, 300)])
@pytest.mark.parametrize("seed", range(4))
def test_a_manifest_comes_back(seed: int, few: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FEW", few)
    monkeypatch.setattr(module, "_AT_ONCE", at_once)
    written = made(np.random.default_rng(seed), seed == 3)
    found = Manifest.of_text(written.text().encode(), FOLDER)
    assert plain(found) == plain(written)
    kinds = {type(v.pieces) for v in found.values.values() if v.pieces}
    assert kinds == ({tuple} if few > 3 else kinds) and (few or kinds == {Pieces})


def wrapped(code: Any, one_line: bool) -> bytes:
    values = code.pop("values")
    if one_line:
        body = json.dumps({**code, "values": values})
    else:
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(x)}" for key, x in values.items())
        body = json.dumps(code)[:-1] + ', "values": {\n' + lines + "\n}}"
    return f'{{"digest": "{blake2b(body.encode(), digest_size=16).hexdigest()}", "manifest":\n{body}\n}}\n'.encode()


BAD: list[Any] = [-1, 7, 3, 0, 1, 10**7, 1 << 62, 1 << 70, 1.5, True, None, "x", [], [[0, 1]], {}, "é", "c" * 70]


@pytest.mark.parametrize("seed", range(40))
def test_wrong_pieces_have_the_same_errors(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One change of one number, box or list, read in lines or at once, into objects or arrays."""
    rng = np.random.default_rng([7, seed])
    code = json.loads(made(rng, seed % 3 == 0).text())["manifest"]
    name = f"x{rng.choice([0, 1, 2, 4])}"
    pieces = code["values"][name]["pieces"]
    piece, what = pieces[rng.integers(len(pieces))], int(rng.integers(8))
    bad = BAD[rng.integers(len(BAD))]
    if what < 3:
        piece[what] = bad
    elif what == 3:
        piece[3][0][int(rng.integers(2))] = bad
    elif what == 4:
        piece[3] = bad
    elif what == 5:
        pieces[0] = bad
    elif what == 6:
        pieces.append(copy.deepcopy(pieces[0]))
    else:
        pieces.pop()
    texts = []
    for few in (0, 10**9):
        monkeypatch.setattr(module, "_FEW", few)
        for one_line in (False, True):
            try:
                found = Manifest.of_text(wrapped(copy.deepcopy(code), one_line), FOLDER)
                texts.append(repr(plain(found)))
            except DamagedCheckpoint as error:
                texts.append(error.reason)
    assert texts[0] == texts[1] and texts[2] == texts[3]
    assert texts[0] == texts[2] or bad is True  # which arrays take for 1


def test_lines_that_are_no_manifest() -> None:
    text = wrapped(json.loads(made(np.random.default_rng(0)).text())["manifest"], False)
    body = text.partition(b'"manifest":\n')[2][:-3]
    line = body.split(b"\n")[1]
    for wrong, says in (
        (body.replace(line, line + b"\n" + line), "twice"), (body.replace(line, line + line[:-1]), "no manifest"),
        (body.replace(line, b'"x": 3, [' + line), "no manifest"), (body.replace(line, b"[1],"), "no manifest"),
        (body.replace(line, line[:-2] + b","), "no manifest"), (body.replace(b"}}", b"}, 3}"), "no manifest"),
    ):  # fmt: skip
        digest = blake2b(wrong, digest_size=16).hexdigest().encode()
        made_up = b'{"digest": "%s", "manifest":\n%s\n}\n' % (digest, wrong)
        with pytest.raises(DamagedCheckpoint, match=says):
            Manifest.of_text(made_up, FOLDER)


@pytest.mark.parametrize("seed", range(6))
def test_searches(seed: int) -> None:
    rng = np.random.default_rng([9, seed])
    for shape in [(40, 6), (12, 3, 5), (9,), ()]:
        objects = tuple(
            Stretch(0, 4 * i, 4 * i + 4 * (i % 5 > 0), box, f"{i}")
            for i, box in enumerate(divided(rng, shape, int(rng.integers(1, 20))))
        )
        code = [[p.file, p.begin, p.end, [list(x) for x in p.box], p.checksum] for p in objects]
        arrays = Pieces.of_code(code, len(shape))
        assert list(arrays) == list(objects) and arrays[-1] == objects[-1] and list(arrays[1:3]) == list(objects[1:3])
        assert np.array_equal(numbers_of(arrays), numbers_of(objects))
        for _ in range(20):
            box = tuple(tuple(sorted(map(int, rng.integers(0, n + 1, 2)))) for n in shape)
            assert meeting(arrays, box) == meeting(objects, box)
            for other in (box, objects[rng.integers(len(objects))].box):
                assert equal_to(arrays, other) == equal_to(objects, other)
        if are_apart(arrays, shape):
            module.refuse_meeting(objects, FOLDER, "x")


def test_rows_that_are_apart() -> None:
    rows = [[0, 0, 0, [[a, a + 2], [0, 3]], ""] for a in (4, 0, 2)]
    assert are_apart(Pieces.of_code(rows, 2), (6, 3)) and not are_apart(Pieces.of_code(rows, 2), (6, 4))
    rows[0][3] = [[3, 5], [0, 3]]
    assert not are_apart(Pieces.of_code(rows, 2), (6, 3))
    rows[0][3] = [[1, 1], [0, 3]]  # nothing
    assert are_apart(Pieces.of_code(rows, 2), (6, 3))


def test_memory(tmp_path: Path) -> None:
    """A manifest used to take 15 times its size while it was read, and 7 times afterwards."""
    rows = 3000
    pieces = tuple(Stretch(0, 64 * k, 64 * k + 64, ((k, k + 1), (0, 16)), f"{k:016x}") for k in range(rows))
    value = Value((rows, 16), "float32", {"dp": "Shard(0)"}, {}, pieces)
    written = Manifest(1, {"x": {"value": "x"}}, {"x": value}, [("f", 10**6)], {}, [0], "xxh3_64", {})
    (tmp_path / module.NAME).write_text(text := written.text())
    Manifest.read(tmp_path)
    tracemalloc.start()
    try:
        found = Manifest.read(tmp_path)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.values["x"].pieces[7] == pieces[7]
    assert held < 2 * len(text)
