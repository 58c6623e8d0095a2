"""The REST side of the fake: one table of routes, and a function for each.

A function reads the call, checks what the service checks in the order in which it does, changes the
world and answers; or it refuses, and nothing has changed.
"""
