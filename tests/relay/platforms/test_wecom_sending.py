"""What agents say in WeCom, and the access token behind it."""

import pytest
from tests.fakes.webhooks.service import Trouble
from tests.relay.platforms.hooked import PUBLIC, wecom

from accord.kernel.clock import SystemClock
from accord.relay.connector import PlatformState
from accord.relay.errors import Code, RelayError
from accord.relay.gateway import is_rate_limited
from accord.relay.platforms.wecom import DESCRIPTOR, WecomSettings, open_wecom
from accord.relay.rules import Edit, FollowUp, GetChatInfo, Send, Typing, split_text
from accord.station.logs import scrub
from accord.testing import VirtualClock

LI = "ww0123456789/li"


async def test_a_message_is_sent_to_one_user_as_plain_text() -> None:
    async with wecom() as world:
        world.service.users.add("li")
        result = await world.platform.perform(Send(LI, "**你好**"), "k1")
        (said,) = world.service.said
        assert (said.chat_id, said.text) == ("li", "你好")
        assert (result.success, result.message_id) == (True, said.message_id)


async def test_nobody_can_be_written_to_but_one_user_of_the_corporation() -> None:
    async with wecom() as world:
        for chat in ("ww0123456789/@all", "ww0123456789/a|b", "ww-other/li", "li", "ww0123456789/"):
            result = await world.platform.perform(Send(chat, "hi"), "k")
            assert result.error == "there is no such chat"
        stranger = await world.platform.perform(Send("ww0123456789/wang", "hi"), "k")
        assert "cannot be written to" in str(stranger.error)
        assert world.service.said == []


async def test_the_access_token_is_kept_and_renewed_when_it_ends() -> None:
    clock = VirtualClock()
    async with wecom(clock) as world:
        world.service.users.add("li")

        def fetched() -> int:
            return world.service.calls.count("/cgi-bin/gettoken")

        for _ in range(3):
            assert (await world.platform.perform(Send(LI, "hi"), "k")).success
        assert fetched() == 1
        world.service.end_token()
        assert (await world.platform.perform(Send(LI, "hi"), "k")).success
        assert fetched() == 2
        clock.advance(6901)
        assert (await world.platform.perform(Send(LI, "hi"), "k")).success
        assert fetched() == 3
        assert len(world.service.said) == 5


async def test_a_token_that_is_refused_twice_is_not_tried_for_ever() -> None:
    async with wecom() as world:
        stale = Trouble(200, {"errcode": 42001})
        good = Trouble(200, {"errcode": 0, "access_token": "t", "expires_in": 7200})
        world.service.troubles.extend([good, stale, good, stale])
        result = await world.platform.perform(Send(LI, "hi"), "k")
        assert result.error == "WeCom refused it (error 42001)"
        assert len(world.service.calls) == 4


async def test_a_refused_secret_is_told_and_so_is_its_mending() -> None:
    async with wecom() as world:
        world.service.users.add("li")
        world.service.secret = "another"
        result = await world.platform.perform(Send(LI, "hi"), "k")
        assert result.error == "WeCom refuses the Secret"
        state, reason = world.context.standings[-1]
        assert state is PlatformState.TROUBLED
        assert "wecom-test-secret" not in reason
        with pytest.raises(RelayError) as refused:
            await world.platform.run(world.context)
        assert refused.value.code is Code.UNAUTHORIZED
        world.service.secret = "wecom-test-secret"
        assert (await world.platform.perform(Send(LI, "hi"), "k")).success
        assert world.context.standings[-1][0] is PlatformState.READY


async def test_trouble_is_a_sentence() -> None:
    clock = VirtualClock()
    async with wecom(clock) as world:
        world.service.users.add("li")
        assert (await world.platform.perform(Send(LI, "hi"), "k")).success
        for trouble, sentence in (
            (Trouble(500), "WeCom failed (500)"),
            (Trouble(200, {"errcode": -1}), "WeCom is busy; try again later"),
            (Trouble(200, {"errcode": 45009}), "too many requests"),
            (Trouble(200, {"errcode": 0, "invaliduser": "li"}), "cannot be written to"),
            (Trouble(200, {"errcode": 60020}), "does not take calls from this machine"),
        ):
            world.service.troubles.append(trouble)
            result = await world.platform.perform(Send(LI, "hi"), "k")
            assert not result.success
            assert sentence in str(result.error)
            assert is_rate_limited(result) is ("too many" in sentence)
            assert (result.retry_after is not None) is ("too many" in sentence)
            clock.advance(2)


async def test_an_answer_that_cannot_be_read_leaves_the_outcome_unknown() -> None:
    async with wecom() as world:
        world.service.users.add("li")
        assert (await world.platform.perform(Send(LI, "hi"), "k")).success
        world.service.troubles.append(Trouble(200, {"errcode": "no"}))
        with pytest.raises(TimeoutError):
            await world.platform.perform(Send(LI, "hi"), "k")


async def test_no_secret_is_in_a_line_that_the_station_logs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    async with wecom() as world:
        world.service.users.add("li")
        await world.platform.perform(Send(LI, "hi"), "k")
        token = (await world.platform._api.token()).get_secret_value()
    logged = [scrub(each.getMessage()) for each in caplog.records]
    assert any("message/send" in each for each in logged)
    assert not any(secret in each for each in logged for secret in (token, "wecom-test-secret"))


async def test_the_longest_message_fits_into_wecoms_bytes() -> None:
    async with wecom() as world:
        world.service.users.add("li")
        for letter in "a", "é", "你", "👋":
            for piece in split_text(
                letter * 2000, DESCRIPTOR.max_message_length, DESCRIPTOR.len_unit
            ):
                assert (await world.platform.perform(Send(LI, piece), "k")).success


async def test_what_wecom_cannot_do_fails_with_a_sentence() -> None:
    async with wecom() as world:
        for action in (Edit(LI, "m", "x"), Typing(LI), FollowUp("s", "wecom.x", "y")):
            assert (await world.platform.perform(action, "k")).error
        info = await world.platform.perform(GetChatInfo(LI), "k")
        assert info.chat_info == {"name": "li", "type": "dm"}
        assert await world.platform.can_view(LI, None, LI) is True
        assert await world.platform.can_view("ww0123456789/wang", None, LI) is False
        assert await world.platform.can_manage(LI, None, LI) is False


async def test_opening_needs_every_secret() -> None:
    given = {"corp_id": "ww1", "agent_id": 1, "token": "t", "secret": "s"}
    for more, what in (({}, "missing"), ({"encoding_aes_key": "short"}, "43 letters")):
        with pytest.raises(RelayError, match=what):
            async with open_wecom(
                WecomSettings.model_validate(given | more), SystemClock(), PUBLIC
            ):
                pass
