"""Texts as vectors: `embed.text`, by a small model in this process or by a server."""

from accord.capabilities.embed.minilm import MiniLM
from accord.capabilities.embed.remote import RemoteModel
from accord.capabilities.embed.service import Batcher, open_batcher, open_embedder, register

__all__ = [
    "Batcher",
    "MiniLM",
    "RemoteModel",
    "open_batcher",
    "open_embedder",
    "register",
]
