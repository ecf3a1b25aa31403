"""Counts of the cases that the registry's tests ran, and of those they skipped with reasons, for the summary."""

from __future__ import annotations

from collections import Counter

ran: Counter[str] = Counter()
skipped: dict[str, Counter[str]] = {}


def skip(reason: str, what: str) -> None:
    """Count a check of an operation that was skipped, with the reason."""
    skipped.setdefault(reason, Counter())[what] += 1


def lines() -> list[str]:
    """Return the lines of the summary."""
    if not ran:
        return []
    text = [f"{sum(ran.values())} cases of {len({k.split()[0] for k in ran})} operations: " +
            ", ".join(f"{n} {kind}" for kind, n in sorted(Counter(_kinds()).items()))]  # fmt: skip
    for reason, checks in sorted(skipped.items()):
        text.append(f"skipped, {reason}: {', '.join(sorted(checks))} ({sum(checks.values())} times)")
    return text


def _kinds() -> dict[str, int]:
    kinds: Counter[str] = Counter()
    for key, n in ran.items():
        kinds[key.split(" ", 1)[1]] += n
    return kinds
