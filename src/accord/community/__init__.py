"""The community plane: a signed log that every member can verify, and a signed bus between nodes.

`rules` is pure and decides; `log`, `bus`, `sync` and `node` do the I/O.
"""
