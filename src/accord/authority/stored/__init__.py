"""The authority's records in its tables: rows in, records out, and nothing that decides.

Each function takes a connection and belongs to somebody else's unit of work.
"""
