"""The commons: a signed log that every member can verify, and a signed bus between devices.

`envelope`, `fold` and `reconcile` are pure and decide; `log`, `bus`, `sync` and `node` store,
listen and speak.
"""
