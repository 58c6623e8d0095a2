"""Protobuf descriptors (`protoc --descriptor_set_out`): methods become RPCs and feeds.

Payloads have the JSON mapping of proto3: `lowerCamelCase` names, 64-bit integers as texts.
"""

from typing import TYPE_CHECKING, Any, Final

from accord.contracts.errors import ContractError
from accord.contracts.imports.document import Draft, Imported, Source, docs_of

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import (  # type: ignore[import-untyped]
        DescriptorProto,
        FieldDescriptorProto,
    )

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
_BIG: Final = {"type": "string", "pattern": "^-?[0-9]{1,20}$"}
_SMALL: Final = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
_UNSIGNED: Final = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
_BYTES: Final = {"type": "string", "contentEncoding": "base64"}
# By the numbers of FieldDescriptorProto.Type.
_SCALARS: Final[dict[int, Any]] = {
    **dict.fromkeys((1, 2), _NUMBER),
    **dict.fromkeys((3, 4, 6, 16, 18), _BIG),
    **dict.fromkeys((5, 15, 17), _SMALL),
    **dict.fromkeys((7, 13), _UNSIGNED),
    8: {"type": "boolean"},
    9: _TEXT,
    12: _BYTES,
}
_GROUP, _MESSAGE, _ENUM, _REPEATED, _REQUIRED = 10, 11, 14, 3, 2
_KNOWN: Final[dict[str, Any]] = {
    ".google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    ".google.protobuf.Duration": {"type": "string", "pattern": "^-?[0-9]+(\\.[0-9]{1,9})?s$"},
    ".google.protobuf.Empty": {"type": "object"},
    ".google.protobuf.Struct": {"type": "object"},
    ".google.protobuf.Value": True,
    ".google.protobuf.ListValue": {"type": "array"},
    ".google.protobuf.FieldMask": _TEXT,
    ".google.protobuf.StringValue": {"type": ["string", "null"]},
    ".google.protobuf.BytesValue": {"type": ["string", "null"], "contentEncoding": "base64"},
    ".google.protobuf.BoolValue": {"type": ["boolean", "null"]},
    ".google.protobuf.Int32Value": {"type": ["integer", "null"]},
    ".google.protobuf.UInt32Value": {"type": ["integer", "null"]},
    ".google.protobuf.Int64Value": {"type": ["string", "null"]},
    ".google.protobuf.UInt64Value": {"type": ["string", "null"]},
    ".google.protobuf.DoubleValue": {"type": ["number", "null"]},
    ".google.protobuf.FloatValue": {"type": ["number", "null"]},
}


def read_protobuf(data: bytes, identity: str) -> Imported:
    """The contract of the services of a FileDescriptorSet; ContractError if it is none."""
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    except ImportError as error:
        raise ContractError(
            "reading protobuf descriptors needs protobuf", mend="pip install protobuf"
        ) from error
    read = FileDescriptorSet()
    try:
        read.ParseFromString(data)
    except DecodeError as error:
        raise ContractError(
            "this is no set of protobuf descriptors",
            mend="write one with `protoc --include_imports --descriptor_set_out=FILE`",
        ) from error
    source = Source({}, "protobuf")
    types = _Types(source)
    for file in read.file:
        for message in file.message_type:
            types.add(f".{file.package}" if file.package else "", message)
        for enum in file.enum_type:
            types.enums[f".{file.package}.{enum.name}" if file.package else f".{enum.name}"] = [
                value.name for value in enum.value
            ]
    draft = Draft(source, identity, {}, identity)
    for file in read.file:
        comments = {
            tuple(each.path): each.leading_comments for each in file.source_code_info.location
        }
        for at, service in enumerate(file.service):
            for number, method in enumerate(service.method):
                place = f"/{service.name}/{method.name}"
                docs = docs_of(comments.get((6, at, 2, number)), comments.get((6, at)))
                if method.client_streaming:
                    source.lose(place, "a stream of requests; use an operation with signals")
                    continue
                name = draft.name(f"{service.name} {method.name}")
                request = _declare(draft, types, method.input_type)
                answer = _declare(draft, types, method.output_type)
                if method.server_streaming:
                    draft.contract.feed(name, request, answer, **docs)
                else:
                    draft.contract.rpc(name, request, answer, **docs)
                draft.has_callers = True
                if method.HasField("options") and method.options.ListFields():
                    source.lose(place, "options of a method")
    if not draft.has_callers:
        raise ContractError(
            "the descriptors have no service with a method that can be carried over"
        )
    return draft.imported()


def _declare(draft: Draft, types: "_Types", name: str) -> str:
    place = name.replace(".", "/")
    return draft.schema(name.rpartition(".")[2], types.schema(name), place)


class _Types:
    """Messages and enums by full name, as JSON Schemas."""

    def __init__(self, source: Source) -> None:
        self.messages: dict[str, DescriptorProto] = {}
        self.enums: dict[str, list[str]] = {}
        self._source = source

    def add(self, prefix: str, message: "DescriptorProto") -> None:
        """Know a message and what is declared in it."""
        name = f"{prefix}.{message.name}"
        self.messages[name] = message
        for inner in message.nested_type:
            self.add(name, inner)
        for enum in message.enum_type:
            self.enums[f"{name}.{enum.name}"] = [value.name for value in enum.value]

    def schema(self, name: str, within: tuple[str, ...] = ()) -> Any:
        """The schema of a message."""
        if name in _KNOWN:
            return _KNOWN[name]
        place = name.replace(".", "/")
        message = self.messages.get(name)
        if message is None:
            self._source.lose(
                place, "the descriptors do not have this message; any value is accepted"
            )
            return True
        if name in within:
            self._source.lose(place, "a recursive message: from there on, any value is accepted")
            return True
        if len(within) > 40:
            raise ContractError(f"the message {name} is nested too deeply")
        real = {field.oneof_index for field in message.field if _in_oneof(field)}
        for index in real:
            self._source.lose(
                f"{place}/{message.oneof_decl[index].name}", "that only one of these may be given"
            )
        if message.extension_range or message.extension:
            self._source.lose(place, "extensions")
        return {
            "type": "object",
            "properties": {
                field.json_name or field.name: self._field(field, place, (*within, name))
                for field in message.field
            },
            "required": [
                field.json_name or field.name for field in message.field if field.label == _REQUIRED
            ],
        }

    def _field(self, field: "FieldDescriptorProto", place: str, within: tuple[str, ...]) -> Any:
        entry = self.messages.get(field.type_name)
        if entry is not None and entry.options.map_entry:
            return {
                "type": "object",
                "additionalProperties": self._value(entry.field[1], place, within),
            }
        value = self._value(field, place, within)
        return {"type": "array", "items": value} if field.label == _REPEATED else value

    def _value(self, field: "FieldDescriptorProto", place: str, within: tuple[str, ...]) -> Any:
        if field.type == _ENUM:
            return (
                {"enum": self.enums.get(field.type_name, [])}
                if field.type_name in self.enums
                else _TEXT
            )
        if field.type == _MESSAGE:
            return self.schema(field.type_name, within)
        if field.type == _GROUP:
            self._source.lose(f"{place}/{field.name}", "a group; any value is accepted")
            return True
        return _SCALARS.get(field.type, True)


def _in_oneof(field: "FieldDescriptorProto") -> bool:
    return field.HasField("oneof_index") and not field.proto3_optional
