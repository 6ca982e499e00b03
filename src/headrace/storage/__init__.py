"""The only code that touches disks and buckets."""
