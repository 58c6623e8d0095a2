"""Which session a message belongs to: section 5 of the notes on the specification.

Two dialects behind one function. `hermes` is what existing gateways compute, and leaves the scope
out. `scoped` has the same components and the scope, each tagged and escaped, so that two sources
that the rule keeps apart never share a key.
"""

from typing import Any, Final, Literal, get_args

from accord.relay.wire.members import bad
from accord.relay.wire.source import SessionSource

Dialect = Literal["hermes", "scoped"]
_DIALECTS: Final[tuple[Dialect, ...]] = get_args(Dialect)
_ESCAPES: Final = str.maketrans({"%": "%25", ":": "%3A", "=": "%3D"})


def read_dialect(value: Any) -> Dialect:
    """The dialect that a gateway asked for; one that says nothing gets `hermes`.

    Raises:
        RelayError: It asked for a dialect that does not exist here.
    """
    if value is None:
        return "hermes"
    for dialect in _DIALECTS:
        if value == dialect:
            return dialect
    raise bad("expected hermes or scoped", where="/session_keys")


def session_key(
    source: SessionSource,
    *,
    dialect: Dialect = "hermes",
    group_sessions_per_user: bool = True,
    thread_sessions_per_user: bool = False,
    profile: str | None = None,
) -> str:
    """The key of the session that a message from this source belongs to.

    Args:
        source: Where the message comes from.
        dialect: How the key is written.
        group_sessions_per_user: Whether each member of a group has a session of their own.
        thread_sessions_per_user: The same inside threads.
        profile: The agent's profile; none and `default` are `main`.
    """
    owner = "main" if profile is None or profile in ("", "default") else profile
    place = (owner, source.platform, source.chat_type)
    tagged = _components(source, group_sessions_per_user, thread_sessions_per_user)
    if dialect == "hermes":
        return ":".join(["agent", *place, *(part for _, part in tagged if part)])
    parts = [
        f"{tag}={part.translate(_ESCAPES)}"
        for tag, part in (("s", source.scope_id), *tagged)
        if part
    ]
    return ":".join(["agent", *(part.translate(_ESCAPES) for part in place), *parts])


def _components(
    source: SessionSource, group_per_user: bool, thread_per_user: bool
) -> list[tuple[str, str | None]]:
    """What keeps sessions apart, tagged: the chat, the thread and the user."""
    chat, thread = source.chat_id, source.thread_id
    user = source.user_id_alt or source.user_id
    if source.platform == "whatsapp":
        user = _bare_number(user)
        chat = (_bare_number(chat) or "") if source.is_dm else chat
    if source.is_dm:
        return [("c", chat) if chat else ("u", user), ("t", thread)]
    is_per_user = group_per_user and (thread_per_user or not thread)
    return [("c", chat), ("t", thread), ("u", user if is_per_user else None)]


def _bare_number(address: str | None) -> str | None:
    """A WhatsApp address without device, server and plus sign; others stay as they are."""
    if not address:
        return address
    return address.partition("@")[0].partition(":")[0].removeprefix("+") or address
