"""Checks that ranks make the same calls with the same values: the modes, and the sanitizer."""
