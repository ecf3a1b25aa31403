"""A module beside `replay_base`."""

FACTOR = 7.0
