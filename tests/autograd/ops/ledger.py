"""How many cases the registry's tests ran, and what they skipped and why; printed at the end of the run."""

from __future__ import annotations

from collections import Counter

ran: Counter[str] = Counter()
skipped: dict[str, Counter[str]] = {}


def skip(reason: str, what: str) -> None:
    """Note that something of an operation was not checked, and why."""
    skipped.setdefault(reason, Counter())[what] += 1


def lines() -> list[str]:
    """The account."""
    if not ran:
        return []
    text = [f"{sum(ran.values())} cases of {len({k.split()[0] for k in ran})} operations: " +
            ", ".join(f"{n} {kind}" for kind, n in sorted(Counter(_kinds()).items()))]  # fmt: skip
    for reason, whats in sorted(skipped.items()):
        text.append(f"skipped, {reason}: {', '.join(sorted(whats))} ({sum(whats.values())} times)")
    return text


def _kinds() -> dict[str, int]:
    kinds: Counter[str] = Counter()
    for key, n in ran.items():
        kinds[key.split(" ", 1)[1]] += n
    return kinds
