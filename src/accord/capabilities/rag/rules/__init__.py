"""Documents, chunks and the index of a corpus. Pure."""
