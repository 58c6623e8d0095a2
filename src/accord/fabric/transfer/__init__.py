"""Transfers: files that a caller sends for an operation, or fetches after an RPC.

A service opens `Uploads` and offers `Downloads`; a caller is given a grant and uses `upload` or
`download` with it. Files lie in the object stores that the contract declares.
"""

from accord.fabric.transfer.client import download, upload
from accord.fabric.transfer.downloads import Downloads
from accord.fabric.transfer.grant import Grant, read_grant
from accord.fabric.transfer.opening import Open, opening
from accord.fabric.transfer.uploads import Uploads

__all__ = [
    "Downloads",
    "Grant",
    "Open",
    "Uploads",
    "download",
    "opening",
    "read_grant",
    "upload",
]
