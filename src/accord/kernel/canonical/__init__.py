"""Canonical JSON: the one encoder and the one strict parser of the project.

`encode` writes RFC 8785 bytes: what is signed, hashed or compared. `decode` reads JSON strictly:
a text that two readers could understand differently is refused, with its position. What `encode`
writes, `decode` reads back equal.

Both are defined by plain Python (`reference.py` writes, `explain.py` refuses) and made fast by
libraries written in Rust: their answer is taken only where it provably is the same.
"""

from accord.kernel.canonical.decoding import decode
from accord.kernel.canonical.encoding import encode
from accord.kernel.canonical.limits import MAX_BYTES, MAX_DEPTH, MAX_INTEGER, CanonicalError
from accord.kernel.canonical.numbers import spell

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_INTEGER", "CanonicalError", "decode", "encode", "spell"]
