"""What data may look like, and how it may change. Pure: no files, no clocks, no network."""
