"""Inspect communication: plans, dry runs and timelines."""
