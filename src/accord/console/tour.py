"""The first steps of a new station: five of them, the last of which is an answered question.

What is done is read from the station itself, so that a step counts however it was done. The steps
are shown until a question is answered; a browser can hide them before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accord.community.client import Client
from accord.community.errors import Code, CommunityError
from accord.console.messages import tr
from accord.console.page import Visit
from accord.console.sessions import PATH


@dataclass(frozen=True, slots=True)
class Step:
    """A step, where it is done, and whether it is."""

    what: str
    why: str
    path: str
    verb: str
    is_done: bool


async def first_steps(
    visit: Visit, client: Client | None, community: Mapping[str, Any] | None
) -> list[Step]:
    """The steps; none if a question of this user was answered already.

    Args:
        client: In the community, if there is one.
    """
    answers = visit.parts.answers
    if answers is None or await answers.conversations.of(visit.session.user).has_answers():
        return []
    corpora = await _listed(client, "rag.list_corpora", "corpora")
    posts = await _listed(client, "market.list", "posts")
    is_shared = community is not None and (community["members"] > 1 or bool(community["invites"]))
    return [
        Step(
            tr("Be in a community"),
            tr("Found one of your own, or join by an invite link."),
            f"{PATH}/#community",
            tr("Found or join"),
            community is not None,
        ),
        Step(
            tr("Invite somebody"),
            tr("You need the id of their station, which its Home shows."),
            f"{PATH}/members#invite",
            tr("Invite"),
            is_shared,
        ),
        Step(
            tr("Post on the market"),
            tr("Say what you offer or look for; every member sees it."),
            f"{PATH}/market#post",
            tr("Post"),
            bool(posts),
        ),
        Step(
            tr("Add a document"),
            tr("A text, a PDF or notes: the station can answer from it."),
            f"{PATH}/files#add",
            tr("Add"),
            bool(corpora),
        ),
        Step(
            tr("Ask a question about it"),
            tr("The answer names the passages that it rests on."),
            f"{PATH}/ask",
            tr("Ask"),
            is_done=False,
        ),
    ]


async def _listed(client: Client | None, capability: str, name: str) -> list[Any]:
    """What a capability of this station lists; nothing where it is not offered."""
    if client is None:
        return []
    try:
        answer = await client.call(capability, {}, {})
    except CommunityError as error:
        if error.code not in (Code.NOT_FOUND, Code.NOT_IMPLEMENTED):
            raise
        return []
    return list(answer["output"][name])
