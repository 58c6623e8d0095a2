"""Which posts an answer shows, and how a post made for somebody else is named.

Pure: posts come from the fold's view of the market, in the order of the log.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from blake3 import blake3

Shown = dict[str, Any]

_CALLER_DIGITS: Final = 20
_CLIENT_DIGITS: Final = 40


def shown(post: Mapping[str, Any]) -> Shown:
    """A post as answers show it."""
    return {"tags": [], **post}


def fits(post: Mapping[str, Any], category: str | None, tags: Collection[str]) -> bool:
    """Whether a post is of a category, if one is asked for, and has every tag."""
    if category is not None and post["category"] != category:
        return False
    held = {tag.casefold() for tag in post.get("tags", ())}
    return all(tag.casefold() in held for tag in tags)


def page(posts: Sequence[Shown], limit: int, head: int) -> tuple[list[Shown], int]:
    """The first posts, and the lamport after which to ask for more.

    Posts of one lamport stay together: whoever asks for more behind it would miss the rest.

    Args:
        posts: All that fit, in the order of the log.
        limit: How many to give.
        head: The lamport of the log, up to which everything was seen when nothing is left out.
    """
    if len(posts) <= limit:
        return list(posts), max(head, 0)
    cut = posts[limit]["lamport"]
    some = [post for post in posts[:limit] if post["lamport"] < cut]
    if not some:
        # All of the first have one lamport: better a few too many than the same again for ever.
        some = [post for post in posts if post["lamport"] == cut]
    return some, some[-1]["lamport"]


def client_id_for(caller: str, client_id: str) -> str:
    """The client id under which this node posts for somebody else.

    Events are this node's own, and their client ids are its own, too; so each caller has a part of
    them for itself, by which its posts are known as its again.
    """
    return _mark(caller) + blake3(client_id.encode()).hexdigest()[:_CLIENT_DIGITS]


def is_for(caller: str, client_id: str) -> bool:
    """Whether a post of this node was made for somebody."""
    return client_id.startswith(_mark(caller)) and len(client_id) == _CALLER_DIGITS + 2 + (
        _CLIENT_DIGITS
    )


def _mark(caller: str) -> str:
    return f"~{blake3(caller.encode()).hexdigest()[:_CALLER_DIGITS]}."
