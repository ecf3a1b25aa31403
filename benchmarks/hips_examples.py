"""Run every example of HIPS autograd, unmodified, under HIPS autograd and under ringtape, and compare each gradient.

    git clone https://github.com/HIPS/autograd && git -C autograd checkout v1.9.1
    python benchmarks/hips_examples.py --suite autograd --python-hips /an/environment/bin/python

The environment has autograd, SciPy and matplotlib, and so has that of ringtape but for autograd. Each outermost call
of `grad`, `value_and_grad`, `elementwise_grad`, `jacobian` and `hessian_vector_product` is kept. Under ringtape the
program goes on with the gradient of HIPS autograd, so that each is compared at equal parameters: training amplifies a
last bit until two runs have nothing in common. An example ends after ``--seconds`` of processor time under HIPS
autograd, and after as many gradients under ringtape. MNIST is replaced by random images, and plots are left out after
the first 100 calls. The exit status is 1 if an example fails, or a relative difference is above ``--most``.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TRANSFORMS = ("grad", "value_and_grad", "elementwise_grad", "jacobian", "hessian_vector_product")
KEPT = 20_000_000  # numbers of an example


class Stop(BaseException):
    """The example has run for as long as it may."""


def flat(x: Any) -> Any:
    """The numbers of a container, in order; TypeError if a value is traced."""
    import numpy as np

    if hasattr(x, "alphas"):  # the functions of rkhs.py
        x = x.alphas
    if isinstance(x, dict):
        x = [x[key] for key in sorted(x, key=str)]
    if isinstance(x, list | tuple):
        return np.concatenate([np.zeros(0), *map(flat, x)])
    if not isinstance(x, np.ndarray | np.number | float | int):
        raise TypeError(type(x))
    return np.ravel(np.asarray(x, float))


def filled(x: Any, numbers: list[Any]) -> Any:
    """`x` with other numbers, which are taken from the list."""
    import numpy as np

    if isinstance(x, dict):
        new = {key: filled(x[key], numbers) for key in sorted(x, key=str)}
        return {key: new[key] for key in x}
    if isinstance(x, list | tuple):
        return type(x)([filled(y, numbers) for y in x])
    if hasattr(x, "alphas"):
        return x
    a = np.asarray(x)
    new, numbers[0] = numbers[0][: a.size].reshape(a.shape).astype(a.dtype), numbers[0][a.size :]
    return new if isinstance(x, np.ndarray) else new[()]


def worker(file: Path, folder: Path, ours: bool, seconds: float) -> None:
    """Run an example in this process, and write what it has computed."""
    import matplotlib
    import numpy as np

    import autograd
    import autograd.numpy.random as npr

    if hasattr(autograd, "Tape") != ours:
        raise SystemExit(f"{autograd.__file__} is the wrong autograd")
    matplotlib.use("Agg")
    leave_plots_out()
    np.random.seed(0)
    generator = np.random.RandomState
    npr.RandomState = lambda seed=0: generator(seed)
    data = types.ModuleType("data_mnist")
    vars(data)["mnist"] = images
    if file.stem != "data_mnist":
        sys.modules["data_mnist"] = data
    theirs = np.load(folder / "gradients.npz") if ours else {}
    most = json.loads((folder / "theirs.json").read_text())["gradients"] if ours else None
    kept: dict[str, Any] = {}
    state = {"gradients": 0, "depth": 0, "numbers": 0}
    far = [0.0]
    begin = time.process_time()

    def watched(transform: Callable[..., Any]) -> Callable[..., Any]:
        def transformed(*args: Any, **words: Any) -> Callable[..., Any]:
            f = transform(*args, **words)

            def called(*args: Any, **words: Any) -> Any:
                done = state["gradients"]
                late = done and time.process_time() - begin > seconds if most is None else done >= most
                if late and not state["depth"]:
                    raise Stop
                state["depth"] += 1
                try:
                    found = f(*args, **words)
                finally:
                    state["depth"] -= 1
                if state["depth"]:
                    return found
                name = f"g{state['gradients']}"
                state["gradients"] += 1
                try:
                    numbers = flat(found)
                except TypeError:
                    return found
                if not ours and state["numbers"] < KEPT:
                    kept[name], state["numbers"] = numbers, state["numbers"] + numbers.size
                if name in theirs:
                    wanted = theirs[name]
                    far.append(float(np.abs(numbers - wanted).max() / (np.sqrt((wanted**2).mean()) or 1.0)))
                    return filled(found, [wanted])
                return found

            return called

        return transformed

    for name in TRANSFORMS:
        setattr(autograd, name, watched(getattr(autograd, name)))
    sys.path.insert(0, str(file.parent))
    os.chdir(folder)
    status = "done"
    try:
        runpy.run_path(str(file), run_name="__main__")
    except Stop:
        status = "shortened"
    except BaseException:
        status = "FAILED"
        traceback.print_exc()
    if not ours:
        np.savez(folder / "gradients.npz", **kept)
    found = {"status": status, "gradients": state["gradients"], "compared": len(far) - 1, "far": max(far)}
    (folder / ("ours.json" if ours else "theirs.json")).write_text(json.dumps(found))


def images() -> tuple[Any, ...]:
    """Random images in the place of MNIST's: 2,000 to train and 200 to test."""
    import numpy as np

    draw = np.random.RandomState(1)
    labels = draw.randint(0, 10, 2200).astype(np.uint8)
    pixels = np.uint8(178 * draw.rand(10, 28, 28)[labels] + 76 * draw.rand(2200, 28, 28))
    return pixels[:2000], labels[:2000], pixels[2000:], labels[2000:]


def leave_plots_out(after: int = 100) -> None:
    """Draw no more after some calls: that is matplotlib's time, under both."""
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    calls = [0]

    def limited(real: Callable[..., Any]) -> Callable[..., Any]:
        def drawn(*args: Any, **words: Any) -> Any:
            calls[0] += 1
            return real(*args, **words) if calls[0] <= after else None

        return drawn

    for owner, names in (
        (Axes, ("plot", "scatter", "matshow", "fill", "imshow", "streamplot", "legend", "cla", "clear")),
        (Figure, ("tight_layout", "savefig")),
        (plt, ("draw", "contour", "cla", "savefig")),
    ):
        for name in names:
            setattr(owner, name, limited(getattr(owner, name)))
    plt.pause = plt.show = lambda *args, **words: None


def compare(file: Path, python: str, seconds: float) -> dict[str, Any]:
    """Run an example under both."""
    row: dict[str, Any] = {"theirs": "FAILED", "ours": "FAILED", "compared": 0, "far": 0.0, "why": ""}
    with tempfile.TemporaryDirectory() as folder:
        for side, interpreter in (("theirs", python), ("ours", sys.executable)):
            command = [interpreter, __file__, "--worker", str(file), folder, side, "--seconds", str(seconds)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT) if side == "ours" else "", "OPENBLAS_NUM_THREADS": "1",
                           "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
            done = subprocess.run(command, check=False, cwd=folder, env=environment, text=True, capture_output=True)
            path = Path(folder, f"{side}.json")
            found = json.loads(path.read_text()) if path.exists() else {"status": "FAILED"}
            row[side] = found.pop("status")
            if row[side] == "FAILED":
                return {**row, "why": done.stderr.strip()[-800:]}
        return {**row, **found}


def main() -> int:
    """Run all examples, and print a row of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", type=Path, help="a checkout of HIPS autograd")
    parser.add_argument("--python-hips", help="an interpreter with HIPS autograd")
    parser.add_argument("--only", nargs="*", help="the names of some examples")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--most", type=float, default=1e-8)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        file, folder, side = args.worker
        sys.path = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]
        worker(Path(file), Path(folder), side == "ours", args.seconds)
        return 0
    if args.suite is None or args.python_hips is None:
        print("hips_examples: skipped: --suite and --python-hips were not given", file=sys.stderr)
        return 0
    rows = {}
    for file in sorted(args.suite.resolve().glob("examples/**/*.py")):
        if not args.only or file.stem in args.only:
            rows[file.stem] = row = compare(file, args.python_hips, args.seconds)
            if not args.json:
                print(f"{file.stem:32}{row['theirs']:>10}{row['ours']:>10}{row['compared']:>7}{row['far']:>10.1e}"
                      f"  {row['why']}", flush=True)  # fmt: skip
    if args.json:
        print(json.dumps(rows))
    return int(any("FAILED" in (row["theirs"], row["ours"]) or not row["far"] <= args.most for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
