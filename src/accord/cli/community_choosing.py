"""Which community and which member a person means by a name or an id, or the beginning of one.

Owns the rule and what is said when nobody is meant, or several. It asks nobody.
"""

from typing import TYPE_CHECKING, Any

from accord.cli.contract_reading import printable

if TYPE_CHECKING:
    from accord.community.errors import CommunityError


def choose_community(communities: list[dict[str, Any]], wanted: str | None) -> dict[str, Any]:
    """The community that a person means.

    Raises:
        CommunityError: None is meant, or more than one.
    """
    from accord.community.envelope.names import display_id

    def is_meant(each: dict[str, Any]) -> bool:
        text = (wanted or "").lower()
        return each["name"].lower().startswith(text) or any(
            form.lower().startswith(text)
            for form in (
                each["community_id"],
                each["community_id"].removeprefix("ed25519:"),
                display_id(each["community_id"]),
            )
        )

    if not communities:
        raise _no_community(
            "this node is in no community", "`accord community create` or `accord community join`"
        )
    exact = [each for each in communities if wanted in (each["name"], each["community_id"])]
    found = exact or [each for each in communities if is_meant(each)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise _no_community(
            f"this node is in no community {printable(wanted or '')!r}",
            "`accord community list` shows them",
        )
    names = ", ".join(
        f"{printable(each['name'])} ({display_id(each['community_id'])})" for each in found[:8]
    )
    raise _no_community(
        f"several communities are meant: {names}",
        f"choose one by its id, such as --community {display_id(found[0]['community_id'])}",
    )


def choose_node(members: list[dict[str, Any]], wanted: str) -> dict[str, Any]:
    """The member that a person means by a full id, a display id or a display name.

    Raises:
        CommunityError: None is meant, or more than one.
    """
    from accord.community.envelope.names import display_id

    for form in ("node_id", "display_id", "display_name"):
        found = [
            each
            for each in members
            if (display_id(each["node_id"]) if form == "display_id" else each[form]) == wanted
        ]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(display_id(each["node_id"]) for each in found[:8])
            raise _no_community(
                f"several members are called {printable(wanted)!r}: {ids}", "give the id"
            )
    raise _no_community(
        f"no member is {printable(wanted[:80])!r}", "`accord community members` shows them all"
    )


def _no_community(what: str, mend: str) -> "CommunityError":
    from accord.community.errors import Code, CommunityError

    return CommunityError(Code.NOT_FOUND, what, mend=mend)
