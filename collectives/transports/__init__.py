"""Transports: the protocol of requests, and one folder or file for each kind of world that implements it."""
