"""``python -m parallel.checkpoint``: what each command prints and returns, of checkpoints that threads have saved."""

from __future__ import annotations

import json
import re
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from parallel import checkpoint
from parallel.checkpoint.commands import main

from ...collectives.launch import launch_command
from .test_hostile_files import NAMES, X, Y, trainer

st = pytest.importorskip("safetensors.numpy")

Printed = Callable[..., tuple[int, str]]


def write(folder: str) -> Any:
    made = trainer(2)
    for k in range(3):
        made.step(X, Y)
        made.save(folder, random=random, best=0.5 - k / 8, rates=[0.1, 0.2], pair=(1, {"a": np.arange(3)}))
    return {f"{k}.{name}": p for k, layer in enumerate(made.gather() or [])
            for name, p in layer.state_dict().items()}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    path = tmp_path_factory.mktemp("commands") / "run"
    return path, cc.run(write, 2, str(path))[0]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    def call(*arguments: Any) -> tuple[int, str]:
        code = main([str(x) for x in arguments])
        found = capsys.readouterr()
        return code, found.out + found.err

    return call


def test_ls_lists_the_steps_and_a_fault(run: Any, printed: Printed, tmp_path: Path) -> None:
    path, _ = run
    shutil.copytree(path, tmp_path / "run")
    (tmp_path / "run" / "step-000000002" / NAMES[1]).unlink()
    (tmp_path / "run" / ".step-000000004.00ff").mkdir()
    code, out = printed("ls", tmp_path / "run")
    lines = out.splitlines()
    assert code == 0 and lines[0].split() == ["step", "saved", "size", "ranks", "mesh", "values", "state"]
    assert re.fullmatch(r"1 +\d{4}-\d\d-\d\dT\S+ +\S+ kB +2 +dp=2 +13 +whole", lines[1])
    assert lines[2].split()[:7] == ["2", *"-----", "damaged:"] and NAMES[1] in lines[2]
    assert lines[4].startswith(".step-000000004.00ff: not finished")
    code, out = printed("ls", "--json", tmp_path / "run")
    found = json.loads(out)["steps"]
    assert [each["step"] for each in found] == [1, 2, 3] and [each["fault"] is None for each in found] == [1, 0, 1]
    assert found[0]["mesh"] == {"dp": 2} and found[0]["ranks"] == 2


def test_ls_of_a_step_lists_its_values_and_plain_values(run: Any, printed: Printed) -> None:
    path, _ = run
    code, out = printed("ls", path, 3)
    assert code == 0 and out.startswith("step 3, saved 20") and "by 2 ranks of the mesh dp=2\n" in out
    row = next(line for line in out.splitlines() if line.startswith("trainer/optimizer/first/0.weight "))
    assert row.split()[1:5] == ["16x8", "float64", "{dp:", "Shard(0)}"] and all(name in row for name in NAMES)
    plain = dict(line.split(maxsplit=1) for line in out.split("plain value\n")[1].splitlines())
    assert plain["best"] == "0.25" and plain["rates"] == "[0.1, 0.2]" and plain["pair/0"] == "1"
    assert printed("ls", path / "step-000000003") == (code, out)
    found = json.loads(printed("ls", path, "3", "--json")[1])
    assert found["values"]["pair/1/a"] == {"shape": [3], "dtype": "int64", "layout": {}, "files": [NAMES[0]]}
    assert found["plain"]["trainer/run/steps"] == 3


def test_verify_reads_all_bytes(run: Any, printed: Printed, tmp_path: Path) -> None:
    path, _ = run
    code, out = printed("verify", path)
    assert code == 0 and re.fullmatch(r"(step \d: whole: 13 values, 3.7 kB in 2 files\n){3}", out), out
    shutil.copytree(path, tmp_path / "run")
    file = tmp_path / "run" / "step-000000002" / NAMES[1]
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)
    code, out = printed("verify", tmp_path / "run")
    lines = out.splitlines()
    assert code == 1 and [line[:15] for line in lines] == ["step 1: whole: ", "step 2: damaged", "step 3: whole: "]
    assert re.search(rf"{NAMES[1]}, bytes \d+ to {len(content)}, of trainer/\S+: the checksum is", lines[1])
    assert printed("verify", tmp_path / "run", 3)[0] == 0 and printed("verify", tmp_path / "run", 2)[0] == 1


def test_verify_shows_its_progress(run: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    path, _ = run
    clock = iter(range(0, 10_000, 5))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    assert main(["verify", str(path), "1"]) == 0
    assert re.match(r"step 1: \d+ bytes of 3.7 kB\n", capsys.readouterr().err)
    assert main(["verify", "--quiet", str(path), "1"]) == 0
    assert capsys.readouterr().err == ""


def test_diff_names_what_differs(run: Any, printed: Printed, tmp_path: Path) -> None:
    path, _ = run
    code, out = printed("diff", path, 1, 3)
    lines = {line.split()[0]: line for line in out.splitlines()[1:]}
    assert code == 1 and lines["best"].split()[1:] == ["0.5", "0.25"]
    assert "float64[16, 8]" in lines["trainer/model/0.weight"] and "128 of 128 elements, at most" in out
    assert not {"rates", "pair/1/a", "random/seed"} & set(lines)
    assert printed("diff", path, 2, 2) == (0, "equal\n")
    assert printed("diff", path, 3, path / "step-000000003") == (0, "equal\n")
    assert printed("diff", path, path / "step-000000003") == (0, "equal\n")  # the newest of the first
    assert printed("diff", path, 1, path, 3)[0] == 1


OF_VALUES: dict[str, tuple[Any, Any, str]] = {
    "shape": (np.zeros(3), np.zeros(4), "float64[3]  float64[4]  the shapes differ"),
    "dtype": (np.zeros(3), np.zeros(3, "float32"), "float64[3]  float32[3]  equal values"),
    "one element": (np.zeros(3), np.array([0, 0.5, 0]), "1 of 3 elements, at most 0.5, 1 of the largest"),
    "large integers": (np.array([2**60]), np.array([2**60 + 1]), "1 of 1 elements, at most 1, "),
    "extreme integers": (np.array([-(2**63)]), np.array([2**63 - 1]), "1 of 1 elements, at most 1.84e+19"),
    "booleans": (np.array([True, False]), np.array([True, True]), "1 of 2 elements, at most 1"),
    "complex numbers": (np.array([1j]), np.array([3 + 5j]), "at most 5,"),
    "NaN": (np.array([np.nan, 1, np.nan]), np.array([np.nan, np.nan, 1]), "2 of 3 elements, NaN in one: 2"),
    "texts": (np.array(["a", "b"]), np.array(["a", "c"]), "1 of 2 elements"),
    "kinds": (np.zeros(1), "text", "only in one"),
    "a plain value": (True, 1, "True    1"),
}


@pytest.mark.parametrize("name", OF_VALUES)
def test_diff_of_values(tmp_path: Path, printed: Printed, name: str) -> None:
    *pair, text = OF_VALUES[name]
    for k, x in enumerate(pair):
        checkpoint.save(tmp_path / "run", {"x": x, "same": np.array([np.nan])}, k)
    code, out = printed("diff", tmp_path / "run", 0, 1)
    assert code == 1 and text in out and "same" not in out, out


def test_merge_writes_what_the_model_is(run: Any, printed: Printed, tmp_path: Path) -> None:
    path, whole = run
    code, out = printed("merge", path, tmp_path / "model.safetensors")
    assert code == 0 and "4 values of step 3" in out
    found = st.load_file(tmp_path / "model.safetensors")
    assert found.keys() == whole.keys()
    assert all((found[name] == whole[name]).all() and found[name].dtype == whole[name].dtype for name in whole)
    code, out = printed("merge", path, tmp_path / "model.safetensors")
    assert code == 2 and "is there already\n  fix: another file\n  or:  --overwrite" in out
    assert printed("merge", path, 1, tmp_path / "model.safetensors", "--overwrite")[0] == 0
    assert (st.load_file(tmp_path / "model.safetensors")["0.weight"] != whole["0.weight"]).any()
    assert printed("merge", path, tmp_path / "optimizer", "--only", "trainer/optimizer")[0] == 0
    assert set(st.load_file(tmp_path / "optimizer")) == {f"{m}/{name}" for m in ("first", "second") for name in whole}
    assert printed("merge", path, tmp_path / "all", "--all")[0] == 0
    names = set(st.load_file(tmp_path / "all"))
    assert {"trainer/model/0.weight", "trainer/optimizer/first/0.bias", "pair/1/a"} < names
    code, out = printed("merge", path, tmp_path / "x", "--only", "net")
    assert code == 2 and "--only net: step 3 has no such values; it has 'random', 'best'" in out
    assert not (tmp_path / "x").exists()


def test_merge_of_several_models_and_strange_dtypes(tmp_path: Path, printed: Printed) -> None:
    a, b = nn.Linear(2, 1), nn.Linear(3, 1)
    b.weight = ag.Parameter(np.array([[1j], [2.0], [3 - 1j]]))
    state = {"a": a, "b": b, "texts": np.array(["x", "yz"]), "optimizer": optim.SGD(a.parameters(), 0.1)}
    checkpoint.save(tmp_path / "run", state, 1)
    assert printed("merge", tmp_path / "run", tmp_path / "out", "--all")[0] == 0
    found = st.load_file(tmp_path / "out")
    assert set(found) == {"a/weight", "a/bias", "b/weight", "b/bias", "texts"}
    assert (found["b/weight"].view(complex)[..., 0] == b.weight.numpy()).all()
    assert found["texts"].tobytes().decode("utf-32-le") == "x\0yz"
    assert printed("merge", tmp_path / "run", tmp_path / "models")[0] == 0
    assert set(st.load_file(tmp_path / "models")) == {"a/weight", "a/bias", "b/weight", "b/bias"}
    checkpoint.save(tmp_path / "plain", {"x": 1}, 1)
    code, out = printed("merge", tmp_path / "plain", tmp_path / "none")
    assert code == 2 and "step 1 has no module; it has 'x'\n  fix: --only NAME" in out


def test_merge_of_a_damaged_step_leaves_no_file(run: Any, printed: Printed, tmp_path: Path) -> None:
    path, _ = run
    shutil.copytree(path, tmp_path / "run")
    for name in NAMES:
        file = tmp_path / "run" / "step-000000003" / name
        content = file.read_bytes()
        file.write_bytes(content[:-2000] + bytes(2000))
    code, out = printed("merge", tmp_path / "run", tmp_path / "model.safetensors")
    assert code == 1 and "the checksum is" in out
    assert [x.name for x in tmp_path.iterdir()] == ["run"]
    assert printed("diff", tmp_path / "run", 3, 1)[0] == 1


def test_one_value_at_a_time_is_in_memory(tmp_path: Path, printed: Printed) -> None:
    size = 8 * 1000 * 200

    def program() -> None:
        with cc.Mesh(tp=2):
            layers = [nn.Linear(1000, 200, bias=False, dtype=float) for _ in range(6)]
            for k, layer in enumerate(layers):
                whole = np.random.default_rng(k).standard_normal((1000, 200))
                layer.weight = ag.Parameter(cc.shard(ag.tensor(whole, {"tp": cc.R}), "tp", dim=k % 2))
            for step in (1, 2):
                checkpoint.save(tmp_path / "run", {"model": nn.Sequential(*layers)}, step)

    cc.run(program, 2)
    for arguments in (["verify"], ["diff", 1, 2], ["merge", tmp_path / "out"]):
        tracemalloc.start()
        code, out = printed(arguments[0], tmp_path / "run", *arguments[1:])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert code == 0, out
        assert peak < (4.2e6 + 1e6 if arguments[0] == "verify" else 3.2 * size + 1e6), (arguments, peak / size)
    assert (st.load_file(tmp_path / "out")["1.weight"] == np.random.default_rng(1).standard_normal((1000, 200))).all()


def test_wrong_steps_and_directories(run: Any, printed: Printed, tmp_path: Path) -> None:
    path, _ = run
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for arguments, text in (
        (("ls", tmp_path / "x"), "there is no such directory; needed: the directory of a run, or of one of its steps"),
        (("ls", tmp_path / "file"), "it is no directory; needed"),
        (("ls", path, 9), "there is no step 9; it has 1, 2, 3"),
        (("verify", path, "x"), "step 'x' was given; needed: the number of a step"),
        (("verify", path / "step-000000001", 2), "is step 1 itself, and step 2 was given"),
        (("verify", tmp_path / "empty"), "has no checkpoint"),
        (("merge", tmp_path / "empty", tmp_path / "out"), "has no step that is whole"),
        (("merge", path, tmp_path / "no" / "out"), "could not be written: "),
        (("diff", path), "needed: a directory and two steps, or two directories"),
        (("diff", path, 1, 2, 3), "needed: a directory and two steps, or two directories"),
        (("diff", path, 1), "needed: a directory and two steps, or two directories"),
    ):  # fmt: skip
        code, out = printed(*arguments)
        assert code == 2 and text in out and "Traceback" not in out, (arguments, out)
    assert printed("ls", tmp_path / "empty") == (0, f"{tmp_path / 'empty'} has no checkpoint\n")


def test_the_command_runs_without_a_mesh(run: Any) -> None:
    path, _ = run
    done = launch_command(["-m", "parallel.checkpoint", "verify", str(path)], 1, limit_s=100)
    assert done.code == 0 and done.out.count("whole") == 3, done.err


def test_nn_load_reads_what_merge_has_written(tmp_path: Path, printed: Printed) -> None:
    """It needs no names: the file says how its matrices lie."""
    net, other = (nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)) for _ in range(2))
    checkpoint.save(tmp_path / "run", {"model": net, "optimizer": optim.SGD(net.parameters(), lr=0.1)}, 1)
    path = tmp_path / "model.safetensors"
    assert printed("merge", tmp_path / "run", path)[0] == 0
    nn.load(other, path)
    assert all((x == net.state_dict()[name]).all() for name, x in other.state_dict().items())
