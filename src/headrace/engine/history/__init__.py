"""Published history: segments, stored events, sealing, recovery and verification."""
