"""The data pipeline: journals of all planes as Spark tables, and rules replayed over them.

It runs the pure rules of the planes and never imports a server.
"""
