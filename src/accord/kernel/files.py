"""Files and folders that survive a power cut."""

import os
import secrets
from pathlib import Path


def write_private(path: Path, data: bytes) -> None:
    """Create a file that only its owner can read, and fsync it; OSError if it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def create_private(path: Path, data: bytes) -> None:
    """Like `write_private`, but nobody ever finds part of the file, not even after a crash."""
    draft = _draft(path)
    try:
        write_private(draft, data)
        os.link(draft, path)  # fails where a rename would replace
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def replace_private(path: Path, data: bytes) -> None:
    """Put a file that only its owner can read in the place of another, if there is one.

    After a crash it is the old one or the new one, whole.
    """
    draft = _draft(path)
    try:
        write_private(draft, data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")


def sync_folder(folder: Path) -> None:
    """Fsync a folder after files were created or renamed in it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
