"""collectives.transports.shared_memory."""
