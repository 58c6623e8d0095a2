"""`accord canon`: canonicalise a JSON document."""

import sys

EXAMPLE = """Example: echo '{"b": 1.0, "a": []}' | accord canon"""


def canon() -> None:
    """Read JSON from stdin strictly and write its canonical bytes (RFC 8785) to stdout.

    Nothing is added to the bytes, except for a line end on a terminal.
    """
    from accord.kernel.canonical import decode, encode

    canonical = encode(decode(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(canonical + b"\n" if sys.stdout.isatty() else canonical)
