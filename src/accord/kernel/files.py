"""Files and folders that survive a power cut."""

import os
from pathlib import Path


def write_private(path: Path, data: bytes) -> None:
    """Create a file that only its owner can read, and fsync it; OSError if it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Fsync a folder after files were created or renamed in it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
