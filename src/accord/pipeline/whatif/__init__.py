"""Replay before change: what a new contract, policy or revocation would have done to history.

Each what-if takes the tables of a pipeline and a proposal, lets the very function that decides live
decide again over every record, and gives a value that explains itself: `to_dict` for programs,
`text` for people. Nothing is changed, and nothing is written.
"""
