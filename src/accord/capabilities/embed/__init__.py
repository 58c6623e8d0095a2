"""Texts as vectors: `embed.text`, by a small model in this process.

`onnx` and `bert` write the model's graph over weights that stay where they are, `minilm` runs it,
`batching` lets many callers share it, `handlers` serves it.
"""

from accord.capabilities.embed.batching import Batcher, batching
from accord.capabilities.embed.handlers import register
from accord.capabilities.embed.opening import open_embedder

__all__ = ["Batcher", "batching", "open_embedder", "register"]
