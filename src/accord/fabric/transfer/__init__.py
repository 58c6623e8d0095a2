"""Transfers: files that a caller uploads for an operation or downloads after an RPC.

A service opens `Uploads` and offers `Downloads`; the caller passes the grant it gets to `upload` or
`download`. Files are kept in the object stores that the contract declares.
"""

from accord.fabric.rules.transfers import (
    EOF,
    SEQUENCE,
    TransferGrant,
    frame_id,
    read_grant,
    seal,
    unseal,
)
from accord.fabric.transfer.client import download, upload
from accord.fabric.transfer.server import Downloads, OpenTransfer, Uploads, transfer_opener

__all__ = [
    "EOF",
    "SEQUENCE",
    "Downloads",
    "OpenTransfer",
    "TransferGrant",
    "Uploads",
    "download",
    "frame_id",
    "read_grant",
    "seal",
    "transfer_opener",
    "unseal",
    "upload",
]
