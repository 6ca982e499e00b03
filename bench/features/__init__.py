"""Features: what pushes, gets and backfills cost, beside the beava server."""
