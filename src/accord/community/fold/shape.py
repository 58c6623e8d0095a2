"""The shape of a written state, as a JSON schema; docs/concepts/fold.md explains every member."""

from typing import Any, Final

from accord.community.fold.verdicts import Status
from accord.kernel.schema import Schema, compile_schema

_Shape = dict[str, Any]


def _object(optional: tuple[str, ...] = (), /, **members: Any) -> _Shape:
    return {
        "type": "object",
        "properties": members,
        "required": [name for name in members if name not in optional],
        "additionalProperties": False,
    }


def _list(item: _Shape) -> _Shape:
    return {"type": "array", "items": item}


def _or_null(shape: _Shape) -> _Shape:
    return {"anyOf": [shape, {"type": "null"}]}


_TEXT: Final[_Shape] = {"type": "string"}
_COUNT: Final[_Shape] = {"type": "integer", "minimum": 0, "maximum": 2**53 - 1}
_LAMPORT: Final[_Shape] = {"type": "integer", "minimum": -1, "maximum": 2**53 - 1}
_HASH: Final[_Shape] = {"type": "string", "pattern": "^blake3:[0-9a-f]{64}$"}
_ID: Final[_Shape] = {"type": "string", "pattern": "^ed25519:[A-Za-z0-9_-]{43}$"}
_ULID: Final[_Shape] = {"type": "string", "pattern": "^[0-7][0-9A-HJKMNP-TV-Z]{25}$"}
_NUMBER: Final[_Shape] = {
    "type": "string",
    "pattern": "^-?[0-9]{1,3}([.][0-9]{1,40})?(e-[0-9]{1,3})?$",
}
_TIME: Final[_Shape] = {
    "type": "string",
    "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,3})?Z$",
}
_FLAG: Final[_Shape] = {"type": "boolean"}
_LEVEL: Final[_Shape] = {"enum": ["member", "trusted", "anchor"]}
_POSITION: Final = _object(lamport=_COUNT, event_id=_ULID, hash=_HASH)
_COUNTS: Final = _object(**{status.value: _COUNT for status in Status})
_BROKEN: Final = ["chain.broken", "chain.lamport"]

_STATE: Final = _object(
    version={"const": 1},
    community_id=_ID,
    name=_TEXT,
    created_at={"anyOf": [_TIME, {"const": ""}]},
    policy=_or_null(
        _object(
            ("min_signatures_to_promote", "unchained_events"),
            min_signatures_to_invite=_COUNT,
            min_signatures_to_promote=_COUNT,
            min_signatures_to_demote=_COUNT,
            min_signatures_to_revoke=_COUNT,
            capability_token_ttl_seconds=_COUNT,
            federation_enabled=_FLAG,
            default_member_can_invite=_FLAG,
            unchained_events=_FLAG,
        )
    ),
    head=_or_null(_POSITION),
    counts=_object(membership=_COUNTS, content=_COUNTS),
    members=_list(
        _object(node_id=_ID, level=_LEVEL, added_at=_TIME, added_by=_ID, since=_POSITION)
    ),
    revoked=_list(
        _object(
            node_id=_ID, revoked_at=_TIME, last_seq=_COUNT, last_hash=_or_null(_HASH), by=_POSITION
        )
    ),
    invites=_list(
        _object(
            event_id=_ULID,
            invitee=_ID,
            inviter=_ID,
            level=_LEVEL,
            expires_at=_TIME,
            lamport=_COUNT,
            redeemed=_FLAG,
        )
    ),
    floors=_list(
        _object(
            lamport=_COUNT,
            heads=_list(_object(author=_ID, author_seq=_COUNT, hash=_HASH)),
            state_digest=_HASH,
            by=_POSITION,
        )
    ),
    authors=_list(
        _object(
            author=_ID,
            author_seq=_COUNT,
            hash=_or_null(_HASH),
            lamport=_LAMPORT,
            seen_seq=_COUNT,
            equivocation=_or_null(
                _object(author_seq=_COUNT, events={**_list(_HASH), "minItems": 2, "maxItems": 2})
            ),
            broken=_or_null(_object(author_seq=_COUNT, rule={"enum": _BROKEN})),
        )
    ),
    manifests=_list(
        _object(
            node_id=_ID,
            display_name=_TEXT,
            endpoints=_list(
                _object(
                    transport=_TEXT,
                    host=_TEXT,
                    port=_COUNT,
                    certificate=_or_null(_TEXT),
                )
            ),
            extensions=_list(_TEXT),
            event=_HASH,
        )
    ),
    market=_list(
        _object(
            event_id=_ULID,
            author=_ID,
            client_id=_TEXT,
            lamport=_COUNT,
            created_at=_TIME,
            fields=_object(
                ("location", "tags", "ttl_seconds"),
                category=_TEXT,
                title=_TEXT,
                body=_TEXT,
                location=_object(("label",), lat=_NUMBER, lng=_NUMBER, label=_TEXT),
                tags=_list(_TEXT),
                ttl_seconds=_COUNT,
            ),
            ended=_or_null(_TEXT),
        )
    ),
    chat=_list(
        _object(
            event_id=_ULID,
            author=_ID,
            recipient=_ID,
            client_id=_TEXT,
            lamport=_COUNT,
            sent_at=_TIME,
            event=_HASH,
            attachments=_list(_object(cid=_HASH, name=_TEXT)),
            delivered_at=_or_null(_TIME),
            read_at=_or_null(_TIME),
        )
    ),
    files=_list(_object(cid=_HASH, holder=_ID, size_bytes=_COUNT)),
    corpora=_list(
        _object(
            corpus=_TEXT,
            doc_cid=_HASH,
            ingester=_ID,
            lamport=_COUNT,
            title=_or_null(_TEXT),
            language=_or_null(_TEXT),
            chunks=_COUNT,
        )
    ),
)

SHAPE: Final[Schema] = compile_schema(_STATE)
"""What a written state looks like."""
