"""What waits for the operator, each with the forms that settle it where one step is enough.

Home shows them. What cannot be counted is a need itself, so that nothing looks well by mistake.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from accord.community.client import Client
from accord.community.rules.formats import display_id
from accord.console.messages import tr, word
from accord.console.page import Visit
from accord.console.sessions import PATH
from accord.console.templates import MemberNames
from accord.kernel.errors import AccordError
from accord.relay.connector.outbox_store import RowState

_LETTERS: Final = 100
_MOST: Final = 5
_MESSAGES: Final = 100
_AGENTS: Final = f"{PATH}/agents"
_CONTRACTS: Final = f"{PATH}/contracts"


@dataclass(frozen=True, slots=True)
class Settlement:
    """A form of one button that settles a need, with the fields that it sends."""

    label: str
    path: str
    fields: tuple[tuple[str, str], ...]
    is_dangerous: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    """Something that needs attention, and the page for it."""

    what: str
    path: str = ""
    why: str = ""
    settlements: tuple[Settlement, ...] = ()


def plane_needs(visit: Visit) -> list[Need]:
    """Planes and their parts that are in trouble."""
    return [
        Need(
            tr("{name} is {state}", name=word(each.name), state=word(each.state)),
            f"{PATH}/log",
            each.reason,
        )
        for plane in visit.parts.planes()
        for each in (plane, *plane.parts)
        # What waits for a decision is among the plans.
        if not (each.is_well or each.is_waiting)
    ]


async def relay_needs(visit: Visit) -> list[Need]:
    """Dead letters and replies that were given up."""
    connector = visit.parts.relay()
    if connector is None:
        return []
    try:
        letters = await connector.delivery.dead_letters(limit=_LETTERS)
        replies = await connector.delivery.outbox(limit=_LETTERS, dead=True)
    except AccordError as error:
        return [Need(tr("Dead letters cannot be counted"), why=str(error))]
    owners = Counter(each.instance for each in letters)
    again = tuple(
        Settlement(
            tr("Deliver all of {owner} again", owner=owner),
            f"{_AGENTS}/replay",
            (("instance", owner), ("letter", "all")),
        )
        for owner in owners
    )
    needs = []
    if letters:
        what = tr("Messages that could not be delivered: {count}", count=_count(len(letters)))
        needs.append(
            Need(what, f"{_AGENTS}#letters", _reasons(each.reason for each in letters), again)
        )
    if replies:
        is_one = len(replies) == 1
        chosen = (("reply", str(replies[0].number) if is_one else "all"),)
        label = tr("Try again") if is_one else tr("Try all again")
        what = tr("Replies that could not be sent: {count}", count=_count(len(replies)))
        why = _reasons(each.error or each.state for each in replies)
        if any(each.state == RowState.UNKNOWN.value for each in replies):
            doubt = tr(
                "A reply whose outcome is unknown may have been sent; tried again, it may be seen "
                "twice."
            )
            why = f"{why}. {doubt}"
        again = (Settlement(label, f"{_AGENTS}/retry", chosen),)
        needs.append(Need(what, f"{_AGENTS}#replies", why, again))
    return needs


async def plan_needs(visit: Visit) -> list[Need]:
    """Plans that wait for a decision; one that others may fail on is looked at first."""
    authority = visit.parts.authority()
    if authority is None:
        return []
    try:
        told = await authority.operating.do("plans/list", {"state": "pending"})
    except AccordError as error:
        return [Need(tr("Plans cannot be counted"), why=str(error))]
    plans: list[dict[str, Any]] = told["plans"]
    if len(plans) > _MOST:
        return [
            Need(
                tr("Plans that wait for a decision: {count}", count=len(plans)),
                f"{_CONTRACTS}#plans",
            )
        ]
    return [_plan_need(each) for each in plans]


async def chat_needs(client: Client, names: MemberNames) -> list[Need]:
    """Unread messages, by whom."""
    answer = await client.call("chat.history", {}, {"limit": _MESSAGES})
    unread = Counter(
        each["from"]
        for each in answer["output"]["messages"]
        if each["to"] == client.node_id and each["read_at"] is None
    )
    return [
        Need(
            tr("Unread messages from {name}: {count}", name=names.name(peer), count=count),
            f"{PATH}/chat?peer={quote(peer, safe='')}",
            settlements=(Settlement(tr("Mark as read"), f"{PATH}/chat/read", (("peer", peer),)),),
        )
        for peer, count in unread.items()
    ]


def invite_needs(community: Mapping[str, Any]) -> list[Need]:
    """Open invites: somebody has not joined yet."""
    return [
        Need(
            tr(
                "Invited, and not here yet: {name}",
                name=each["display_name"] or display_id(each["invitee"]),
            ),
            f"{PATH}/members#invites",
            settlements=(
                Settlement(
                    tr("Withdraw"),
                    f"{PATH}/members/withdraw",
                    (("node_id", each["invitee"]), ("event_id", each["event_id"])),
                    is_dangerous=True,
                ),
            ),
        )
        for each in community["invites"][:_MOST]
    ]


def _count(count: int) -> str:
    return tr("{count} or more", count=count) if count == _LETTERS else str(count)


def _reasons(reasons: Iterable[str]) -> str:
    return "; ".join(reason for reason, _ in Counter(reasons).most_common(2))


def _plan_need(plan: dict[str, Any]) -> Need:
    chosen = (("plan", plan["id"]),)
    accept = Settlement(tr("Accept"), f"{_CONTRACTS}/accept", (*chosen, ("sure", "yes")))
    reject = Settlement(tr("Reject"), f"{_CONTRACTS}/reject", chosen, is_dangerous=True)
    # What others may fail on is accepted on the plan's own page, which shows what it changes.
    is_grave = plan["classification"] == "migration"
    return Need(
        tr(
            "A plan waits for a decision: {contract} for {deployment}",
            contract=plan["contract_id"],
            deployment=plan["deployment"],
        ),
        f"{_CONTRACTS}/plan?id={quote(plan['id'], safe='')}",
        tr("Others may fail on it, so look at it first.")
        if is_grave
        else tr("Its change is of the kind: {kind}.", kind=word(plan["classification"])),
        (reject,) if is_grave else (accept, reject),
    )
