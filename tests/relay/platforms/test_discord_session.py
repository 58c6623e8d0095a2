"""Sessions, heartbeats, buckets and what is remembered: the parts without a network."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.relay.errors import Code, RelayError
from accord.relay.platforms import discord
from accord.relay.platforms.discord.rules import permissions

NOW = 1_767_225_600.0
SAY = discord.ApiRoute.of("POST", "/channels/{}/messages", "1")
SAY_ELSEWHERE = discord.ApiRoute.of("POST", "/channels/{}/messages", "2")
READ = discord.ApiRoute.of("GET", "/channels/{}/messages", "1")


@pytest.mark.parametrize("code", [1000, 1001, 1006, 4000, 4001, 4002, 4005, 4008])
def test_after_most_codes_the_session_goes_on(code: int) -> None:
    assert discord.after_close(code) is discord.NextStep.RESUME


@pytest.mark.parametrize("code", [4003, 4007, 4009])
def test_after_some_codes_a_new_session_begins(code: int) -> None:
    assert discord.after_close(code) is discord.NextStep.IDENTIFY


@pytest.mark.parametrize("code", [4004, 4010, 4011, 4012, 4013, 4014])
def test_after_others_somebody_must_mend_something(code: int) -> None:
    with pytest.raises(RelayError) as refused:
        discord.after_close(code)
    assert refused.value.code is Code.UNAUTHORIZED
    assert refused.value.mend


def test_a_session_begins_with_the_token_the_intents_and_the_shard() -> None:
    told = discord.identify_payload("secret", 513, (1, 4))
    assert told["op"] == 2
    assert told["d"]["shard"] == [1, 4]
    assert told["d"]["intents"] == 513
    assert discord.resume_payload("secret", discord.GatewaySession("s", "wss://x", 7)) == {
        "op": 6,
        "d": {"token": "secret", "session_id": "s", "seq": 7},
    }


def test_a_beat_that_was_not_answered_means_the_other_end_is_dead() -> None:
    pulse = discord.Heartbeat.of({"op": 10, "d": {"heartbeat_interval": 41250}})
    assert pulse.interval == 41.25
    assert pulse.first(0.5) == 20.625
    assert pulse.beat()
    pulse.acknowledged()
    assert pulse.beat()
    assert not pulse.beat()


@pytest.mark.parametrize(
    "hello", [None, {}, {"op": 10}, {"op": 0, "d": {}}, [], {"op": 10, "d": 3}]
)
def test_what_is_no_hello_is_refused(hello: Any) -> None:
    with pytest.raises(RelayError):
        discord.Heartbeat.of(hello)


def test_an_interval_stays_within_reason() -> None:
    assert discord.Heartbeat.of({"op": 10, "d": {"heartbeat_interval": 0}}).interval == 1.0
    assert discord.Heartbeat.of({"op": 10, "d": {"heartbeat_interval": 10**12}}).interval == 600.0


def heard(remaining: int, after: float, bucket: str = "b") -> dict[str, str]:
    return {
        "x-ratelimit-bucket": bucket,
        "x-ratelimit-limit": "5",
        "x-ratelimit-remaining": str(remaining),
        "x-ratelimit-reset-after": str(after),
    }


def test_an_empty_bucket_is_waited_for_and_only_where_it_is_empty() -> None:
    buckets = discord.RateLimits()
    assert buckets.wait(SAY, 0.0) == 0.0
    buckets.note_headers(SAY, heard(1, 4.0), 0.0)
    assert buckets.wait(SAY, 1.0) == 0.0
    assert buckets.wait(SAY, 1.0) == 3.0
    assert buckets.wait(SAY_ELSEWHERE, 1.0) == 0.0
    assert buckets.wait(READ, 1.0) == 0.0
    assert buckets.wait(SAY, 4.0) == 0.0


def test_routes_that_share_a_bucket_wait_together() -> None:
    buckets = discord.RateLimits()
    edit = discord.ApiRoute.of("PATCH", "/channels/{}/messages/{}", "1", "9")
    buckets.note_headers(edit, heard(5, 1.0, "shared"), 0.0)
    buckets.note_headers(SAY, heard(0, 9.0, "shared"), 0.0)
    assert buckets.wait(edit, 0.0) == 9.0


def test_a_late_answer_does_not_give_back_what_was_used_since() -> None:
    buckets = discord.RateLimits()
    buckets.note_headers(SAY, heard(2, 5.0), 0.0)
    assert buckets.wait(SAY, 0.0) == buckets.wait(SAY, 0.0) == 0.0
    buckets.note_headers(SAY, heard(1, 5.0), 0.1)
    assert buckets.wait(SAY, 0.2) > 0


def test_those_who_waited_together_do_not_all_go_at_once() -> None:
    buckets = discord.RateLimits()
    buckets.note_headers(SAY, heard(0, 4.0), 0.0)
    assert [buckets.wait(SAY, 4.0) for _ in range(6)] == [0.0] * 5 + [1.0]
    # Until an answer tells better, the window is guessed.
    buckets.note_headers(SAY, heard(4, 0.5), 4.1)
    assert buckets.wait(SAY, 4.1) == pytest.approx(0.5)


def test_a_refusal_holds_back_one_route_and_a_global_one_all() -> None:
    buckets = discord.RateLimits()
    buckets.note_refusal(SAY, 2.0, 0.0, everyone=False)
    assert (buckets.wait(SAY, 0.0), buckets.wait(READ, 0.0)) == (2.0, 0.0)
    buckets.note_refusal(SAY, 3.0, 0.0, everyone=True)
    assert buckets.wait(READ, 1.0) == 2.0
    assert buckets.wait(READ, 3.0) == 0.0


@pytest.mark.parametrize("value", [None, "1", True, -1, float("nan"), [], {}])
def test_a_refusal_that_names_no_time_is_a_second(value: Any) -> None:
    assert discord.retry_after(value) == 1.0


@given(st.dictionaries(st.sampled_from(list(heard(1, 1))), st.text(max_size=8)))
def test_headers_of_any_kind_are_survived(headers: dict[str, str]) -> None:
    buckets = discord.RateLimits()
    buckets.note_headers(SAY, headers, 0.0)
    assert 0 <= buckets.wait(SAY, 0.0) <= 86_400


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0.01, 10), st.floats(0, 3)), max_size=30))
def test_within_a_window_no_more_is_sent_than_the_service_allows(
    answers: list[tuple[int, float, float]],
) -> None:
    buckets, now = discord.RateLimits(), 0.0
    for remaining, after, pause in answers:
        now += pause
        buckets.note_headers(SAY, heard(remaining, after), now)
        sent = sum(buckets.wait(SAY, now) == 0.0 for _ in range(20))
        assert sent <= remaining


def test_a_nonce_fits_and_is_another_for_each_key() -> None:
    keys = [f"instance/{number}.{piece}" for number in range(50) for piece in range(3)]
    made = {discord.nonce(key) for key in keys}
    assert len(made) == len(keys)
    assert all(len(each) <= 25 for each in made)
    assert discord.nonce("a") == discord.nonce("a")


def test_ids_grow_with_time() -> None:
    # The example of the documentation.
    made = 175928847299117063
    assert permissions.snowflake_before(1_462_015_105.796) < made
    assert permissions.snowflake_before(1_462_015_105.797) > made
    assert permissions.snowflake_before(0) == 0
    assert not permissions.is_snowflake("1/2")
    assert not permissions.is_snowflake("٣")
    assert not permissions.is_snowflake("9" * 21)


def lived() -> discord.Checkpoint:
    """A bot that was here before and saw two channels."""
    memory = discord.Checkpoint()
    memory.began(discord.GatewaySession("a", "wss://x", 1), {"100"}, NOW)
    memory.caught_up("100")
    memory.saw("300", str(permissions.snowflake_before(NOW + 10)), "100")
    memory.saw("500", str(permissions.snowflake_before(NOW + 20)), None)
    memory.passed(permissions.snowflake_before(NOW + 20))
    return memory


def test_a_bot_that_was_never_here_has_missed_nothing() -> None:
    memory = discord.Checkpoint()
    memory.began(discord.GatewaySession("a", "wss://x", 1), set(), NOW)
    assert memory.after("300", 0) is None


def test_a_first_life_that_ends_at_once_is_a_life() -> None:
    memory = discord.Checkpoint()
    memory.began(discord.GatewaySession("a", "wss://x", 1), {"100"}, NOW)
    memory = discord.Checkpoint.read(memory.write())
    memory.began(discord.GatewaySession("b", "wss://x", 1), {"100"}, NOW + 100)
    after = memory.after("300", 0)
    assert after is not None
    assert after < permissions.snowflake_before(NOW)


def test_after_a_lost_session_each_channel_is_read_from_its_last_message() -> None:
    memory = lived()
    memory.began(discord.GatewaySession("b", "wss://x", 1), {"100"}, NOW + 100)
    assert memory.after("300", 0) == permissions.snowflake_before(NOW + 10)
    assert memory.after("500", 0) == permissions.snowflake_before(NOW + 20)
    # One that was not seen is read from a little before the newest message of all.
    after = memory.after("301", 0)
    assert after is not None
    assert permissions.snowflake_before(NOW + 9) < after < permissions.snowflake_before(NOW + 20)
    assert memory.after(
        "301", permissions.snowflake_before(NOW + 50)
    ) == permissions.snowflake_before(NOW + 50)
    assert (memory.seen_in(None), memory.seen_in("100")) == (["500"], ["300"])


@pytest.mark.parametrize("restart", [lambda m: m, lambda m: discord.Checkpoint.read(m.write())])
def test_a_guild_that_was_not_caught_up_with_is_read_from_where_it_was(
    restart: Callable[[discord.Checkpoint], discord.Checkpoint],
) -> None:
    memory = lived()
    memory.began(discord.GatewaySession("b", "wss://x", 1), {"100", "101"}, NOW + 100)
    memory.caught_up("100")
    memory.saw("300", str(permissions.snowflake_before(NOW + 110)), "100")
    memory.passed(permissions.snowflake_before(NOW + 110))
    memory = restart(memory)
    memory.began(discord.GatewaySession("c", "wss://x", 1), {"100", "101"}, NOW + 120)
    after = memory.after("777", 0)
    assert after is not None
    assert after < permissions.snowflake_before(NOW + 20)


def test_what_is_remembered_is_read_back() -> None:
    memory = lived()
    again = discord.Checkpoint.read(memory.write())
    assert again.write() == memory.write()
    assert again.session == discord.GatewaySession("a", "wss://x", 1)


@given(
    st.dictionaries(
        st.sampled_from(["marks", "session", "seen"]),
        st.sampled_from(
            ["", "null", "[]", "{", '{"1": 2}', '{"id": 1}', '{"newest": "x"}', "\ud800"]
        ),
    )
)
def test_what_was_remembered_wrongly_counts_as_nothing(state: dict[str, str]) -> None:
    memory = discord.Checkpoint.read(state)
    assert memory.session is None
    assert memory.after("300", 0) is None


def test_very_many_channels_are_remembered_by_the_newest() -> None:
    memory = lived()
    for number in range(3_000):
        memory.saw(str(1000 + number), str(permissions.snowflake_before(NOW + 30)), "100")
    assert len(memory.write()["seen"]) < 150_000
