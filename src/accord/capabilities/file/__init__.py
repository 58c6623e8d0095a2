"""Files of a node: the blob store, `file.read`, `list`, `advertise` and `put`."""

from accord.capabilities.file.blob_folder import disk_full
from accord.capabilities.file.blobs import Blobs, FileSettings, Label
from accord.capabilities.file.rules import (
    CHUNK,
    MAX_CHUNKS,
    Manifest,
    check_cid,
    cid_of,
    read_manifest,
)
from accord.capabilities.file.service import Files, register
from accord.capabilities.file.shares import FileShare, ShareMark, file_name, file_title
from accord.capabilities.file.transfer import (
    HolderHints,
    node_addresses,
    pull,
    push,
    read_chunk,
    read_listed,
    write_chunk,
)

__all__ = [
    "CHUNK",
    "MAX_CHUNKS",
    "Blobs",
    "FileSettings",
    "FileShare",
    "Files",
    "HolderHints",
    "Label",
    "Manifest",
    "ShareMark",
    "check_cid",
    "cid_of",
    "disk_full",
    "file_name",
    "file_title",
    "node_addresses",
    "pull",
    "push",
    "read_chunk",
    "read_listed",
    "read_manifest",
    "register",
    "write_chunk",
]
