"""The object store, behind one small class: a local directory, S3-compatible, GCS, Azure, or memory."""

from headrace.errors import ObjectMissing, StoreUnavailable
from headrace.storage.objects.backend import ObjectInfo
from headrace.storage.objects.store import Objects

__all__ = ["ObjectInfo", "ObjectMissing", "Objects", "StoreUnavailable"]
