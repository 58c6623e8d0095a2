"""The data pipeline: everything that happened as Spark tables, and any rule replayed over it.

Runs the pure functions of the other planes over their journals. Never imports a server.
"""
