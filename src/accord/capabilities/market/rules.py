"""Selection of posts, and the client ids of posts made for somebody else.

Pure: posts come from the community's view of the market, in log order.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from blake3 import blake3

ShownPost = dict[str, Any]

_CALLER_DIGITS: Final = 20
_CLIENT_DIGITS: Final = 40


def show_post(post: Mapping[str, Any]) -> ShownPost:
    """Return a post as in answers."""
    return {"tags": [], **post}


def matches(post: Mapping[str, Any], category: str | None, tags: Collection[str]) -> bool:
    """Whether a post has the category, if one is given, and every tag."""
    if category is not None and post["category"] != category:
        return False
    held = {tag.casefold() for tag in post.get("tags", ())}
    return all(tag.casefold() in held for tag in tags)


def page(posts: Sequence[ShownPost], limit: int, head: int) -> tuple[list[ShownPost], int]:
    """Return the first posts, and the lamport after which to ask for more.

    Posts of one lamport stay together, since the next page begins after it. `head` is the lamport
    of the log, which is returned when nothing is left out.
    """
    if len(posts) <= limit:
        return list(posts), max(head, 0)
    cut = posts[limit]["lamport"]
    some = [post for post in posts[:limit] if post["lamport"] < cut]
    if not some:
        # All posts up to here have one lamport: exceed the limit rather than never advance.
        some = [post for post in posts if post["lamport"] == cut]
    return some, some[-1]["lamport"]


def client_id_for(caller: str, client_id: str) -> str:
    """Return the client id of a post that version 0.2 made for another member, and of its end.

    Each caller has a range of this node's client ids, by which its posts are recognised.
    """
    return _caller_mark(caller) + blake3(client_id.encode()).hexdigest()[:_CLIENT_DIGITS]


def is_posted_for(caller: str, client_id: str) -> bool:
    """Whether a post of this node was made for a caller."""
    return client_id.startswith(_caller_mark(caller)) and len(client_id) == _CALLER_DIGITS + 2 + (
        _CLIENT_DIGITS
    )


def _caller_mark(caller: str) -> str:
    return f"~{blake3(caller.encode()).hexdigest()[:_CALLER_DIGITS]}."
