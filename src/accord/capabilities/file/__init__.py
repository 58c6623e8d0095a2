"""Files that a community shares: the blob store, and `file.read`, `list`, `advertise` and `put`.

`Blobs` is the store that other capabilities use, too; `transfer` carries blobs between nodes.
"""

from accord.capabilities.file.blobs import Blobs
from accord.capabilities.file.handlers import register
from accord.capabilities.file.manifests import Manifest
from accord.capabilities.file.settings import FileSettings

__all__ = ["Blobs", "FileSettings", "Manifest", "register"]
