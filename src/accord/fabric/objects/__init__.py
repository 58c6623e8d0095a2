"""Object stores: files by name, kept in chunks and checked by their digest."""

from accord.fabric.objects.info import ObjectInfo
from accord.fabric.objects.store import CHUNK_BYTES, ObjectStore, open_store

__all__ = ["CHUNK_BYTES", "ObjectInfo", "ObjectStore", "open_store"]
