"""What runs in executors: functions from Arrow batches to Arrow batches, with nothing but names and counts in them."""
