"""A reader that wants more memory than it may have."""

from accord.capabilities.rag import readers

readers.limit_process()
hoard = [bytearray(64 * 1024 * 1024) for _ in range(64)]
