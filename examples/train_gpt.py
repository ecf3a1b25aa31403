"""Train a character-level GPT on the documentation that every Python ships, on any mesh of ranks.

    python examples/train_gpt.py                                       one process
    mpiexec -n 4 python examples/train_gpt.py --dp 2 --tp 2            four processes: 2 parts of the batch and layers
    python examples/train_gpt.py --ranks 4 --pp 2 --cp 2               four threads: 2 stages, 2 parts of the sequence

All of them train the same model: the loss of every step is the same up to rounding. `--pp`, `--dp`, `--cp` and `--tp`
say into how many parts the layers, the batch, the sequence and the matrices are divided. The model is an ordinary one
(`gpt.py`); `PLAN` names the layers that are divided, and how.

The text is that of `pydoc_data.topics`, 460,000 characters. The loss on its last tenth is printed beside those of
tables of character trigrams and 4-grams, which are fitted on the same text with Witten-Bell smoothing.

    --explain             print what each rank does, and what it will send and store, before the first step
    --verify              first compare every gradient with that of one process in float64
    --save DIR --every K  save a checkpoint every K steps; it is written in the background
    --resume              go on from the newest checkpoint in DIR, which any mesh may have saved
    --plot gpt.png        draw the losses
    --device cuda         compute on a GPU, with CuPy
    --steps, --layers, --width, --heads, --context, --batch, --dropout, --microbatches, --schedule, --zero: see --help
"""

from __future__ import annotations

import argparse
import os
import re
import time
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np
from gpt import Config, Loss, gpt

import collectives as cc
from autograd import kernels, no_grad, optim, random, use_device
from autograd.optim import schedules
from parallel import Column, Progress, Ring, Row, Trainer, Vocabulary
from parallel.checkpoint import Checkpoints

PLAN = {
    "*.table": Vocabulary("tp"),
    "*.qkv": Column("tp", blocks=3),
    "*.attend": Ring("cp"),
    "*.proj": Row("tp"),
    "*.mlp.up": Column("tp"),
    "*.mlp.down": Row("tp"),
    "*.out": Vocabulary("tp"),
    "loss.rows": Vocabulary("tp"),
}
"""How each layer is divided, if the mesh has the axis. Layers that are not named are the same on all ranks of "tp"."""

parser = argparse.ArgumentParser(description="Train a character-level GPT on any mesh.")
parser.add_argument("--ranks", type=int, metavar="N", help="run on N threads of this process")
for axis, of in (("pp", "stages of the model"), ("dp", "parts of the batch"), ("cp", "parts of the sequence"),
                 ("tp", "parts of each layer")):  # fmt: skip
    parser.add_argument(f"--{axis}", type=int, default=None, metavar="N", help=f"the number of {of}")
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--context", type=int, default=128, help="characters that a prediction sees at most")
parser.add_argument("--batch", type=int, default=16, help="rows of a global batch")
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--microbatches", type=int, default=None, help="default: 2 for each stage, 1 without stages")
parser.add_argument("--schedule", default="1f1b", help="of the stages: gpipe, 1f1b, interleaved, zb-h1, zb-v")
parser.add_argument("--zero", type=int, default=0, help="stage of ZeRO along dp")
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--device", default="cpu", help="where the ranks compute: cpu, cuda or cuda:0")
parser.add_argument("--sample", type=int, default=600, metavar="N", help="draw so many characters at the end")
parser.add_argument("--explain", action="store_true", help="print the plan of a step before the first one")
parser.add_argument("--verify", action="store_true", help="compare every gradient with one process's in float64")
parser.add_argument("--save", metavar="DIR", help="save checkpoints there")
parser.add_argument("--every", type=int, default=100, metavar="K", help="the steps between two checkpoints")
parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in DIR")
parser.add_argument("--plot", nargs="?", const="gpt.png", metavar="FILE", help="draw the losses as a PNG")


# -- the text, and tables of its n-grams -----------------------------------------------------------------------------


def read_text() -> tuple[str, list[str], np.ndarray]:
    """The text, its characters in order, and the index of each of its characters."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    characters = sorted(set(text))
    index = {c: i for i, c in enumerate(characters)}
    return text, characters, np.array([index[c] for c in text])


def ngram_loss(train: np.ndarray, test: np.ndarray, n: int, characters: int) -> float:
    """The mean loss in nats of a table of n-grams, which is interpolated with those of shorter ones (Witten-Bell)."""
    p = np.full(len(test) - n + 1, 1.0 / characters)
    for order in range(1, n + 1):
        grams, times = np.unique(_codes(train, order, characters), return_counts=True)
        begins, at = np.unique(grams // characters, return_inverse=True)
        seen, kinds = np.bincount(at, times), np.bincount(at)  # of each beginning: occurrences, next characters
        codes = _codes(test, order, characters)[n - order :]
        known, begun = _find(times, grams, codes), _find(seen, begins, codes // characters)
        kinds_of = _find(kinds, begins, codes // characters)
        total = begun + kinds_of
        p = np.where(begun > 0, (known + kinds_of * p) / np.maximum(total, 1), p)
    return float(-np.log(p).mean())


def _codes(ids: np.ndarray, n: int, characters: int) -> np.ndarray:
    """Each n-gram as one number."""
    windows = np.lib.stride_tricks.sliding_window_view(ids.astype(np.int64), n)
    return windows @ (characters ** np.arange(n)[::-1])


def _find(values: np.ndarray, keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The value of each wanted key, 0 where it is missing."""
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)


# -- training --------------------------------------------------------------------------------------------------------


def rows_of(ids: np.ndarray, starts: np.ndarray, context: int) -> tuple[np.ndarray, np.ndarray]:
    """The inputs and the targets: the same characters, one further."""
    rows = ids[starts[:, None] + np.arange(context + 1)]
    return rows[:, :-1], rows[:, 1:]


def sample(model: Any, text: str, characters: list[str], length: int, context: int, seed: int) -> str:
    """A continuation of a text, drawn from the model, character by character."""
    index = {c: i for i, c in enumerate(characters)}
    ids = [index[c] for c in text]
    chances = random.uniform(random.Key(seed, "sample"), length)
    with no_grad():
        for chance in chances:
            logits = np.asarray(model(np.array([ids[-context:]]))[0, -1], np.float64) / 0.8  # a temperature below 1
            p = np.exp(logits - logits.max())
            ids.append(min(int(np.searchsorted(np.cumsum(p) / p.sum(), chance)), len(characters) - 1))
    return "".join(characters[i] for i in ids)


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    text, characters, ids = read_text()
    cut = len(ids) * 9 // 10
    train, test = ids[:cut], ids[cut:]
    config = Config(len(characters), options.width, options.heads, options.layers, options.dropout)
    key = random.Key(options.seed, "gpt")
    sizes = {axis: n for axis in ("pp", "dp", "cp", "tp") if (n := getattr(options, axis)) is not None}
    microbatches = options.microbatches or (2 * options.pp if options.pp else 1)
    rate = schedules.warmup_cosine(options.lr, min(100, options.steps // 10 + 1), options.steps, options.lr / 10)

    kernels.keep_freed_memory()
    use_device(options.device)
    with cc.Mesh.fit(**sizes) as mesh:
        first = int(mesh.ranks.rank) == 0
        trainer = Trainer(
            lambda: gpt(config, key), Loss(), mesh, PLAN, microbatches=microbatches, schedule=options.schedule,
            zero=options.zero, clip=1.0, seed=options.seed, device=options.device,
            optimizer=lambda parameters: optim.AdamW(parameters, lr=rate, betas=(0.9, 0.99), weight_decay=0.1),
        )  # fmt: skip
        starts = random.integers(key.fold("batches"), (options.steps, options.batch), 0, cut - options.context - 1)
        starts = np.asarray(getattr(starts, "array", starts))
        if options.explain:
            report = trainer.explain(*rows_of(train, starts[0], options.context))
            print(report) if first else None
        if options.verify:
            report = trainer.verify(*rows_of(train, starts[0], options.context))
            print(report) if first else None
            report.require()

        checkpoints = Checkpoints(options.save, keep=3, background=True) if options.save else None
        losses, tested, begin = [], [], time.perf_counter()
        if options.resume and checkpoints is not None and (found := checkpoints.resume({"trainer": trainer})):
            losses, tested = found.values["losses"], found.values["tested"]
            print(f"goes on after step {trainer.steps} of {options.save}") if first else None
        whole = rows_of(test, np.arange(0, len(test) - options.context - 1, options.context), options.context)
        progress = Progress(range(trainer.steps, options.steps), "training")
        for step in progress:
            losses.append(trainer.step(*rows_of(train, starts[step], options.context)))
            progress.set_postfix(loss=losses[-1])
            if (step + 1) % max(1, options.steps // 6) == 0 or step + 1 == options.steps:
                tested.append((step + 1, trainer.evaluate(*whole)))
            if checkpoints is not None and ((step + 1) % options.every == 0 or step + 1 == options.steps):
                checkpoints.save({"trainer": trainer, "losses": losses, "tested": tested}, step + 1)
        if checkpoints is not None:
            checkpoints.wait()
        seconds = time.perf_counter() - begin
        model = trainer.gather()  # the whole model, on the first rank
    if first:  # outside of the mesh, where one process computes
        report_on(model, losses, tested, seconds, (text, characters, train, test), options)


def report_on(model: Any, losses: Any, tested: Any, seconds: float, data: Any, options: Any) -> None:
    """Print the results, and draw them."""
    text, characters, train, test = data
    tokens = options.steps * options.batch * options.context
    print(f"{options.steps} steps in {seconds:.0f} s, {tokens / seconds:,.0f} characters a second")
    tables = {f"{n}-grams": ngram_loss(train, test, n, len(characters)) for n in (3, 4)}
    print("loss on the last tenth of the text, in nats a character:")
    for name, value in {"GPT": tested[-1][1], **tables}.items():
        print(f"  {name:8} {value:.3f}")
    generated = sample(model, "The ", characters, options.sample, options.context, options.seed)
    known = set(re.findall(r"[A-Za-z]+", text))
    words = re.findall(r"[A-Za-z]+", generated)[:-1]  # the last one may be cut off
    print("a sample:\n\n" + "\n".join("    " + line for line in generated.splitlines()))
    print(f"\n{np.mean([word in known for word in words]):.0%} of its {len(words)} words occur in the text")
    if options.plot:
        plot(losses, tested, tables, options)


def plot(losses: list[float], tested: list[tuple[int, float]], tables: dict[str, float], options: Any) -> None:
    """Draw the loss of every step, that on the last tenth of the text, and those of the tables."""
    import matplotlib

    matplotlib.use("Agg")  # draw without a screen
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(np.arange(1, len(losses) + 1), losses, color="tab:blue", alpha=0.4, linewidth=0.8, label="each batch")
    if tested:
        axes.plot(*zip(*tested, strict=True), "o-", color="tab:red", markersize=4, label="last tenth of the text")
    for (name, value), style in zip(tables.items(), ("--", ":"), strict=True):
        axes.axhline(value, color="black", linestyle=style, linewidth=1, label=f"table of {name}")
    shape = " x ".join(f"{a}={n}" for a in ("pp", "dp", "cp", "tp") if (n := getattr(options, a)))
    axes.set(xlabel="step", ylabel="loss, nats a character", ylim=(0.8, 3.2))
    axes.set_title(f"A GPT of {options.layers} layers, width {options.width}; mesh: {shape or 'one rank'}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(options.plot, dpi=150)


if __name__ == "__main__":
    options = parser.parse_args()
    if options.ranks:
        cc.run(program, options.ranks, options)
    else:
        program(options)
