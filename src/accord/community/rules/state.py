"""The state of a community, and its one encoding, which is equal on all nodes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from blake3 import blake3

from accord.community.errors import bad_request
from accord.community.rules import formats
from accord.community.rules.chains import Chain
from accord.community.rules.content import (
    DEFAULT_POST_TTL_SECONDS,
    ChatRecord,
    Content,
    CorpusDocument,
    ManifestRecord,
    MarketPost,
    client_key,
)
from accord.community.rules.event import MAX_AHEAD_SECONDS, Position
from accord.community.rules.formats import Level
from accord.community.rules.membership import Cutoff, Floor, InviteRecord, Member, Roster
from accord.community.rules.verdicts import VERDICTS, Status
from accord.kernel import canonical
from accord.kernel.clock import format_time, parse_time
from accord.kernel.schema import Schema, compile_schema

_NOT_SHOWN: Final = frozenset({"client_id", "ttl_seconds"})

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
            ("min_signatures_to_promote", "retention_days", "unchained_events"),
            min_signatures_to_invite=_COUNT,
            min_signatures_to_promote=_COUNT,
            min_signatures_to_demote=_COUNT,
            min_signatures_to_revoke=_COUNT,
            capability_token_ttl_seconds=_COUNT,
            federation_enabled=_FLAG,
            default_member_can_invite=_FLAG,
            unchained_events=_FLAG,
            retention_days=_COUNT,
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
            ("withdrawn",),
            event_id=_ULID,
            invitee=_ID,
            inviter=_ID,
            level=_LEVEL,
            expires_at=_TIME,
            lamport=_COUNT,
            redeemed=_FLAG,
            withdrawn={"const": True},
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

STATE_SCHEMA: Final[Schema] = compile_schema(_STATE)
"""What a written state looks like."""


STATE_VERSION: Final = 1
SECTIONS: Final = ("manifests", "market", "chat", "files", "corpora")
"""The members of a state that come from content: lists of items."""

JsonObject = dict[str, Any]


class StateItem(NamedTuple):
    """One entry of a section; a section is ordered by `key` and `second`, without ties."""

    section: str
    key: str
    second: str
    value: JsonObject


@dataclass(frozen=True, slots=True)
class CommunityState:
    """The result of all events of a log; `membership_counts` counts membership events by status."""

    community_id: str
    roster: Roster
    chains: Mapping[str, Chain]
    content: Content
    membership_counts: Mapping[Status, int]

    @property
    def lamport(self) -> int:
        """The greatest lamport that is not quarantined; -1 before the first event."""
        return -1 if self.content.head is None else self.content.head.lamport

    @property
    def is_founded(self) -> bool:
        """Whether the founding event is present."""
        return self.roster.policy is not None

    def level_of(self, node_id: str) -> Level:
        """The trust level of a node."""
        return self.roster.level(node_id)

    def is_revoked(self, node_id: str) -> bool:
        """Whether a node was revoked."""
        return node_id in self.roster.revoked

    def extensions_of(self, node_id: str) -> frozenset[str]:
        """The protocol extensions that a node has ever declared in the log."""
        manifest = self.content.manifests.get(node_id)
        return frozenset(() if manifest is None else manifest.extensions)

    def open_invites(self, node_id: str, as_of: float) -> list[str]:
        """The ids of the invites that a node may redeem."""
        return [
            event_id
            for (event_id, invitee), invites in sorted(self.roster.invites.items())
            if invitee == node_id
            and any(one.is_open and as_of <= parse_time(one.expires_at) for one in invites)
        ]

    def members(self) -> list[dict[str, Any]]:
        """All members, by node id."""
        manifests = self.content.manifests
        return [
            {
                "node_id": node_id,
                "display_name": manifests[node_id].display_name if node_id in manifests else None,
                "level": member.level.text,
                "added_at": member.added_at,
                "added_by": member.added_by,
            }
            for node_id, member in sorted(self.roster.members.items())
        ]

    def community_manifest(self) -> dict[str, Any]:
        """The unsigned community manifest: section 6.2 of the specification."""
        roster = self.roster
        return {
            "version": 1,
            "community_id": self.community_id,
            "name": roster.name,
            "root_key": self.community_id,
            "created_at": roster.created_at,
            "lamport_at_creation": 0,
            "policy": dict(roster.policy or {}),
            "members": [
                {name: each[name] for name in ("node_id", "level", "added_at", "added_by")}
                for each in self.members()
            ],
            "revoked": [
                {"node_id": node_id, "revoked_at": cutoff.revoked_at}
                for node_id, cutoff in sorted(roster.revoked.items())
            ],
            "head_lamport": self.lamport,
        }

    def market(self, as_of: float) -> list[dict[str, Any]]:
        """The open posts that have not expired, in log order; posts of the future are not shown."""
        found = [
            {
                "event_id": event_id,
                "lamport": post.lamport,
                "author": post.author,
                **{name: value for name, value in post.fields.items() if name not in _NOT_SHOWN},
                "created_at": post.created_at,
                "expires_at": format_time(_runs_out(post)),
            }
            for event_id, posts in list(self.content.posts.items())
            for post in posts
            if post.ended is None
            and as_of < _runs_out(post)
            and parse_time(post.created_at) <= as_of + MAX_AHEAD_SECONDS
        ]
        return sorted(found, key=lambda post: (post["lamport"], post["event_id"], post["author"]))

    def corpora(self) -> list[dict[str, Any]]:
        """Every corpus with its documents."""
        found: dict[str, dict[str, Any]] = {}
        for (name, cid), document in sorted(self.content.documents.items()):
            corpus = found.setdefault(name, {"name": name, "docs": 0, "chunks": 0, "documents": []})
            corpus["docs"] += 1
            corpus["chunks"] += document.chunks
            corpus["documents"].append(
                {
                    "doc_cid": cid,
                    "title": document.title,
                    "language": document.language,
                    "chunks": document.chunks,
                    "ingester": document.ingester,
                }
            )
        return list(found.values())


def _runs_out(post: MarketPost) -> float:
    ttl: int = post.fields.get("ttl_seconds", DEFAULT_POST_TTL_SECONDS)
    return parse_time(post.created_at) + ttl


def state_bytes(state: CommunityState) -> bytes:
    """Encode a state."""
    return canonical.encode(state_object(state))


def digest_of_state(state: bytes) -> str:
    """The digest by which a retention floor names a state."""
    return "blake3:" + blake3(state).hexdigest()


def state_object(state: CommunityState) -> JsonObject:
    """The JSON object whose canonical form `state_bytes` returns."""
    roster, content = state.roster, state.content
    sections: dict[str, list[JsonObject]] = {name: [] for name in SECTIONS}
    for item in state_items(content):
        sections[item.section].append(item.value)
    return {
        "version": STATE_VERSION,
        "community_id": state.community_id,
        "name": roster.name,
        "created_at": roster.created_at,
        "policy": None if roster.policy is None else dict(roster.policy),
        "head": None if content.head is None else _position(content.head),
        "counts": {
            "membership": _counts(state.membership_counts),
            "content": _counts(content.counts),
        },
        "members": [_member(*each) for each in sorted(roster.members.items())],
        "revoked": [_cutoff(*each) for each in sorted(roster.revoked.items())],
        "invites": [
            _invite(name, invite)
            for name, invites in sorted(roster.invites.items())
            for invite in sorted(invites)
        ],
        "floors": [_floor(each) for each in roster.floors],
        "authors": [_chain(*each) for each in sorted(state.chains.items())],
        **sections,
    }


def state_items(content: Content) -> Iterator[StateItem]:
    """The content items of a state, section by section, in order."""
    for node_id, manifest in sorted(content.manifests.items()):
        yield StateItem("manifests", node_id, "", _manifest(node_id, manifest))
    for event_id, posts in sorted(content.posts.items()):
        for post in sorted(posts, key=lambda post: post.author):
            yield StateItem("market", event_id, post.author, _post(event_id, post))
    for event_id, messages in sorted(content.messages.items()):
        for message in sorted(messages, key=lambda message: message.author):
            yield StateItem("chat", event_id, message.author, _message(event_id, message))
    for (cid, holder), size in sorted(content.files.items()):
        held = {"cid": cid, "holder": holder, "size_bytes": size}
        yield StateItem("files", cid, holder, held)
    for name, document in sorted(content.documents.items()):
        yield StateItem("corpora", *name, _document(name, document))


def _counts(counts: Mapping[Status, int]) -> JsonObject:
    return {status.value: counts[status] for status in Status}


def _position(position: Position) -> JsonObject:
    return {
        "lamport": position.lamport,
        "event_id": position.event_id,
        "hash": "blake3:" + position.digest.hex(),
    }


def _member(node_id: str, member: Member) -> JsonObject:
    return {
        "node_id": node_id,
        "level": member.level.text,
        "added_at": member.added_at,
        "added_by": member.added_by,
        "since": _position(member.since),
    }


def _cutoff(node_id: str, cutoff: Cutoff) -> JsonObject:
    return {
        "node_id": node_id,
        "revoked_at": cutoff.revoked_at,
        "last_seq": cutoff.last_seq,
        "last_hash": cutoff.last_hash,
        "by": _position(cutoff.position),
    }


def _invite(name: tuple[str, str], invite: InviteRecord) -> JsonObject:
    told: JsonObject = {
        "event_id": name[0],
        "invitee": name[1],
        "inviter": invite.inviter,
        "level": invite.level.text,
        "expires_at": invite.expires_at,
        "lamport": invite.lamport,
        "redeemed": invite.redeemed,
    }
    # Left out if false, so that states without withdrawals keep their bytes.
    return {**told, "withdrawn": True} if invite.withdrawn else told


def _floor(floor: Floor) -> JsonObject:
    return {
        "lamport": floor.lamport,
        "heads": [
            {"author": author, "author_seq": seq, "hash": head}
            for author, (seq, head) in sorted(floor.heads.items())
        ],
        "state_digest": floor.state_digest,
        "by": _position(floor.position),
    }


def _chain(author: str, chain: Chain) -> JsonObject:
    fork, cut = chain.fork, chain.cut
    return {
        "author": author,
        "author_seq": chain.head_seq,
        "hash": chain.head_hash,
        "lamport": chain.head_lamport,
        "seen_seq": chain.seen_seq,
        "equivocation": None
        if fork is None
        else {
            "author_seq": fork[0],
            "events": ["blake3:" + fork[1].hex(), "blake3:" + fork[2].hex()],
        },
        "broken": None if cut is None else {"author_seq": cut[0], "rule": cut[1].rule},
    }


def _manifest(node_id: str, manifest: ManifestRecord) -> JsonObject:
    return {
        "node_id": node_id,
        "display_name": manifest.display_name,
        "endpoints": [
            {"transport": transport, "host": host, "port": port, "certificate": certificate}
            for transport, host, port, certificate in manifest.endpoints
        ],
        "extensions": list(manifest.extensions),
        "event": manifest.event,
    }


def _post(event_id: str, post: MarketPost) -> JsonObject:
    return {
        "event_id": event_id,
        "author": post.author,
        "client_id": post.client_id,
        "lamport": post.lamport,
        "created_at": post.created_at,
        "fields": {
            name: _degrees_to_text(name, value)
            for name, value in post.fields.items()
            if name != "client_id"
        },
        "ended": post.ended,
    }


def _message(event_id: str, message: ChatRecord) -> JsonObject:
    return {
        "event_id": event_id,
        "author": message.author,
        "recipient": message.recipient,
        "client_id": message.client_id,
        "lamport": message.lamport,
        "sent_at": message.sent_at,
        "event": message.event,
        "attachments": [{"cid": cid, "name": name} for cid, name in message.attachments],
        "delivered_at": message.delivered_at,
        "read_at": message.read_at,
    }


def _document(name: tuple[str, str], document: CorpusDocument) -> JsonObject:
    return {
        "corpus": name[0],
        "doc_cid": name[1],
        "ingester": document.ingester,
        "lamport": document.lamport,
        "title": document.title,
        "language": document.language,
        "chunks": document.chunks,
    }


def _degrees_to_text(name: str, value: Any) -> Any:
    """Degrees of a post's location are the only numbers that are not integers."""
    if name != "location":
        return value
    return {
        each: degree if isinstance(degree, str) else canonical.encode(degree).decode()
        for each, degree in value.items()
    }


MAX_STATE_BYTES: Final = 1024 * 1024 * 1024
"""The largest state that is read."""


def read_state(raw: bytes) -> CommunityState:
    """Read a state that `state_bytes` wrote; raises `bad_request`."""
    refusal = bad_request("this is not a state that a fold wrote")
    try:
        payload = canonical.decode(raw, max_bytes=MAX_STATE_BYTES)
    except canonical.CanonicalError:
        raise refusal from None
    if not STATE_SCHEMA.is_valid(payload) or not _has_moments(payload):
        raise refusal
    state = _read_state(payload)
    if state_bytes(state) != raw:
        raise refusal
    return state


def _has_moments(payload: JsonObject) -> bool:
    """Whether all times that views compute with are valid."""
    posted = (each["created_at"] for each in payload["market"])
    expires = (each["expires_at"] for each in payload["invites"])
    return all(map(formats.is_time, (*posted, *expires)))


def _read_state(payload: JsonObject) -> CommunityState:
    roster = Roster(payload["community_id"], {})
    roster.name, roster.created_at = payload["name"], payload["created_at"]
    roster.policy = payload["policy"]
    roster.members = {
        each["node_id"]: Member(
            Level.parse(each["level"]),
            each["added_at"],
            each["added_by"],
            _position_from(each["since"]),
        )
        for each in payload["members"]
    }
    roster.revoked = {
        each["node_id"]: Cutoff(
            each["last_seq"], each["last_hash"], _position_from(each["by"]), each["revoked_at"]
        )
        for each in payload["revoked"]
    }
    roster.cutoffs = dict(roster.revoked)
    for each in payload["invites"]:
        name = each["event_id"], each["invitee"]
        invite = InviteRecord(
            each["inviter"],
            Level.parse(each["level"]),
            each["expires_at"],
            each["lamport"],
            each["redeemed"],
            each.get("withdrawn", False),
        )
        roster.invites[name] = (*roster.invites.get(name, ()), invite)
    roster.floors = [
        Floor(
            each["lamport"],
            {head["author"]: (head["author_seq"], head["hash"]) for head in each["heads"]},
            each["state_digest"],
            _position_from(each["by"]),
        )
        for each in payload["floors"]
    ]
    chains = {each["author"]: _chain_from(each) for each in payload["authors"]}
    counts = _counts_from(payload["counts"]["membership"])
    return CommunityState(payload["community_id"], roster, chains, _read_content(payload), counts)


def _read_content(payload: JsonObject) -> Content:
    content = Content()
    content.head = None if payload["head"] is None else _position_from(payload["head"])
    content.counts = _counts_from(payload["counts"]["content"])
    for each in payload["manifests"]:
        content.manifests[each["node_id"]] = ManifestRecord(
            each["display_name"],
            tuple(
                (one["transport"], one["host"], one["port"], one["certificate"])
                for one in each["endpoints"]
            ),
            tuple(each["extensions"]),
            each["event"],
        )
    for each in payload["market"]:
        post = MarketPost(
            each["author"],
            each["client_id"],
            each["lamport"],
            each["created_at"],
            {name: _degrees_from_text(name, value) for name, value in each["fields"].items()},
            each["ended"],
        )
        content.posts[each["event_id"]] = (*content.posts.get(each["event_id"], ()), post)
        content.clients[client_key("post", post.author, post.client_id)] = True
    for each in payload["chat"]:
        message = ChatRecord(
            each["author"],
            each["recipient"],
            each["client_id"],
            each["lamport"],
            each["sent_at"],
            each["event"],
            tuple((one["cid"], one["name"]) for one in each["attachments"]),
            each["delivered_at"],
            each["read_at"],
        )
        same = content.messages.get(each["event_id"], ())
        content.messages[each["event_id"]] = (*same, message)
        content.clients[client_key("chat", message.author, message.client_id)] = True
    for each in payload["files"]:
        content.files[each["cid"], each["holder"]] = each["size_bytes"]
    for each in payload["corpora"]:
        content.documents[each["corpus"], each["doc_cid"]] = CorpusDocument(
            each["ingester"], each["lamport"], each["title"], each["language"], each["chunks"]
        )
    return content


def _counts_from(payload: JsonObject) -> dict[Status, int]:
    return {status: payload[status.value] for status in Status}


def _position_from(payload: JsonObject) -> Position:
    digest = bytes.fromhex(payload["hash"].removeprefix("blake3:"))
    return Position(payload["lamport"], payload["event_id"], digest)


def _chain_from(payload: JsonObject) -> Chain:
    fork, cut = payload["equivocation"], payload["broken"]
    return Chain(
        payload["author_seq"],
        payload["hash"],
        payload["lamport"],
        payload["seen_seq"],
        None
        if fork is None
        else (
            fork["author_seq"],
            bytes.fromhex(fork["events"][0].removeprefix("blake3:")),
            bytes.fromhex(fork["events"][1].removeprefix("blake3:")),
        ),
        None if cut is None else (cut["author_seq"], VERDICTS[cut["rule"]]),
    )


def _degrees_from_text(name: str, value: Any) -> Any:
    if name != "location":
        return value
    return {
        each: text if each == "label" else canonical.decode(text.encode())
        for each, text in value.items()
    }
