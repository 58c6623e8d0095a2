"""Corpora at scale: documents cut and embedded on executors, for a node to load as they are.

Reading, cutting and embedding are the functions of `accord.capabilities.rag`, so that a chunk has
the id and the vector that `rag.ingest` gives it. `sources` says where documents are, `plan` (pure)
what is to be done about them, `making` does it for one document, `jobs` on Spark for all, `parts`
and `catalogue` keep the result, `building` has the order, `loading` hands it to a node.
"""
