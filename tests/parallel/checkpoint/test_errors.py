"""What goes wrong while a run is saved or loaded is a typed error, and loses nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
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
    CheckpointError,
    CheckpointWarning,
    DependencyError,
    DtypeError,
    LayoutError,
    MeshError,
    OptionError,
    RankFailed,
    ReplicaMismatch,
    ShapeError,
)
from autograd.files import new_file
from collectives.testing import faults
from parallel import DataParallel, checkpoint
from parallel.checkpoint import disk, saving
from parallel.checkpoint.checkpoints import Checkpoints

from ...on_mesh import on

pytest.importorskip("safetensors", reason="safetensors is not installed")


def model(width: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, width, dtype=float), nn.Linear(width, 2, dtype=float))


class Half:
    """An object with some of the methods of a state."""

    def __init__(self, *names: str):
        for name in names:
            setattr(self, name, dict)


# -- saving ------------------------------------------------------------------------------------------------------------
REFUSED: dict[str, tuple[Callable[[], Any], Any, type[Exception], str]] = {
    "a negative step": (dict, -1, OptionError, "step=-1.*at least 0"),
    "a fraction": (dict, 1.5, OptionError, "step=1.5"),
    "a truth value": (dict, True, OptionError, "step=True"),
    "a name with a slash": (lambda: {"a/b": 1}, 1, ArgumentError, "'a/b' was given.*without '/'"),
    "no name": (lambda: {"": 1}, 1, ArgumentError, "the name ''"),
    "objects of Python": (lambda: {"a": np.array([object()])}, 1, DtypeError, "a: an array of objects was given"),
    "a function": (lambda: {"a": {"b": [1, print]}}, 1, ArgumentError, "a/b/1 is a builtin_function"),
    "a state that cannot be set": (
        lambda: {"all": {"x": [Half("state_dict")]}}, 1, ArgumentError,
        r"all/x/0 is a Half with state_dict and without load_state_dict.*not loaded; .*\n.*def load_state_dict"),
    "a state that cannot be read": (
        lambda: {"x": Half("load_state_dict")}, 1, ArgumentError,
        r"x is a Half with load_state_dict and without state_dict.*no state to save.*\n.*def state_dict\(self\)"),
    "parts that cannot be set": (
        lambda: {"x": Half("state_parts")}, 1, ArgumentError, "with state_parts and without load_state_dict"),
    "a class": (lambda: {"x": nn.Linear}, 1, ArgumentError, r"x is the class Linear; needed: an object"),
    "keys that are no texts": (lambda: {"a": {1: 2}}, 1, ArgumentError, "keys that are no texts"),
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", REFUSED)
def test_values_that_cannot_be_saved(name: str, ranks: int, tmp_path: Path) -> None:
    state, step, kind, text = REFUSED[name]
    with pytest.raises(kind, match=text):
        on(ranks, lambda mesh: checkpoint.save(tmp_path, state(), step))
    assert checkpoint.latest(tmp_path) is None
    assert not [x for x in os.listdir(tmp_path) if x != ".lock"]


def test_an_addend_or_a_part_has_no_whole_value(tmp_path: Path) -> None:
    def program(mesh: cc.Mesh) -> None:
        x = cc.from_local(np.ones(2), {"dp": cc.Shard(0)})
        checkpoint.save(tmp_path, {"x": x}, 1)

    with pytest.raises(LayoutError, match=r"x is .*axis 'dp': it is Shard.*\n.*all_gather"):
        on(2, program)


def test_one_rank_that_refuses_stops_all(tmp_path: Path) -> None:
    def program(mesh: cc.Mesh) -> str:
        bad = {"a": print} if mesh.ranks.rank == 1 else {"a": 1}
        with pytest.raises((ArgumentError, CheckpointError)) as found:
            checkpoint.save(tmp_path, bad, 1)
        checkpoint.save(tmp_path, {"a": 2}, 2)
        return f"{type(found.value).__name__}: {found.value}"

    first, second, _ = on(3, program)
    assert first.startswith("CheckpointError: checkpoint.save: rank 1 could not save: checkpoint.save: a is a builtin")
    assert second.startswith("ArgumentError")
    assert checkpoint.latest(tmp_path) == 2


def test_ranks_with_different_steps(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"the ranks save steps 0, 1, 2; needed: one step"):
        on(3, lambda mesh: checkpoint.save(tmp_path, {"a": 1}, int(mesh.ranks.rank)))


def test_replicas_that_differ(tmp_path: Path) -> None:
    def program(mesh: cc.Mesh) -> None:
        net = DataParallel(model(), "dp")
        net(cc.from_local(np.ones((1, 3)), {"dp": cc.Shard(0)}))
        if mesh.ranks.rank == 1:
            net.parameters()[2].array[0, 0] += 1e-16 + 1e-9
        checkpoint.save(tmp_path, {"model": net}, 1)

    with pytest.raises(ReplicaMismatch, match=r"model/1.weight is one value for ranks 0, 1, 2 .*'dp'.* on rank 1 it"):
        on(3, program)


def test_without_its_mesh(tmp_path: Path) -> None:
    def program() -> None:
        with cc.Mesh(dp=2):
            net = DataParallel(model(), "dp", zero=1)
        checkpoint.save(tmp_path, {"model": net}, 1)

    with pytest.raises(MeshError, match=r"its mesh of 2 ranks is not current.*\n.*inside `with mesh:`"):
        cc.run(program, 2)


def test_a_step_that_is_there(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, {"a": 1}, 3)
    with pytest.raises(CheckpointError, match=r"has step 3 already.*\n.*another run\n.*overwrite=True"):
        checkpoint.save(tmp_path, {"a": 2}, 3)
    assert checkpoint.load(tmp_path, {}).values == {"a": 1}
    checkpoint.save(tmp_path, {"a": 3}, 3, overwrite=True)
    assert checkpoint.load(tmp_path, {}) == (3, {"a": 3})
    (tmp_path / "step-000000003" / "rank-00000.safetensors").unlink()
    checkpoint.save(tmp_path, {"a": 4}, 3)  # a damaged one is replaced
    assert checkpoint.load(tmp_path, {}) == (3, {"a": 4})


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("failing", [0, 1])
def test_a_full_disk(tmp_path: Path, failing: int, background: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is raised on all ranks: at once, or in the background at the next call. Earlier steps are there."""
    wrong = f"rank-{failing:05d}"

    def full(name: str, path: str | None = None) -> None:
        if is_full and path is not None and wrong in path:
            raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(disk, "point", full)
    is_full = False

    def program(mesh: cc.Mesh) -> list[str]:
        nonlocal is_full
        checkpoints = Checkpoints(tmp_path, background=background)
        checkpoints.save({"a": np.ones(3)}, 1)
        checkpoints.wait()
        mesh.ranks.barrier()
        is_full = True
        mesh.ranks.barrier()
        texts = []
        with pytest.raises(CheckpointError, match="could not") as found:
            checkpoints.save({"a": np.ones(3)}, 2)
            checkpoints.wait()
        texts.append(str(found.value))
        mesh.ranks.barrier()
        is_full = False
        mesh.ranks.barrier()
        checkpoints.save({"a": np.ones(3)}, 3)
        checkpoints.wait()
        return texts

    for texts in on(2, program):
        assert "No space left on device" in texts[0]
    assert Checkpoints(tmp_path).steps() == [1, 3]
    assert not [x for x in os.listdir(tmp_path) if x.startswith((".step", ".old"))]


def test_a_real_limit_of_the_system(tmp_path: Path) -> None:
    """A file that may not grow: the error comes from the system, through safetensors."""
    text = (
        "import resource, signal, sys, numpy as np\n"
        "from parallel import checkpoint\n"
        "checkpoint.save(sys.argv[1], {'a': np.ones(3)}, 1)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "try:\n    checkpoint.save(sys.argv[1], {'a': np.ones(10**4)}, 2)\n"
        "except checkpoint.CheckpointError as error:\n    print('typed:', error)\n"
    )
    found = subprocess.run([sys.executable, "-c", text, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "typed: checkpoint.save: " in found.stdout and "could not be written" in found.stdout, found.stderr
    assert checkpoint.load(tmp_path, {}).step == 1


@pytest.mark.parametrize("background", [False, True])
def test_the_end_of_a_save_needs_no_current_mesh(
    tmp_path: Path, background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank does not go on before the step exists, and hears of an error, also where the mesh is a trainer's."""
    is_full = [False]

    def full(name: str, path: str | None = None) -> None:
        if is_full[0] and path is not None and "rank-00001" in path:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "point", full)

    def program() -> bool:
        checkpoints = Checkpoints(tmp_path, background=background)
        with cc.Mesh(dp=2) as mesh:
            checkpoints.save({"a": np.ones(3)}, 1)
        checkpoints.wait()
        seen = checkpoint.latest(tmp_path) == 1
        mesh.ranks.barrier()
        is_full[0] = True
        mesh.ranks.barrier()
        with pytest.raises(CheckpointError, match="No space left"):
            with mesh:
                checkpoints.save({"a": np.ones(3)}, 2)
            checkpoints.wait()
        return seen

    assert cc.run(program, 2) == [True, True]


@pytest.mark.parametrize("has_space", [True, False])
def test_a_failure_has_its_name_when_its_text_is_whole(
    has_space: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rank reads it as soon as it sees the name."""
    written = []

    def observed(name: str, **options: Any) -> int:
        path = Path(name)
        written.append(path.name)
        assert path.name.endswith(".part") and not path.with_suffix("").exists()
        if not has_space:
            path.touch()
            raise OSError(28, "No space left on device")
        return new_file(name, **options)

    def full(name: str, path: str | None = None) -> None:
        if path is not None and "rank-00001.safetensors" in path:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "point", full)
    monkeypatch.setattr(saving, "new_file", observed)

    def program() -> str:
        with cc.Mesh(dp=2), pytest.raises(CheckpointError, match="could not") as error:
            checkpoint.save(tmp_path, {"a": np.ones(3)}, 1)
        return str(error.value)

    says = "No space left" if has_space else "there was no space to say why"
    first = cc.run(program, 2)[0]
    assert "rank 1 could not write its part of step 1: " in first and says in first
    assert written[0] == "rank-00001.failed.part"


def test_a_directory_that_the_hosts_do_not_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank used to wait for ever."""
    monkeypatch.setattr(saving, "_VISIBLE_S", 0.05)

    def program(mesh: cc.Mesh) -> None:
        own = tmp_path / str(int(mesh.ranks.rank))
        own.mkdir()
        checkpoint.save(own, {"a": 1}, 1)

    with pytest.raises(CheckpointError, match=r"ranks 1, 2 cannot see .*; needed: a directory that all hosts share"):
        on(3, program)
    assert not list(tmp_path.glob("*/.step-*"))


def test_in_a_dry_world(tmp_path: Path) -> None:
    """It used to be an error of a value that cannot be read, which did not name `explain`."""
    with cc.dry(ranks=64, mesh={"dp": 64}):
        with pytest.raises(OptionError, match=r"in a dry world.*\n  fix: checkpoint.explain"):
            checkpoint.save(tmp_path, {"model": model()}, 1)
    checkpoint.save(tmp_path, {"model": model()}, 1)
    with cc.dry(ranks=64, mesh={"dp": 64}), pytest.raises(OptionError, match="checkpoint.load was called in a dry"):
        checkpoint.load(tmp_path, {"model": model()})


@pytest.mark.parametrize("where", ["/proc/nothing", "/dev/null", "/dev/null/below"])
def test_a_directory_that_cannot_be_written(where: str) -> None:
    with pytest.raises(CheckpointError, match=rf"checkpoint.save: {where} cannot be written"):
        checkpoint.save(where, {"a": 1}, 1)


def test_two_jobs_in_one_directory(tmp_path: Path) -> None:
    text = (
        "import sys\nfrom parallel import checkpoint\ncheckpoint.save(sys.argv[1], {'a': 1}, 1)\n"
        "print('saved', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", text, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == "saved\n"
        with pytest.raises(CheckpointError, match=rf'written by another job: .*"process": {other.pid}'):
            checkpoint.save(tmp_path, {"a": 2}, 2)
        assert checkpoint.load(tmp_path, {}) == (1, {"a": 1})  # reading is free
        other.stdin.close()
        other.wait()
    checkpoint.save(tmp_path, {"a": 2}, 2)  # it has ended
    assert Checkpoints(tmp_path).steps() == [1, 2]


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(DependencyError, match=r"pip install 'ringtape\[checkpoint\]'"):
        checkpoint.save(tmp_path, {"a": np.ones(2)}, 1)


# -- loading -----------------------------------------------------------------------------------------------------------
def test_other_objects(tmp_path: Path) -> None:
    def program(mesh: cc.Mesh) -> None:
        net = DataParallel(model(), "dp", zero=mesh.ranks.size - 1)
        checkpoint.save(tmp_path, {"model": net, "optimizer": optim.SGD(net.parameters(), lr=0.1, momentum=0.9)}, 1)
        wider, deeper = model(5), nn.Sequential(*model(), nn.Linear(2, 2, dtype=float))
        shorter = nn.Sequential(nn.Linear(3, 4, dtype=float))
        for other, kind, text in (
            (wider, ShapeError, r"0.weight.*shape"), (deeper, ShapeError, r"Missing key.*2.weight"),
            (shorter, ShapeError, r"has 'model/1.bias' and 1 more values?, which the objects do not have"),
        ):  # fmt: skip
            before = other.state_dict()
            with pytest.raises(kind, match=text):
                checkpoint.load(tmp_path, {"model": other})
            assert all(np.array_equal(x, before[name]) for name, x in other.state_dict().items())
        with pytest.raises(ShapeError, match=r"it has no 'net'; it has 'model', 'optimizer'"):
            checkpoint.load(tmp_path, {"net": net})
        for made, text in (
            (optim.SGD(net.parameters()[:2], lr=0.1, momentum=0.9), "has .optimizer: 1.bias. and 1 more value, which"),
            (optim.Adam(net.parameters(), lr=0.1), "was given; needed"),
            (optim.SGD([{"params": net.parameters()[:2]}, {"params": net.parameters()[2:]}], lr=0.1, momentum=0.9),
             "1 groups? of parameters, and the optimizer has 2"),
        ):  # fmt: skip
            with pytest.raises((ShapeError, CheckpointError), match=text):
                checkpoint.load(tmp_path, {"model": net, "optimizer": made})

    on(1, program)
    on(2, program) if not os.system(f"rm -rf {tmp_path}/step*") else None


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_object_with_half_a_state_is_not_passed_over(tmp_path: Path, ranks: int) -> None:
    """A load used to take it for a plain value, which it ignores, and the object kept the state that it had."""
    on(1, lambda mesh: checkpoint.save(tmp_path, {"x": {"a": model()}}, 1))

    def program(mesh: cc.Mesh) -> str:
        x = Half("state_dict") if mesh.ranks.rank == ranks - 1 else model()
        with pytest.raises((ArgumentError, CheckpointError)) as found:
            checkpoint.load(tmp_path, {"x": {"a": x}})
        return str(found.value)

    for text in on(ranks, program):
        assert "x/a is a Half with state_dict and without load_state_dict" in text


def test_an_object_without_a_name(tmp_path: Path) -> None:
    net = model()
    checkpoint.save(tmp_path, net, 1)
    assert checkpoint.load(tmp_path, net) == (1, {})
    with pytest.raises(ShapeError, match=r"has no 'model'; it has 'state'\n  fix: checkpoint.load\(directory, x\)"):
        checkpoint.load(tmp_path, {"model": net})


def test_a_step_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nothing is no directory"):
        checkpoint.load(tmp_path / "nothing", {})
    with pytest.raises(CheckpointError, match="has no checkpoint that is whole"):
        checkpoint.load(tmp_path, {})
    assert checkpoint.latest(tmp_path / "nothing") is None
    assert checkpoint.resume(tmp_path / "nothing", {}) is None
    checkpoint.save(tmp_path, {"a": 1}, 4)
    with pytest.raises(CheckpointError, match=r"there is no step 5; it has 4"):
        checkpoint.load(tmp_path, {}, 5)
    with pytest.raises(OptionError, match=r"step='4'"):
        checkpoint.load(tmp_path, {}, "4")  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_damaged_step_is_left_out(tmp_path: Path, ranks: int) -> None:
    """Of the newest the manifest is cut off, of the next a value is changed: all ranks load the third."""
    on(ranks, lambda mesh: [checkpoint.save(tmp_path, {"a": np.arange(9) + n}, n) for n in (1, 2, 3)])
    manifest = tmp_path / "step-000000003" / "manifest.json"
    manifest.write_text(manifest.read_text()[:-40])
    data = tmp_path / "step-000000002" / "rank-00000.safetensors"
    data.write_bytes(data.read_bytes()[:-1] + b"\1")

    def program(mesh: cc.Mesh) -> Any:
        return checkpoint.load(tmp_path, {}).values["a"].tolist()

    with pytest.warns(CheckpointWarning) as warned:
        assert on(ranks, program) == [[*range(1, 10)]] * ranks
    texts = [str(each.message) for each in warned]
    assert any("step 3 is left out" in text and "cut off" in text for text in texts)
    assert any("step 2 is left out" in text and "bytes" in text and "checksum" in text for text in texts)
    with pytest.warns(CheckpointWarning):
        assert checkpoint.latest(tmp_path) == 2  # it does not read the values
    with pytest.raises(CheckpointError, match=r"rank-00000.safetensors, bytes \d+ to \d+, of a: the checksum is"):
        checkpoint.load(tmp_path, {}, 2)
    assert checkpoint.load(tmp_path, {}, 2, checksums=False).step == 2


def test_steps_that_are_kept(tmp_path: Path) -> None:
    made = Checkpoints(tmp_path, keep=2, keep_every=4)
    for n in range(1, 11):
        made.save({"a": n}, n)
    assert made.steps() == [4, 8, 9, 10]
    for wrong in ({"keep": 0}, {"keep": 1.5}, {"keep_every": 2}, {"keep": True}):
        with pytest.raises(OptionError, match="Checkpoints: keep"):
            Checkpoints(tmp_path, **wrong)


def test_a_background_save_has_the_values_of_its_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are changed while the thread is held up."""
    may_write = [False]

    def held(name: str, path: str | None = None) -> None:
        while not may_write[0]:
            time.sleep(0.001)

    monkeypatch.setattr(disk, "point", held)
    array, net = np.arange(4), model()
    checkpoints = Checkpoints(tmp_path, background=True)
    known = net.state_dict()
    checkpoints.save({"a": array, "model": net}, 1)
    assert checkpoint.latest(tmp_path) is None
    array += 1
    for p in net.parameters():
        p.array += 1
    may_write[0] = True
    checkpoints.wait()
    assert checkpoint.load(tmp_path, {"model": net}).values["a"].tolist() == [0, 1, 2, 3]
    assert all(np.array_equal(x, known[name]) for name, x in net.state_dict().items())


def test_background_saves_have_their_own_values_in_the_same_memory(tmp_path: Path) -> None:
    """Of more and of fewer bytes than the save before, of any dtype and order."""
    rng = np.random.default_rng(0)
    kinds = ["f4", "u1", "c16", "?", "U3", ">i8", "f2"]
    checkpoints = Checkpoints(tmp_path, background=True)
    saved, blocks = [], []
    for step, n in enumerate((5, 37, 11, 0, 37)):
        values: dict[str, Any] = {kind: rng.integers(0, 99, (n, 3)).astype(kind)[:, ::2] for kind in kinds}
        values |= {"turned": rng.random((n, 7)).T, "number": np.float32(step), "empty": np.empty((0, 4))}
        checkpoints.save(values, step)
        saved.append(values)
        blocks.append(checkpoints._memory[0])
        assert len(checkpoints._memory) == 1
    checkpoints.wait()
    assert all(block is blocks[1] for block in blocks[2:]) and blocks[0] is not blocks[1]
    for step, values in enumerate(saved):
        found = checkpoints.load({}, step).values
        for name, x in values.items():
            assert np.array_equal(found[name], x) and found[name].dtype == x.dtype.newbyteorder("="), name


@pytest.mark.parametrize("name", ["write_data", "sync_data", "rename"])
def test_a_rank_that_dies_within_a_save(tmp_path: Path, name: str) -> None:
    """The job ends, and the step before is the newest."""

    def program(mesh: cc.Mesh) -> None:
        for step in (1, 2, 3):
            checkpoint.save(tmp_path, {"a": step}, step)

    with faults.injected(f"kill:1@2,of=checkpoint.{name}"), pytest.raises(RankFailed, match="rank 1 of 2 was killed"):
        on(2, program)
    assert checkpoint.latest(tmp_path) == 1
    on(2, lambda mesh: checkpoint.save(tmp_path, {"a": 9}, 9))
    assert checkpoint.load(tmp_path, {}) == (9, {"a": 9})


def test_the_first_rank_may_publish_a_step_as_soon_as_it_sees_the_last_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that came late to the end of its save found that its directory has another name, and failed."""
    synced = disk.make_durable

    def late(folder: Path) -> None:
        until = time.monotonic() + 20
        if cc.world().rank and (folder / "rank-00001.json").exists():
            while folder.exists() and time.monotonic() < until:
                time.sleep(0.001)
        synced(folder)

    monkeypatch.setattr(disk, "make_durable", late)

    def program() -> None:
        ag.random.seed(0)
        with cc.Mesh(dp=-1):
            checkpoint.save(tmp_path, {"model": DataParallel(model(), "dp", zero=1)}, 1)

    cc.run(program, 2)
    assert checkpoint.latest(tmp_path) == 1
