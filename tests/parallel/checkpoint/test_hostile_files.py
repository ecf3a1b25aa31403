"""Checkpoints that are damaged, or made to do harm: typed errors that name the place, or the right values."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collectives as cc
from autograd import nn, optim, random
from autograd.errors import ArgumentError, CheckpointError, CheckpointWarning, DamagedCheckpoint, RingtapeError
from parallel import Trainer, checkpoint
from parallel.checkpoint import disk, loading
from parallel.checkpoint.commands import main
from parallel.checkpoint.directory import Directory
from parallel.checkpoint.loading import FileSource, StoredValue

X, Y = np.random.default_rng(0).standard_normal((12, 16)), np.arange(12) % 2
PLAIN = {"best": 0.25, "rates": [0.1, np.arange(5)], "pair": (1, None, "text", float("inf")), "of": {"value": "x"}}
NAMES = ("rank-00000.safetensors", "rank-00001.safetensors")


def trainer(ranks: int) -> Trainer:
    key = random.Key(0, "hostile")

    def model() -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(16, 8, dtype=float, key=key.fold("a")), nn.Tanh(), nn.Linear(8, 2, dtype=float, key=key.fold("b"))
        )

    return Trainer(
        model, nn.CrossEntropyLoss(reduction="sum"), cc.Mesh(dp=ranks), zero=1,
        optimizer=lambda p: optim.AdamW(p, lr=0.01),
    )  # fmt: skip


def write(folder: str) -> None:
    made = trainer(2)
    for _ in range(2):
        made.step(X, Y)
        made.save(folder, random=random, **PLAIN)


def flat(x: Any) -> Any:
    """A value that == compares."""
    if isinstance(x, dict):
        return {key: flat(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [type(x).__name__, *map(flat, x)]
    return (x.dtype.str, x.shape, x.tobytes()) if isinstance(x, np.ndarray | np.generic) else repr(x)


class Run:
    """A run whose second step is damaged, and objects of another mesh that load it."""

    def __init__(self, folder: Path):
        self.sound, self.path = folder / "sound", folder / "run"
        cc.run(write, 2, str(self.sound))
        self.trainer = trainer(1)
        self.right = {step: self.loaded(self.sound, step) for step in (1, 2)}
        self.files = {x.name: x.read_bytes() for x in (self.sound / "step-000000002").iterdir()}

    def loaded(self, path: Path, step: int | None = None) -> Any:
        found = self.trainer.load(path, step, random=random)
        return found.step, flat(found.values), flat(self.trainer.state_dict())

    def again(self) -> Path:
        """Write the run anew, and return the directory of its second step."""
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(self.sound, self.path)
        return self.path / "step-000000002"

    def manifest(self) -> Any:
        return json.loads(self.files["manifest.json"])["manifest"]


def with_digest(body: str) -> bytes:
    """The text of a manifest that has been changed by somebody who knows the format."""
    digest = hashlib.blake2b(body.encode(), digest_size=16).hexdigest()
    return f'{{"digest": "{digest}", "manifest":\n{body}\n}}\n'.encode()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield Run(tmp_path_factory.mktemp("hostile"))


@contextmanager
def limited(run: Run) -> Iterator[None]:
    """A block that may need the memory of the files and of the objects. Those of a JSON text are larger than it."""
    sizes = {str(x.relative_to(run.path)): x.lstat().st_size for x in run.path.rglob("*")}
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    manifest = sizes.get("step-000000002/manifest.json", 0)
    assert peak < 2 * sum(sizes.values()) + 20 * manifest + 200_000, f"{peak} bytes of {sizes}"


def printed(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = main(arguments)
    text = out.getvalue()
    assert all(x.isprintable() or x == "\n" for x in text) and code in (0, 1, 2), text
    return code, text


def examined(run: Run, seed: int) -> dict[str, Any]:
    """The result of each way of reading the run, or its typed error. Other errors are raised."""
    found: dict[str, Any] = {}
    where = Directory(run.path)
    before = flat(run.trainer.state_dict())
    for name, call in (
        ("latest", lambda: checkpoint.latest(run.path)), ("verify", lambda: where.verify(2)[0]),
        ("load", lambda: run.loaded(run.path)), ("load 2", lambda: run.loaded(run.path, 2)),
    ):  # fmt: skip
        with warnings.catch_warnings(record=True) as caught, limited(run) if name == "load 2" else nullcontext():
            warnings.simplefilter("always")
            try:
                found[name] = call()
                before = flat(run.trainer.state_dict())
            except RingtapeError as error:
                found[name] = error
                assert flat(run.trainer.state_dict()) == before, "a refused checkpoint has changed an object"
        found[f"warned {name}"] = [each.message for each in caught]
    commands = [["ls", "DIR"], ["verify", "DIR"], ["ls", "DIR", "2"], ["ls", "--json", "DIR", "2"],
                ["diff", "DIR", "1", "2"], ["merge", "--overwrite", "DIR", "2", "OUT"]]  # fmt: skip
    for arguments in (*commands[:2], commands[2 + seed % 4]):
        given = [str(run.path) if x == "DIR" else str(run.path.parent / "out") if x == "OUT" else x for x in arguments]
        found[" ".join(arguments)] = printed(*given)
    return found


def is_refused(run: Run, seed: int, what: str) -> bool:
    """Whether a damaged second step is refused; an error if it gives wrong values instead, or says nothing."""
    found = examined(run, seed)
    load, known = found["load"], found["load 2"]
    assert isinstance(load, tuple) and load == run.right[load[0]], f"{what}: {load}"
    assert found["latest"] in (1, 2), what
    is_older = load[0] == 1
    assert isinstance(known, DamagedCheckpoint if is_older else tuple), f"{what}: {known}"
    assert is_older or known == run.right[2]
    if is_older:
        message = str(found["warned load"][-1])
        assert isinstance(found["warned load"][-1], CheckpointWarning) and "step 2 is left out: " in message
        assert str(run.path) in str(known) and message.isprintable(), message
        assert found["verify"], f"{what}: load refuses it, and verify does not"
        assert found["verify DIR"][0] == 1 and "step 2: damaged" in found["verify DIR"][1], what
    if isinstance(found["verify"], RingtapeError):
        assert isinstance(found["verify"], DamagedCheckpoint) and found["latest"] == 1
        assert "damaged: " in found["ls DIR"][1]
    assert found["ls DIR"][0] == 0
    return is_older


# -- mutants -----------------------------------------------------------------------------------------------------------
def changed(content: bytes, rng: Any) -> tuple[str, bytes]:
    """The content with flipped bits, cut off, longer, or with parts that are elsewhere, lost or repeated."""
    n, made = len(content), bytearray(content)
    kind = ("flip", "flip", "flips", "truncation", "extension", "splice", "loss", "zeros", "length")[rng.integers(9)]
    i, j = sorted(int(x) for x in rng.integers(0, n, 2))
    if kind.startswith("flip"):
        for _ in range(1 if kind == "flip" else 4):
            made[int(rng.integers(n))] ^= 1 << int(rng.integers(8))
    elif kind == "truncation":
        del made[i:]
    elif kind == "extension":
        made += rng.bytes(int(rng.integers(1, 99)))
    elif kind == "splice":
        made[i : i + 50] = content[j : j + 50]
    elif kind == "loss":
        del made[i : i + int(rng.integers(1, 300))]
    elif kind == "zeros":
        made[i : i + 64] = bytes(len(made[i : i + 64]))
    else:  # the length of the header of a data file
        made[:8] = int(rng.integers(0, 1 << 62)).to_bytes(8, "little")
    return kind, bytes(made)


def of_manifest(run: Run, step: Path, rng: Any) -> str:
    kind, made = changed(run.files["manifest.json"], rng)
    (step / "manifest.json").write_bytes(made)
    return kind


def of_data(run: Run, step: Path, rng: Any) -> str:
    name = NAMES[rng.integers(2)]
    kind, made = changed(run.files[name], rng)
    (step / name).write_bytes(made)
    return f"{name} {kind}"


def of_directory(run: Run, step: Path, rng: Any) -> str:
    name = ("manifest.json", *NAMES)[rng.integers(3)]
    file, kind = step / name, list(PLACES)[rng.integers(len(PLACES))]
    PLACES[kind](step, file)
    return f"{name} {kind}"


def replaced_by(make: Callable[[Path], Any]) -> Callable[[Path, Path], None]:
    def change(step: Path, file: Path) -> None:
        file.unlink()
        make(file)

    return change


def swap(step: Path, file: Path) -> None:
    a, b = (step / name for name in NAMES)
    content = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(content)


def link_to_copy(step: Path, file: Path) -> None:
    outside = step.parent.parent / "outside"
    outside.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(outside)


PLACES: dict[str, Callable[[Path, Path], Any]] = {
    "is missing": lambda step, file: file.unlink(),
    "is a directory": replaced_by(Path.mkdir),
    "is a pipe": replaced_by(os.mkfifo),
    "is a link to nothing": replaced_by(lambda file: file.symlink_to("nothing")),
    "is a link to itself": replaced_by(lambda file: file.symlink_to(file.name)),
    "is a link to a copy": link_to_copy,
    "is empty": lambda step, file: file.write_bytes(b""),
    "is of the step before": lambda step, file: shutil.copy(step.parent / "step-000000001" / file.name, file),
    "is swapped": swap,
    "cannot be read": lambda step, file: file.chmod(0),
    "has a neighbour": lambda step, file: (step / "rank-00007.safetensors").write_bytes(b"more"),
    "is in a step that is a file": lambda step, file: (shutil.rmtree(step), step.write_bytes(b"")),
    "is in a step that is a link to nothing": lambda step, file: (shutil.rmtree(step), step.symlink_to("x")),
    "is in a step of another number": lambda step, file: step.rename(step.with_name("step-000000003")),
    "is in a step that is not finished": lambda step, file: step.rename(step.with_name(".step-000000002.0123")),
    "is beside steps with strange names": lambda step, file: [
        (step.parent / name).mkdir() for name in ("step-0000000002", "step-٠٠٠٠٠٠٠٠٤", "step-" + "9" * 200, "step-x")],
}  # fmt: skip


DAMAGES = {"manifest": of_manifest, "data": of_data, "directory": of_directory}


def sweep(run: Run, name: str, seeds: range) -> dict[str, int]:
    counts = {"refused": 0, "right": 0}
    for seed in seeds:
        step = run.again()
        what = f"{seed} {DAMAGES[name](run, step, np.random.default_rng(seed))}"
        if "another number" in what or "not finished" in what:  # there is no second step
            found = examined(run, seed)
            assert found["load"] == run.right[1] and found["latest"] == 1, f"{what}: {found['load']}"
            assert isinstance(found["load 2"], CheckpointError)
            counts["refused"] += 1
        else:
            counts["refused" if is_refused(run, seed, what) else "right"] += 1
    return counts


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_step_is_refused_or_loaded_right(run: Run, name: str) -> None:
    counts = sweep(run, name, range(75))
    assert counts["refused"] > 30, counts


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", DAMAGES)
def test_2500_damaged_steps_of_each_kind(run: Run, name: str) -> None:
    counts = sweep(run, name, range(10_000, 12_500))
    print(name, counts)
    assert sum(counts.values()) == 2500 and counts["refused"] > 1000


# -- manifests of a program that knows the format ----------------------------------------------------------------------
def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 1, 7, 1 << 62, 1 << 70, 10**4000, 0.5, 1e300, float("nan"), "", "x", "..", "../x", "/etc/passwd",
    "rank-00001.safetensors", "a\0b", "\ud800", "\x1b[2J", "float32", "O", "f8,f8", "(2,2)f8", "<U1000000", "V8", "nan",
    "bfloat16", "<M8[ns]", "complex128", [], {}, [[]], [0], [1 << 40, 1 << 40], [[0, 1 << 40]], {"": 1},
    {"value": "best"}, {"value": ["x"]}, {"value": "trainer/model/0.weight"}, {"float": "1"}, {"tuple": 3},
    {"ranks": [1, 2, 3]}, {"differs": [None]}, {"by": {"x": 1}}, {"names": [["x"], [1]]}, {"names": [["0.weight"]]},
    {"state": 1}, {"dict": {}}, [0] * 1000, nested(90), nested(300),
)  # fmt: skip


def places_of(x: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a JSON value."""
    items = x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ()
    for key, each in items:
        yield (*at, key)
        yield from places_of(each, (*at, key))


def restructured(code: Any, rng: Any) -> str:
    """Change one to three values, keys or lengths in a JSON value."""
    said = []
    for _ in range(int(rng.integers(1, 4))):
        places = list(places_of(code))
        at = places[rng.integers(len(places))]
        holder = code
        for key in at[:-1]:
            holder = holder[key]
        kind = ("replace", "replace", "replace", "remove", "repeat", "swap", "rename", "count")[rng.integers(8)]
        other = places[rng.integers(len(places))]
        elsewhere = code
        for key in other:
            elsewhere = elsewhere[key]
        said.append(f"{kind} {'/'.join(map(str, at))}")
        if kind == "remove":
            del holder[at[-1]]
        elif kind == "repeat" and isinstance(holder, list):
            holder.extend([holder[at[-1]]] * int(rng.integers(1, 50)))
        elif kind == "swap":
            holder[at[-1]] = json.loads(json.dumps(elsewhere))
        elif kind == "rename" and isinstance(holder, dict):
            name = STRANGE[rng.integers(len(STRANGE))]
            holder[name if isinstance(name, str) else "y"] = holder.pop(at[-1])
        elif kind == "count" and isinstance(holder[at[-1]], int):
            holder[at[-1]] += int(rng.integers(-9, 9))
        else:
            holder[at[-1]] = STRANGE[rng.integers(len(STRANGE))]
    return ", ".join(said)


def sweep_structures(run: Run, seeds: range) -> dict[str, int]:
    """A digest does not tell who wrote it: such a manifest may say other values, but does no harm."""
    counts = {"refused": 0, "taken": 0}
    for seed in seeds:
        step, code = run.again(), run.manifest()
        what = restructured(code, np.random.default_rng(seed))
        (step / "manifest.json").write_bytes(with_digest(json.dumps(code)))
        try:
            found = examined(run, seed)
        except Exception as error:
            raise AssertionError(f"{seed}: {what}") from error
        assert found["latest"] in (1, 2), what
        if found["latest"] == 1:
            assert isinstance(found["load 2"], DamagedCheckpoint) and found["load"] == run.right[1], what
        counts["taken" if isinstance(found["load 2"], tuple) else "refused"] += 1
    return counts


def test_manifests_with_other_content_do_no_harm(run: Run) -> None:
    counts = sweep_structures(run, range(75))
    assert counts["refused"] > 40, counts


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_2500_manifests_with_other_content(run: Run) -> None:
    counts = sweep_structures(run, range(10_000, 12_500))
    print(counts)
    assert sum(counts.values()) == 2500 and counts["refused"] > 1500


VALUE = "trainer/model/0.weight"


def edited(**changes: Any) -> Callable[[Any], str]:
    """A manifest with other entries of a value, of 16 x 8 numbers in two pieces."""
    return lambda code: json.dumps({**code, "values": {**code["values"], VALUE: {**code["values"][VALUE], **changes}}})


def in_tree(x: Any) -> Callable[[Any], str]:
    return lambda code: json.dumps({**code, "tree": {**code["tree"], "best": x}})


def with_files(*files: Any) -> Callable[[Any], str]:
    return lambda code: json.dumps({**code, "files": list(files)})


def with_pieces(change: Callable[[list[Any]], Any]) -> Callable[[Any], str]:
    return lambda code: edited(pieces=change(json.loads(json.dumps(code["values"][VALUE]["pieces"]))))(code)


def second(pieces: list[Any], k: int, x: Any) -> list[Any]:
    pieces[1][k] = x
    return pieces


HARM: dict[str, tuple[Callable[[Any], str], str]] = {
    "a file outside": (with_files(["../x", 9], ["rank-00001.safetensors", 9]), "'../x'; needed: the name of a file in"),
    "an absolute path": (with_files(["/etc/passwd", 9], ["b", 9]), "the file '/etc/passwd'; needed"),
    "a file twice": (with_files(["a", 9], ["a", 9]), "a file twice"),
    "a hidden file": (with_files([".lock", 9], ["a", 9]), "the file '.lock'; needed"),
    "huge shapes": (edited(shape=[1 << 40, 1 << 40]), f"{VALUE}: it has shape"),
    "huge shapes of no elements": (edited(shape=[0, 1 << 61], pieces=[]), f"{VALUE}: it has shape"),
    "more elements than bytes": (edited(shape=[16, 8, 1000], pieces=[]), f"{VALUE}: its pieces are not the whole"),
    "a piece twice": (with_pieces(lambda x: [*x, x[1]]), f"{VALUE}: its pieces are not the whole value"),
    "a piece in the place of another": (with_pieces(lambda x: [x[0], x[0]]), f"{VALUE}: its pieces .* in common"),
    "bytes of another value": (with_pieces(lambda x: second(second(x, 1, x[1][1] + 8), 2, x[1][2] + 8)), "belong to"),
    "bytes beyond the file": (with_pieces(lambda x: second(second(x, 1, 9000), 2, 9000 + x[1][2] - x[1][1])),
                              f"{VALUE}: a piece has bytes 9000 to"),
    "a box beyond the value": (with_pieces(lambda x: second(x, 3, [[8, 24], [0, 8]])), f"{VALUE}: a piece is the box"),
    "too many dimensions": (edited(shape=[1] * 100_000), f"{VALUE}: it has shape"),
    "objects": (edited(dtype="O"), "'O' in the place of a dtype"),
    "records": (edited(dtype="f4,f4"), "'f4,f4' in the place of a dtype"),
    "a value that is not there": (in_tree({"value": "nothing"}), "the value 'nothing', which is not there"),
    "a value twice": (in_tree({"value": VALUE}), f"the value '{VALUE}' twice"),
    "a value of another kind": (in_tree({"value": 3}), "the value 3, which is not there"),
    "an unknown kind": (in_tree({"pickle": "x"}), "the tree of 'best' has {'pickle': 'x'}"),
    "deep nesting": (in_tree(nested(150)), "nested too deeply"),
    "nesting that JSON refuses": (lambda code: "[" * 100_000, "nested too deeply"),
    "a key twice": (lambda code: json.dumps(code)[:-1] + ', "step": 2}', "a key twice"),
    "NaN": (in_tree(float("nan")), "the number NaN"),
    "a number of 10,000 digits": (lambda code: json.dumps(code).replace("0.25", "1" * 10_000), "it is no manifest: V"),
    "another format": (lambda code: json.dumps({**code, "format": "torch"}), "its format is 'torch'"),
    "no JSON": (lambda code: "\x00", "it is no manifest"),
    "another step": (lambda code: json.dumps({**code, "step": 7}), "its manifest is that of step 7"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HARM)
def test_a_manifest_that_would_do_harm_is_refused_by_name_and_the_step_before_is_taken(run: Run, kind: str) -> None:
    make, text = HARM[kind]
    step = run.again()
    (step / "manifest.json").write_bytes(with_digest(make(run.manifest())))
    with pytest.raises(DamagedCheckpoint, match=text) as error, limited(run):
        run.loaded(run.path, 2)
    assert f"checkpoint {step}" in str(error.value) and str(error.value).replace("\n", "").isprintable()
    assert len(str(error.value)) < 1500
    with pytest.warns(CheckpointWarning, match="step 2 is left out: "):
        assert run.loaded(run.path) == run.right[1]


@pytest.mark.parametrize(("change", "text"), [
    (lambda x: x[:-8] + b"00000000", r"rank-00000.safetensors, bytes \d+ to \d+, of .*: the checksum is \w+, and it"),
    (lambda x: x[:-1], r"rank-00000.safetensors: it has \d+ bytes, and \d+ when it was saved"),
], ids=["a checksum", "a size"])  # fmt: skip
def test_damage_is_named_by_file_entry_and_place(run: Run, change: Any, text: str) -> None:
    step = run.again()
    (step / NAMES[0]).write_bytes(change(run.files[NAMES[0]]))
    with pytest.raises(DamagedCheckpoint, match=text):
        run.loaded(run.path, 2)
    code, out = printed("verify", str(run.path), "2")
    assert code == 1 and out.startswith(f"step 2: damaged: checkpoint {step}, {NAMES[0]}")


def test_a_header_that_lies_does_no_harm_and_verify_names_it(run: Run) -> None:
    """A load does not read the headers of data files, by which other programs find the values."""
    content = run.files[NAMES[0]]
    for made, text in (
        ((1 << 62).to_bytes(8, "little") + content[8:], "bytes 0 to 8: they give 4611686018427387904 bytes"),
        (content.replace(b'"F64"', b'"I64"', 1), "its header, entry trainer/"),
        (content.replace(b"[0,", b"[8,", 1), "its header, entry "),
        (content.replace(b'{"', b'{[', 1), "the header is none of a safetensors file"),
    ):  # fmt: skip
        step = run.again()
        (step / NAMES[0]).write_bytes(made)
        with limited(run):
            assert run.loaded(run.path, 2) == run.right[2]
            faults, _ = Directory(run.path).verify(2)
        assert len(faults) == 1 and text in str(faults[0]), str(faults)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_that_has_left_out_a_damaged_step_saves_it_again(run: Run, ranks: int) -> None:
    """Its manifest is right, so `save` used to refuse a step that is there."""
    step = run.again()
    (step / NAMES[1]).write_bytes(run.files[NAMES[1]][:-8] + b"\xff" * 8)

    def program() -> None:
        made = trainer(ranks)
        made.load(run.path, random=random)
        assert made.steps == 1
        made.step(X, Y)
        made.save(run.path, random=random, **PLAIN)
        with pytest.raises(CheckpointError, match="has step 2 already"):
            made.save(run.path, random=random, **PLAIN)

    with pytest.warns(CheckpointWarning, match="step 2 is left out"):
        cc.run(program, ranks)
    assert Directory(run.path).verify(2)[0] == []


def test_all_steps_damaged(run: Run) -> None:
    run.again()
    for k in (1, 2):
        (run.path / f"step-00000000{k}" / "manifest.json").write_bytes(b"{}")
    with pytest.warns(CheckpointWarning), pytest.raises(CheckpointError, match="no checkpoint that is whole"):
        run.loaded(run.path)
    with pytest.warns(CheckpointWarning):
        assert checkpoint.latest(run.path) is None


class Holds:
    """An object with a state of any kind."""

    def __init__(self, state: Any):
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def test_a_state_that_is_nested_too_deeply_is_not_saved(tmp_path: Path) -> None:
    """What a load would refuse does not take the place of a step."""
    checkpoint.save(tmp_path, {"a": nested(90)}, 1)
    for state in ({"a": nested(150)}, {"a": Holds(nested(150))}):
        with pytest.raises(ArgumentError, match="nested deeper than 96 containers"):
            checkpoint.save(tmp_path, state, 2)
    assert checkpoint.load(tmp_path, {}).values == {"a": nested(90)} and Directory(tmp_path).steps() == [1]


def own(folder: str) -> Any:
    """Values of which each rank has its own, beside keys that are words of the manifest."""
    with cc.Mesh(dp=-1) as mesh:
        k = int(mesh.ranks.index)
        state = {"d": {"value": "text", "names": {"float": 2}, "x": np.arange(3), "mine": k, "array": np.full(2, k)},
                 "e": {"a": {"value": np.int64(3)}, "c": (np.arange(2.0), [k, {"value": "t", "z": np.full(3, k)}])},
                 }  # fmt: skip
        checkpoint.save(folder, state, 1)
        return flat(state) == flat(checkpoint.load(folder, {}).values)


@pytest.mark.parametrize("ranks", [1, 3])
def test_keys_of_users_are_no_words_of_the_manifest(tmp_path: Path, ranks: int) -> None:
    assert all(cc.run(own, ranks, str(tmp_path)))


# -- parts -------------------------------------------------------------------------------------------------------------
@contextmanager
def source_of(folder: Path, value: Any) -> Iterator[StoredValue]:
    checkpoint.save(folder, {"x": value}, 1)
    manifest = Directory(folder).manifest(1)
    with disk.Reader(folder / "step-000000001", manifest.files) as reader:
        yield FileSource(manifest, reader, True).value("x")


@pytest.mark.parametrize("at_once, long_row", [(1 << 20, 1 << 14), (64, 24), (8, 1 << 14), (1 << 20, 1), (1, 1)])
def test_parts_are_read_as_numpy_takes_them(
    tmp_path: Path, at_once: int, long_row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_ROWS_AT_ONCE", at_once)
    monkeypatch.setattr(loading, "_LONG_ROW", long_row)
    rng = np.random.default_rng(at_once + long_row)
    for case, shape in enumerate([(9,), (7, 5), (4, 6, 5), (3, 2, 4, 3), (2, 1, 9), (5, 1)]):
        whole = rng.integers(0, 1000, shape).astype("<i4" if case % 2 else "<U3")
        with source_of(tmp_path / str(case), whole) as value:
            for _ in range(12):
                box = tuple(slice(*sorted(rng.choice(n + 1, 2, replace=False))) for n in shape)
                assert np.array_equal(value[box], whole[box])
                out = np.zeros((*whole[box].shape, 2), whole.dtype)  # not contiguous
                (p,) = value.saved.pieces
                value.source.part("x", 0, p, tuple((s.start, s.stop) for s in box), whole.dtype, out[..., 1])
                assert np.array_equal(out[..., 1], whole[box]) and not np.any(out[..., 0] != np.zeros((), out.dtype))


@pytest.mark.parametrize("box", [np.s_[900:1000, :2], np.s_[500:600, 1:79], np.s_[500:600, :], np.s_[:, :]])
def test_a_file_that_is_cut_off_while_it_is_read(tmp_path: Path, box: tuple[slice, ...]) -> None:
    """Parts of rows used to be read from a mapped file: the system ended the process (SIGBUS)."""
    whole = np.arange(80000.0).reshape(1000, 80)
    with source_of(tmp_path, whole) as value:
        assert np.array_equal(value[1:3, 2:4], whole[1:3, 2:4])  # the file is open, and its size was right
        os.truncate(tmp_path / "step-000000001" / NAMES[0], 4096)
        with pytest.raises(DamagedCheckpoint, match=rf"{NAMES[0]}: it ends at byte"):
            value[box]
