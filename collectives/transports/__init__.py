"""Transports: one file for each kind of world."""
