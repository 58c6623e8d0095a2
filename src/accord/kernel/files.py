"""Files that a power cut must not undo."""

import os
from pathlib import Path


def write_private(path: Path, data: bytes) -> None:
    """Make a new file that only its owner can read, and bring it to the disk.

    Raises:
        OSError: It cannot be written, or is there already.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Bring to the disk what was created or renamed in a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
