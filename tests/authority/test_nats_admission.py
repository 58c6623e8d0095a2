"""What a session shows, and what its grants come to; no server is needed."""

import json
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.authority.nats_cases import SHOP, MemoryAuthority

from accord.authority.nats import Heartbeats, IssuedPermissions, read_heartbeat
from accord.authority.rules import (
    AdmittedUser,
    AuthorityError,
    Code,
    KeyType,
    NatsPermissions,
    NKey,
    jwt,
    read_advisory,
    read_connect_request,
    read_connect_token,
    read_page,
)
from accord.contracts import Finding, Grants, digest
from accord.contracts.session_proof import connect_token, session_key
from accord.kernel.canonical import CanonicalError
from accord.kernel.signing import SigningKey
from accord.testing import VirtualClock

KEY = SigningKey(bytes(32))
NOW = 1_800_000_000
DIGEST = digest(SHOP)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "server",
                    "client",
                    "data",
                    "connections",
                    "id",
                    "cid",
                    "user",
                    "nats",
                    "server_id",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def _changed(**members: Any) -> str:
    return json.dumps({**json.loads(connect_token(KEY, DIGEST, NOW)), **members})


def test_a_fresh_token_shows_session_and_contract() -> None:
    shown = read_connect_token(connect_token(KEY, DIGEST, NOW), NOW + 29)
    assert (shown.key, shown.digest) == (session_key(KEY), DIGEST)


def test_the_order_and_the_spelling_of_a_token_do_not_matter() -> None:
    token = json.dumps(dict(reversed(json.loads(connect_token(KEY, DIGEST, NOW)).items())))
    assert read_connect_token(token, NOW).key == session_key(KEY)


@pytest.mark.parametrize("away", [-31, 31, 3600])
def test_a_token_of_another_time_is_refused(away: int) -> None:
    with pytest.raises(AuthorityError) as refused:
        read_connect_token(connect_token(KEY, DIGEST, NOW + away), NOW)
    assert refused.value.code is Code.EXPIRED_PROOF


@pytest.mark.parametrize(
    "members",
    [
        {"contractDigest": "A" * 43},
        {"iat": NOW + 1},
        {"sessionKey": session_key(SigningKey(b"1" * 32))},
        {"sig": "A" * 86},
        {"sig": ""},
    ],
)
def test_a_token_that_is_not_signed_by_its_session_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(AuthorityError) as refused:
        read_connect_token(_changed(**members), NOW)
    assert refused.value.code is Code.INVALID_PROOF


@pytest.mark.parametrize(
    "token",
    [
        None,
        "",
        "x" * 3000,
        "[]",
        "\ud800",
        _changed(v=2),
        _changed(iat=str(NOW)),
        _changed(iat=float(NOW) + 0.5),
        _changed(sessionKey="short"),
        _changed(sessionKey=None),
        _changed(contractDigest="*" * 43),
        "[" * 2000,
    ],
)
def test_what_is_no_token_is_refused(token: str | None) -> None:
    with pytest.raises(AuthorityError) as refused:
        read_connect_token(token, NOW)
    assert refused.value.code is Code.BAD_REQUEST


@given(st.text(max_size=200) | JSON.map(json.dumps))
def test_whatever_is_shown_is_refused_with_a_sentence(token: str) -> None:
    with pytest.raises(AuthorityError):
        read_connect_token(token, NOW)


@given(st.dictionaries(st.sampled_from(["nats", "exp", "sub"]), JSON, max_size=3))
def test_a_server_that_asks_nonsense_is_refused(claims: dict[str, Any]) -> None:
    try:
        token = jwt.encode(claims, NKey.generate(KeyType.SERVER))
    except CanonicalError:
        reject()  # such as a number that is none
    with pytest.raises(AuthorityError):
        read_connect_request(token)


def test_a_server_cannot_ask_in_the_name_of_another() -> None:
    one, other = NKey.generate(KeyType.SERVER), NKey.generate(KeyType.SERVER)
    claims = {"nats": {"server_id": {"id": other.public}, "user_nkey": "U"}}
    with pytest.raises(AuthorityError):
        read_connect_request(jwt.encode(claims, one))
    assert read_connect_request(jwt.encode(claims, other)).server == other.public


@given(st.binary(max_size=100) | JSON.map(lambda value: json.dumps(value).encode()))
def test_advisories_and_heartbeats_that_say_nothing_are_nothing(data: bytes) -> None:
    assert read_advisory("$SYS.ACCOUNT.A.CONNECT", data) is None
    page = read_page(data)
    assert page is None or page.connections == ()
    assert read_heartbeat(data) is None


def test_a_beat_larger_than_any_is_not_read() -> None:
    body = {"sessionKey": "k", "contractId": "c", "contractDigest": "d"}
    assert read_heartbeat(json.dumps(body).encode()) == ("k", "c", "d")
    assert read_heartbeat(json.dumps({**body, "summary": "x" * 70_000}).encode()) is None


async def test_whoever_beats_fast_is_heard_as_seldom_as_others() -> None:
    clock, authority = VirtualClock(), MemoryAuthority()
    beats = Heartbeats(authority.as_authority().offers, clock, lambda key: key == "here")

    async def beat(key: str, contract: str) -> None:
        body = {"sessionKey": key, "contractId": contract, "contractDigest": "d"}
        await beats._on_heartbeat(Msg(Client(), "beat", "", json.dumps(body).encode(), None))

    for _ in range(3):
        await beat("here", "one")
    await beat("away", "one")
    assert authority.beats == [("here", "one", "d")]
    for number in range(100):
        await beat("here", f"more {number}")
    assert len(authority.beats) == 32
    clock.advance(1.0)
    await beat("here", "one")
    assert len(authority.beats) == 33


def test_the_name_of_a_user_says_to_whom_it_was_given() -> None:
    admitted = AdmittedUser(session_key(KEY), DIGEST, NatsPermissions.of(Grants()).fingerprint)
    assert AdmittedUser.from_name(admitted.name) == admitted
    for name in (None, 7, "", "sentinel", admitted.name + "x", f"{admitted.name}\n"):
        assert AdmittedUser.from_name(name) is None


def _grants(publish: str = "", subscribe: str = "", rule: str = "use.rpc.call") -> Grants:
    reason = (Finding(rule, "", "because"),)
    return Grants(dict.fromkeys(publish, reason), dict.fromkeys(subscribe, reason))


def test_only_one_who_handles_something_may_answer_and_only_in_inboxes() -> None:
    assert NatsPermissions.of(_grants("a", "b")).publish == {"a"}
    assert NatsPermissions.of(_grants("a", "b", "own.rpc.handle")).publish == {"a", "_INBOX.*.>"}


subjects = st.frozensets(st.sampled_from("abcd"))
permissions = st.builds(NatsPermissions, subjects, subjects)


@given(permissions, permissions)
def test_permissions_have_one_fingerprint_each(
    one: NatsPermissions, other: NatsPermissions
) -> None:
    assert (one.fingerprint == other.fingerprint) is (one == other)


@given(permissions, permissions)
def test_what_was_given_stands_while_nothing_of_it_is_taken_back(
    given_then: NatsPermissions, given_now: NatsPermissions
) -> None:
    issued = IssuedPermissions()
    issued.remember(given_then)
    kept = given_then.publish <= given_now.publish and given_then.subscribe <= given_now.subscribe
    assert issued.is_covered(given_then.fingerprint, given_now) is kept


@given(permissions, permissions)
def test_what_nobody_remembers_stands_only_if_it_is_the_same(
    given_then: NatsPermissions, given_now: NatsPermissions
) -> None:
    assert IssuedPermissions().is_covered(given_then.fingerprint, given_now) is (
        given_then == given_now
    )


def test_only_so_much_is_remembered() -> None:
    issued = IssuedPermissions(most=2)
    three = [NatsPermissions(frozenset(each), frozenset()) for each in "abc"]
    for each in three:
        issued.remember(each)
    more = NatsPermissions(frozenset("abcd"), frozenset())
    assert [issued.is_covered(each.fingerprint, more) for each in three] == [False, True, True]
