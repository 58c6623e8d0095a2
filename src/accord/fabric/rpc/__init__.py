"""Requests and replies: signed by the caller, checked on both ends."""

from accord.fabric.rpc.answering import Handler, answering
from accord.fabric.rpc.calling import call

__all__ = ["Handler", "answering", "call"]
