"""A member tries to act in the name of another member's node, by calling it on the bus."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.capabilities.market.conftest import Market, open_market
from tests.community.node.conftest import Street, post

from accord.community.errors import Code, CommunityError
from accord.testing import VirtualClock


@pytest.fixture
async def market(tmp_path: Path) -> AsyncIterator[Market]:
    """Alice is an anchor, bob is trusted, carol and dave are members."""
    async with AsyncExitStack() as opened:
        yield await open_market(Street(tmp_path, VirtualClock(), opened))


async def refusal(
    market: Market, caller: Any, served: Any, capability: str, given: Mapping[str, Any]
) -> Code:
    """The code with which a call is refused; nothing may be written for it."""
    log = served.in_(market.community).log
    before = await log.view(lambda state: state.chains[served.id].head_seq)
    with pytest.raises(CommunityError) as refused:
        await market.call(caller, served, capability, given)
    assert await log.view(lambda state: state.chains[served.id].head_seq) == before
    return refused.value.code


async def test_a_member_cannot_post_in_the_name_of_another_node(market: Market) -> None:
    made = post()
    for caller in (market.bob, market.carol):
        code = await refusal(market, caller, market.alice, "market.post", made)
        assert code is Code.UNAUTHORIZED
    mine = await market.output(market.carol, market.carol, "market.post", **made)
    await market.carol.node.sync(market.community)
    (stored,) = market.alice.in_(market.community).state.content.posts[mine["event_id"]]
    assert stored.author == market.carol.id


async def test_a_member_cannot_end_posts_in_the_name_of_another_node(market: Market) -> None:
    made = await market.output(market.alice, market.alice, "market.post", **post())
    given = {"client_id": "end", "event_id": made["event_id"], "reason": "stale"}
    for caller in (market.bob, market.carol):
        code = await refusal(market, caller, market.alice, "market.expire", given)
        assert code is Code.UNAUTHORIZED


async def test_a_member_cannot_invite_in_the_name_of_another_node(market: Market) -> None:
    given = {"invitee_node_id": market.street.key("mallory").id}
    code = await refusal(market, market.bob, market.alice, "community.invite", given)
    assert code is Code.UNAUTHORIZED


async def test_a_member_cannot_revoke_in_the_name_of_another_node(market: Market) -> None:
    hosted = market.alice.in_(market.community)
    chain = hosted.state.chains[market.dave.id]
    data = market.street.revocation(
        market.community,
        market.dave.id,
        [market.bob.key],
        target_last_seq=chain.head_seq,
        target_last_hash=chain.head_hash,
    )
    code = await refusal(market, market.bob, market.alice, "community.revoke", data)
    assert code is Code.UNAUTHORIZED
    assert await market.output(market.bob, market.bob, "community.revoke", **data)
