"""What may be set about the files of a node."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileSettings:
    """How a node holds files for others.

    Attributes:
        grace_seconds: How long a blob that nobody names stays before it may be collected.
        idle_seconds: How long a `file.put` waits for the next chunks.
        resume_seconds: How long an interrupted `file.put` may go on where it was, undisturbed.
        max_uploads: How many blobs are received at once.
        max_uploads_each: How many of them from one caller.
        max_hints: How many holders that others have told about are remembered.
    """

    grace_seconds: float = 86_400.0
    idle_seconds: float = 50.0
    resume_seconds: float = 600.0
    max_uploads: int = 16
    max_uploads_each: int = 4
    max_hints: int = 100_000
