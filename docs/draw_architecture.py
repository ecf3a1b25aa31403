"""Draw `architecture.svg`: the rooms of ringtape. ``python docs/draw_architecture.py``

`ROOMS` has every folder of the packages, which `tests/documents/test_architecture.py` compares with the tree.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent

ROOMS: dict[str, tuple[str, list[list[tuple[str, str, str]]]]] = {
    "parallel": ("layers and runs, made of collectives", [
        [
            ("trainer.py, plan.py", "a model divided by a plan", "of names, on any mesh"),
            ("verify.py, explain.py", "gradients of one process;", "what a step will do"),
            ("elastic/, launch.py", "runs without a rank;", "jobs that start again"),
            ("checkpoint/", "each rank writes its part;", "any mesh reads it"),
            ("runs/", "log, plot and progress;", "what bits depend on"),
            ("report/", "where the time", "of a step goes"),
        ],
        [
            ("data/", "entry of parameters,", "buckets, ZeRO 0 to 3"),
            ("tensor/", "linear layers and heads", "in columns and rows"),
            ("pipeline/", "stages, schedules,", "microbatches"),
            ("context/", "attention over parts", "of a sequence"),
            ("expert/", "experts on ranks,", "routing, loads"),
            ("approximate/", "compression, local SGD:", "other numbers"),
        ],
    ]),
    "collectives": ("communication with adjoints", [
        [
            ("tools/, audit/", "commands; gradients", "of other libraries"),
            ("testing/", "the pairing law", "for users' collectives"),
            ("page/", "every operation of", "all ranks, in HTML"),
            ("inspect/", "dry runs, plans,", "timelines, records"),
            ("faults/", "ranks that die, stop,", "lose or damage data"),
            ("mesh.py, world.py", "axes of ranks; ranks that", "are MPI, threads or dry"),
        ],
        [
            ("ops/", "collectives, each", "beside its adjoint"),
            ("declaration/", "how one is declared;", "the prepared call"),
            ("checks/", "what ranks compare,", "and the errors"),
            ("scale/", "wrong factors: powers of", "the number of ranks"),
            ("algorithms/", "ring, halving, trees,", "one tree of sums"),
            ("job/", "failure, deadlock,", "shutdown, supervisor"),
        ],
        [
            ("transports/", "the protocol of calls on", "arrays, requests"),
            ("transports/mpi/", "mpi4py", "(MPICH, Open MPI)"),
            ("transports/threads/", "ranks as threads;", "exact deadlock reports"),
            ("transports/shared_memory/", "sums within", "a host"),
            ("transports/device/", "GPUs: staged, pinned,", "IPC, NCCL"),
            ("transports/replays/", "recorded ranks", "again"),
        ],
    ]),
    "autograd": ("the engine; it never communicates", [
        [
            ("nn/, optim/, data/", "modules, optimizers,", "loaders, files"),
            ("transforms/", "grad, jacobian, hvp,", "recomputation"),
            ("numpy/, scipy/", "the libraries,", "differentiable"),
            ("custom/, misc/", "primitives of users;", "HIPS autograd's names"),
            ("testing/, records/", "check_grads, anomalies;", "operations as they ran"),
        ],
        [
            ("ops/", "operations, each with", "its adjoint"),
            ("random/", "numbers by seed,", "name, step and place"),
            ("kernels/", "fused kernels behind", "one find: C, CUDA"),
            ("compiler/", "loops as machine code,", "tables of calls"),
            ("engine/", "Tensor, tape, dispatch,", "sweep; the door upwards"),
            ("layouts/", "labels, inference,", "refusals"),
        ],
        [
            ("arrays/", "devices, dtypes, shapes", "without values"),
            ("environment.py", "every RINGTAPE_ variable,", "read here only"),
            ("errors.py", "errors with the line", "of the program"),
        ],
    ]),
}
"""By package: its subject, and rows of rooms: a name or several, and two lines."""

EXTRAS = frozenset((
    "elastic/, launch.py", "checkpoint/", "runs/", "report/", "context/", "expert/", "approximate/", "tools/, audit/",
    "testing/", "page/", "inspect/", "faults/", "scale/", "algorithms/", "transports/shared_memory/",
    "transports/device/", "transports/replays/", "custom/, misc/", "testing/, records/", "compiler/",
))  # fmt: skip
"""The rooms that the core does not import."""

_COLOURS = {
    "parallel": ("#fdf3e7", "#d9a25f"), "collectives": ("#eaf3fb", "#6ba3d6"), "autograd": ("#edf6ec", "#77b26f"),
}  # fmt: skip
_WIDTH, _HEIGHT, _GAP, _TITLE = 1120, 70, 8, 44


def text(x: float, y: float, content: str, size: float, *, bold: bool = False, mono: bool = False) -> str:
    """A line of text."""
    kind = ' class="mono"' if mono else ""
    weight, fill = ("bold", "#1b1f24") if bold else ("normal", "#444c56")
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" font-weight="{weight}" fill="{fill}"{kind}>{content}</text>'


def drawing() -> str:
    """The SVG."""
    lines, y = [], 10.0
    for package, (subject, rows) in ROOMS.items():
        fill, stroke = _COLOURS[package]
        height = _TITLE + len(rows) * (_HEIGHT + _GAP) + 4
        if lines:
            lines.append(
                f'<line x1="560" y1="{y - 26:g}" x2="560" y2="{y - 3:g}" stroke="#57606a" stroke-width="1.6" '
                'marker-end="url(#a)"/>' + text(570, y - 9, "imports", 12)
            )
        lines.append(f'<rect x="10" y="{y:g}" width="1100" height="{height}" rx="10" fill="{fill}" stroke="{stroke}"/>')
        lines.append(text(28, y + 28, f"{package}/", 18, bold=True, mono=True))
        lines.append(text(58 + 11 * len(package), y + 28, subject, 13))
        for k, row in enumerate(rows):
            width = (1100 - 24 - _GAP * (len(row) - 1)) / len(row)
            top = y + _TITLE + k * (_HEIGHT + _GAP)
            for i, (name, first, second) in enumerate(row):
                x = 22 + i * (width + _GAP)
                lines.append(
                    f'<rect x="{x:.1f}" y="{top:g}" width="{width:.1f}" height="{_HEIGHT}" rx="6" '
                    + (f'fill="{fill}" stroke="{stroke}" stroke-dasharray="5 3"/>' if name in EXTRAS
                       else f'fill="#ffffff" stroke="{stroke}"/>')
                )  # fmt: skip
                size = min(13.0, 1.62 * (width - 16) / len(name))
                lines.append(text(x + 9, top + 22, name, round(size, 1), bold=True, mono=True))
                lines += [text(x + 9, top + 40, first, 11.5), text(x + 9, top + 55, second, 11.5)]
        y += height + 30
    lines.append(text(22, y - 8, "White: the core, or in part. Dashed: extras, which the core does not import.", 13))
    y += 22
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y - 18:g}" '
        'font-family="Helvetica, Arial, sans-serif">',
        "<title>The rooms of ringtape. Imports go down only.</title>",
        '<style>.mono { font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace; }</style>',
        '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L10 5L0 10z" fill="#57606a"/></marker></defs>',
        f'<rect width="{_WIDTH}" height="{y - 18:g}" fill="#ffffff"/>', *lines, "</svg>", "",
    ])  # fmt: skip


if __name__ == "__main__":
    (HERE / "architecture.svg").write_text(drawing())
