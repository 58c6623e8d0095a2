"""A reader that wants more memory than it may have."""

from accord.capabilities.rag.documents import worker

worker._limit()
hoard = [bytearray(64 * 1024 * 1024) for _ in range(64)]
