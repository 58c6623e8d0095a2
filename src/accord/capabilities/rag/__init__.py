"""Retrieval over documents in the blob store: `rag.query`, `rag.ingest` and `rag.list_corpora`.

Nothing is imported here, so that an executor that only cuts documents loads no server.
"""
