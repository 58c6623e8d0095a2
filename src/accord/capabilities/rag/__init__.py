"""Retrieval: documents out of the blob store, cut into chunks, found again by words and meaning.

Serves `rag.query`, `rag.ingest` and `rag.list_corpora` (sections 4.4 to 4.6 of the specification).
`documents` reads files, `chunks` cuts them, `words` and `index` find, `tables` and `shelf` keep,
`corpora` puts these together, `handlers` puts it on a bus. Nothing is imported here, so that an
executor that only cuts documents loads no server.
"""
