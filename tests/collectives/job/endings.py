"""How the supervisor says that a rank ended."""

from __future__ import annotations

__all__ = ["LEFT", "LEFT_WITH_0", "SEGMENTATION_FAULT", "SIGKILL", "UNKNOWN", "ended_by"]

SIGKILL = r"was killed by signal 9 \(SIGKILL: often the kernel, because memory ran out\)"
SEGMENTATION_FAULT = r"was killed by signal 11 \(SIGSEGV: a crash\)"
LEFT_WITH_0 = r"left by os\._exit\(1\) or os\._exit\(0\), or by C's exit in a library"
LEFT = r"left by os\._exit\(3\), or by C's exit in a library"
UNKNOWN = r"was killed or left by os\._exit"


def ended_by(known: str) -> str:
    """A pattern: a known end, or the text for an unknown one, where the launcher collected the process faster."""
    return f"(?:{known}|{UNKNOWN})"
