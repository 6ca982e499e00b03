"""Looking at a stream from outside: which routing keys it has, and how far its indexes are."""
