"""Checks that all ranks make the same calls with the same values: the check modes, and the sanitizer."""
