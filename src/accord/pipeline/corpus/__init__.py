"""Corpora at scale: documents cut and embedded on Spark, for a node to load.

Documents are read, cut and embedded by the functions of `accord.capabilities.rag`, so a chunk gets
the same id and vector as from `rag.ingest`.
"""
