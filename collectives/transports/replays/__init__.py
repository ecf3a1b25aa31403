"""Replay a record in this process: `recorded` reads it, `data` replays a rank alone, `order` all ranks together."""
