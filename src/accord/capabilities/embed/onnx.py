"""Writes ONNX models: as much of the format as one transformer needs.

Pure. A model is a Protocol Buffers message with the field numbers of ONNX. Tensors refer to their
bytes in a file beside the model.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

FLOAT: Final = 1
INT32: Final = 6
INT64: Final = 7

Attribute: TypeAlias = int | float | Sequence[int]

_VARINT, _BYTES, _FIXED32 = 0, 2, 5
_IR_VERSION: Final = 8
_ATTRIBUTE_FLOAT, _ATTRIBUTE_INT, _ATTRIBUTE_INTS = 1, 2, 7
_EXTERNAL: Final = 1


def node(
    operator: str,
    inputs: Iterable[str],
    outputs: Iterable[str],
    *,
    domain: str = "",
    **attributes: Attribute,
) -> bytes:
    """One operation on named values; an optional input that is left out is an empty name."""
    return b"".join(
        (
            *(_bytes(1, name.encode()) for name in inputs),
            *(_bytes(2, name.encode()) for name in outputs),
            _bytes(4, operator.encode()),
            *(_bytes(5, _attribute(name, value)) for name, value in attributes.items()),
            _bytes(7, domain.encode()),
        )
    )


def outside(
    name: str, kind: int, shape: Sequence[int], *, file: str, offset: int, size: int
) -> bytes:
    """A tensor whose bytes are part of a file."""
    place = {"location": file, "offset": str(offset), "length": str(size)}
    entries = (
        _bytes(13, _bytes(1, key.encode()) + _bytes(2, value.encode()))
        for key, value in place.items()
    )
    return _tensor(name, kind, shape) + b"".join(entries) + _integer(14, _EXTERNAL)


def constant(name: str, values: Sequence[int]) -> bytes:
    """A row of integers."""
    return _tensor(name, INT64, [len(values)]) + _bytes(9, struct.pack(f"<{len(values)}q", *values))


def value(name: str, kind: int, shape: Sequence[int | str]) -> bytes:
    """An input or output; a dimension with a name may have any size."""
    dimensions = b"".join(
        _bytes(1, _bytes(2, each.encode()) if isinstance(each, str) else _integer(1, each))
        for each in shape
    )
    tensor = _integer(1, kind) + _bytes(2, dimensions)
    return _bytes(1, name.encode()) + _bytes(2, _bytes(1, tensor))


def model(
    name: str,
    nodes: Iterable[bytes],
    tensors: Iterable[bytes],
    *,
    inputs: Iterable[bytes],
    outputs: Iterable[bytes],
    opsets: dict[str, int],
) -> bytes:
    """The whole model."""
    graph = b"".join(
        (
            *(_bytes(1, each) for each in nodes),
            _bytes(2, name.encode()),
            *(_bytes(5, each) for each in tensors),
            *(_bytes(11, each) for each in inputs),
            *(_bytes(12, each) for each in outputs),
        )
    )
    versions = (
        _bytes(8, _bytes(1, domain.encode()) + _integer(2, version))
        for domain, version in opsets.items()
    )
    return _integer(1, _IR_VERSION) + _bytes(7, graph) + b"".join(versions)


def _tensor(name: str, kind: int, shape: Sequence[int]) -> bytes:
    return b"".join(
        (*(_integer(1, each) for each in shape), _integer(2, kind), _bytes(8, name.encode()))
    )


def _attribute(name: str, given: Attribute) -> bytes:
    if isinstance(given, int):
        content, kind = _integer(3, given), _ATTRIBUTE_INT
    elif isinstance(given, float):
        content, kind = _tag(2, _FIXED32) + struct.pack("<f", given), _ATTRIBUTE_FLOAT
    else:
        content, kind = b"".join(_integer(8, each) for each in given), _ATTRIBUTE_INTS
    return _bytes(1, name.encode()) + content + _integer(20, kind)


def _integer(field: int, number: int) -> bytes:
    return _tag(field, _VARINT) + _varint(number & 0xFFFF_FFFF_FFFF_FFFF)


def _bytes(field: int, content: bytes) -> bytes:
    return _tag(field, _BYTES) + _varint(len(content)) + content


def _tag(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
