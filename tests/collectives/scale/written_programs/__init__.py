"""Programs written from the habits of other systems, right and wrong in their scale: a file for each subject."""

from __future__ import annotations

from importlib import import_module

from .harness import Program

__all__ = ["PROGRAMS", "SUBJECTS"]

SUBJECTS = (
    "operands", "masks", "penalties", "reinforcement", "axes", "microbatches", "models", "coincidences", "layers",
    "ports", "counts",
)  # fmt: skip
PROGRAMS: dict[str, Program] = {
    f"{subject}: {name}": row
    for subject in SUBJECTS
    for name, row in import_module(f".{subject}", __name__).PROGRAMS.items()
}
"""All programs, by their subject and name."""
