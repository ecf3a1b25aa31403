"""The examples that take ``--device``, on the CPU and on a GPU: each rank prints the same words and the same numbers.

A printed number may differ by its last digit and a relative 1e-4. The losses of every step, which two examples give,
may differ by a relative 1e-4. Lines of measured times are left out.
"""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

import collectives as cc
from tests.parallel.test_device_examples import load

EXAMPLES = {
    "02_digits": "--epochs 1 --batch 500",
    "03_tensor_parallel": "",
    "04_pipeline": "--steps 2 --microbatches 4",
    "05_ring_attention": "--tokens 4",
    "06_experts": "--steps 2 --batch 64 --experts 4",
    "09_sharded_state": "--width 16 --layers 2 --steps 2",
    "train_gpt": "--steps 2 --layers 1 --width 8 --heads 2 --context 8 --batch 4 --dropout 0.1 --dp 2",
}
TIMES = re.compile(r" +\d +\d+\.\d%")  # the idle share of a pipeline's ranks
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
RELATIVE = 1e-4


def is_close(a: str, b: str) -> bool:
    """Whether printed numbers are equal up to the last digit of the first."""
    digits, _, power = a.partition("e")
    last = 10.0 ** (int(power or 0) - len(digits.partition(".")[2])) if "." in a or power else 0.0
    errors = bool(power) and max(float(a), float(b)) < 1e-5  # of rounding, which need not be equal
    return errors or abs(float(a) - float(b)) <= 1.01 * last + RELATIVE * abs(float(a))


def printed(name: str, device: str) -> tuple[list[str], list[float]]:
    """What this rank prints, and the losses."""
    print(name, "on", device, file=sys.stderr, flush=True)
    example, losses = load(name), []
    words = [*EXAMPLES[name].split(), "--device", device]
    if name == "train_gpt":
        example.read_text = lambda: ("ab" * 500, ["a", "b"], example.np.arange(1000) % 2)
        example.report_on = lambda model, found, *rest: losses.extend(found)
    file = Path(sys.argv[1]) / f"{device}.json"
    words += ["--losses", str(file)] if name == "02_digits" else []
    shown = io.StringIO()
    with redirect_stdout(shown):
        example.program(example.parser.parse_args(words))
    if name == "02_digits" and cc.world().rank == 0:
        losses = json.loads(file.read_text())
    return [line for line in shown.getvalue().splitlines() if not TIMES.match(line)], losses


for name in EXAMPLES:
    (lines, losses), (others, their_losses) = printed(name, "cpu"), printed(name, "cuda")
    assert [NUMBER.sub("", line) for line in lines] == [NUMBER.sub("", line) for line in others], (lines, others)
    for line, other in zip(lines, others, strict=True):
        assert all(map(is_close, NUMBER.findall(line), NUMBER.findall(other))), f"{name}:\n{line}\n{other}"
    assert all(abs(a - b) <= RELATIVE * abs(a) for a, b in zip(losses, their_losses, strict=True)), losses
    cc.world().barrier()
    if cc.world().rank == 0:
        print(name, len(lines), "lines", flush=True)
