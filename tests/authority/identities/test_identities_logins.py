"""How a session becomes a person's, and what it may then do."""

from typing import Any

import pytest

from accord.authority.identities import Access, ConsentAnswer
from accord.authority.rules import AuthorityError, Code, SessionHolder
from accord.authority.tables import consents, logins
from accord.contracts import digest
from accord.contracts.session_proof import flow_message, login_message, prove, session_key
from accord.kernel import canonical
from accord.kernel.signing import SigningKey

ORIGIN = "https://app.example"
READ, WRITE = "notes::notes.read", "notes::notes.write"


@pytest.fixture
def key() -> SigningKey:
    return SigningKey.from_seed(bytes(range(32)))


async def refused(awaitable: Any, code: Code) -> AuthorityError:
    with pytest.raises(AuthorityError) as caught:
        await awaitable
    assert caught.value.code is code
    return caught.value


async def test_a_person_agrees_and_the_session_is_the_persons(
    house: Any, client: Any, key: SigningKey
) -> None:
    ann = await house.person("Ann", READ, "other::thing")
    login = await house.begin(key, client("Notes.List", "Notes.Add"))
    assert (login.contract_id, login.anchor) == ("desk@v1", ORIGIN)
    review = await house.identities.login_flows.review(login, ann)
    assert review.delta.capabilities == {READ, WRITE}
    assert "notes@v1 rpc Notes.List call" in review.delta.surfaces
    assert review.missing == {WRITE}
    assert [text.name for text in review.texts] == ["Read notes", "Write notes"]
    assert not review.settled
    address = await house.identities.login_flows.approve(login, ann)
    assert address.startswith(f"{ORIGIN}/back?next=%2Fhome&flowId=")
    session = await house.bind(key, address)
    assert session == await house.authority.sessions.get(session_key(key))
    assert (session.holder, session.subject, session.origin) == (
        SessionHolder.PERSON,
        ann.id,
        ORIGIN,
    )
    # Nobody passes on what he or she does not have.
    assert session.capabilities == {READ}


async def test_the_record_of_a_consent_keeps_the_digest_and_the_difference(
    house: Any, client: Any, key: SigningKey
) -> None:
    ann = await house.person("Ann", READ, WRITE)
    first, more = client("Notes.List"), client("Notes.List", "Notes.Add")
    await house.log_in(ann, key, first)
    await house.log_in(ann, SigningKey.generate(), more)
    latest, earlier = await house.identities.consents.answers(ann.id)
    assert (earlier.digest, latest.digest) == (digest(first), digest(more))
    assert earlier.delta.capabilities == {READ}
    assert latest.delta == Access(frozenset({"notes@v1 rpc Notes.Add call"}), frozenset({WRITE}))
    assert {latest.answer, earlier.answer} == {ConsentAnswer.ACCEPTED}
    allowed = await house.identities.consents.allowed(ann.id, "desk@v1", ORIGIN)
    assert allowed.capabilities == {READ, WRITE}


async def test_what_was_agreed_to_is_not_asked_again_at_the_same_origin(
    house: Any, client: Any, key: SigningKey
) -> None:
    ann = await house.person("Ann", READ)
    await house.log_in(ann, key, client("Notes.List"))
    login = await house.begin(SigningKey.generate(), client("Notes.List"))
    assert (await house.identities.login_flows.review(login, ann)).settled
    elsewhere = await house.begin(
        SigningKey.generate(), client("Notes.List"), "https://other.example/"
    )
    assert not (await house.identities.login_flows.review(elsewhere, ann)).settled
    bob = await house.person("Bob", READ)
    assert not (await house.identities.login_flows.review(login, bob)).settled


async def test_a_client_that_asks_for_nothing_is_asked_about_once(
    house: Any, client: Any, key: SigningKey
) -> None:
    ann = await house.person()
    login = await house.begin(key, client())
    assert not (await house.identities.login_flows.review(login, ann)).settled
    await house.identities.login_flows.approve(login, ann)
    again = await house.begin(key, client())
    assert (await house.identities.login_flows.review(again, ann)).settled


async def test_a_program_is_anchored_at_its_key_and_asked_about_anew(
    house: Any, client: Any, key: SigningKey
) -> None:
    ann = await house.person("Ann", READ)
    agent = client("Notes.List", kind="agent")
    login = await house.begin(key, agent, "http://127.0.0.1:9000/")
    assert login.anchor == session_key(key)
    session = await house.log_in(ann, key, agent)
    assert session.origin is None
    other = await house.begin(SigningKey.generate(), agent, "http://127.0.0.1:9000/")
    assert not (await house.identities.login_flows.review(other, ann)).settled


async def test_whoever_begins_a_login_does_not_learn_what_binds_it(
    house: Any, client: Any, key: SigningKey
) -> None:
    """Somebody begins in the name of an app that a person has agreed to."""
    ann = await house.person("Ann", READ)
    await house.log_in(ann, key, client("Notes.List"))
    thief = SigningKey.generate()
    login = await house.begin(thief, client("Notes.List"))
    address = await house.identities.login_flows.approve(login, ann)
    await refused(house.bind(thief, f"?flowId={login.id}"), Code.NOT_FOUND)
    # The app itself hears the flow, and its session is another one.
    await refused(house.bind(key, address), Code.INVALID_PROOF)
    assert await house.authority.sessions.get(session_key(thief)) is None


async def test_a_login_begins_only_with_the_sessions_own_proof(
    house: Any, client: Any, key: SigningKey
) -> None:
    manifest = client("Notes.List")
    proof = prove(key, login_message("https://app.example/a", None))
    begin = house.identities.login_flows.begin
    raw = canonical.encode(manifest)
    for redirect_to, context, shown in (
        ("https://app.example/b", None, session_key(key)),
        ("https://app.example/a", {}, session_key(key)),
        ("https://app.example/a", None, session_key(SigningKey.generate())),
        ("https://app.example/a", None, "x"),
    ):
        awaitable = begin(shown, redirect_to, context, digest(manifest), raw, proof)
        await refused(awaitable, Code.INVALID_PROOF)
    assert await begin(
        session_key(key), "https://app.example/a", None, digest(manifest), raw, proof
    )


@pytest.mark.parametrize("kind", ["service", "device"])
async def test_nobody_logs_in_to_a_service_or_a_device(
    house: Any, client: Any, key: SigningKey, kind: str
) -> None:
    await refused(house.begin(key, client("Notes.List", kind=kind)), Code.BAD_REQUEST)


async def test_a_required_use_that_leads_nowhere_stops_the_consent(
    house: Any, client: Any, key: SigningKey
) -> None:
    ann = await house.person("Ann", READ)
    login = await house.begin(key, client("Gone.Call", contract="gone@v1"))
    error = await refused(house.identities.login_flows.review(login, ann), Code.DEPENDENCY_UNKNOWN)
    assert error.findings
    await refused(house.identities.login_flows.approve(login, ann), Code.DEPENDENCY_UNKNOWN)
    assert await house.identities.consents.answers(ann.id) == []


async def test_a_refusal_is_kept_and_binds_nothing(
    house: Any, client: Any, key: SigningKey
) -> None:
    ann = await house.person("Ann", READ)
    login = await house.begin(key, client("Notes.List"))
    address = await house.identities.login_flows.deny(login, ann)
    assert address == f"{ORIGIN}/back?next=%2Fhome&authError=consent_denied"
    [kept] = await house.identities.consents.answers(ann.id)
    assert kept.answer is ConsentAnswer.DENIED
    await refused(house.identities.login_flows.approve(login, ann), Code.CONFLICT)
    assert await house.authority.sessions.get(session_key(key)) is None


async def test_an_answer_and_a_binding_are_given_once(
    house: Any, client: Any, key: SigningKey
) -> None:
    ann = await house.person("Ann", READ)
    login = await house.begin(key, client("Notes.List"))
    address = await house.identities.login_flows.approve(login, ann)
    await refused(house.identities.login_flows.approve(login, ann), Code.CONFLICT)
    first = await house.bind(key, address)
    # The same client may have missed the answer.
    assert await house.bind(key, address) == first
    await house.authority.sessions.revoke(first.key, "test")
    await refused(house.bind(key, address), Code.NOT_FOUND)


async def test_a_login_ends_after_ten_minutes(house: Any, client: Any, key: SigningKey) -> None:
    ann = await house.person("Ann", READ)
    login = await house.begin(key, client("Notes.List"))
    address = await house.identities.login_flows.approve(login, ann)
    house.clock.advance(600)
    await refused(house.identities.login_flows.find(login.id), Code.NOT_FOUND)
    await refused(house.bind(key, address), Code.NOT_FOUND)
    await house.begin(key, client("Notes.List"))
    rows = await house.authority.store.read(lambda c: c.execute(logins.select()).all())
    assert len(rows) == 1


@pytest.mark.parametrize("flow", ["", "x", "a\0" * 16, "\ud800" * 32, "x" * 32, "x" * 10_000])
async def test_a_flow_that_is_none_is_refused(house: Any, key: SigningKey, flow: str) -> None:
    await refused(house.identities.login_flows.find(flow), Code.NOT_FOUND)
    proof = prove(key, b"anything")
    await refused(house.identities.sessions.bind(flow, session_key(key), proof), Code.NOT_FOUND)


async def test_a_key_that_serves_is_not_taken_over_by_a_login(house: Any, client: Any) -> None:
    manifest = client(kind="service", identity="other@v1")
    key = await house.offer(manifest, "other")
    ann = await house.person("Ann", READ)
    login = await house.begin(key, client("Notes.List"))
    address = await house.identities.login_flows.approve(login, ann)
    await refused(house.bind(key, address), Code.CONFLICT)
    assert (await house.authority.sessions.get(session_key(key))).holder is SessionHolder.SERVICE


async def test_sessions_follow_what_the_person_may_do(
    house: Any, client: Any, key: SigningKey
) -> None:
    ann = await house.person("Ann", READ, WRITE)
    await house.log_in(ann, key, client("Notes.List", "Notes.Add"))
    identities = house.identities

    await identities.set_capabilities(ann.id, [READ])
    assert await house.held(key) == {READ}
    await identities.set_capabilities(ann.id, [READ, WRITE, "else::where"])
    assert await house.held(key) == {READ, WRITE}
    await identities.set_disabled(ann.id, True)
    assert await house.is_over(key)


@pytest.mark.parametrize("anchored", ["origin", "key"])
async def test_an_override_answers_for_the_person_and_adds_its_keys(
    house: Any, client: Any, key: SigningKey, anchored: str
) -> None:
    ann = await house.person("Ann", READ)
    app = client("Notes.List", "Notes.Add", kind="app" if anchored == "origin" else "agent")
    anchor = ORIGIN if anchored == "origin" else session_key(key)
    await house.identities.set_override("desk@v1", anchor, [WRITE])
    login = await house.begin(key, app)
    review = await house.identities.login_flows.review(login, ann)
    assert review.settled
    assert review.missing == frozenset()
    session = await house.bind(key, await house.identities.login_flows.approve(login, ann))
    assert session.capabilities == {READ, WRITE}
    [kept] = await house.identities.consents.answers(ann.id)
    assert kept.answer is ConsentAnswer.GRANTED
    await house.identities.drop_override("desk@v1", anchor)
    assert await house.held(key) == {READ}
    await refused(house.identities.drop_override("desk@v1", anchor), Code.NOT_FOUND)


async def test_an_override_of_another_contract_or_origin_changes_nothing(
    house: Any, client: Any, key: SigningKey
) -> None:
    ann = await house.person("Ann", READ)
    await house.identities.set_override("other@v1", ORIGIN, [WRITE])
    await house.identities.set_override("desk@v1", "https://other.example", [WRITE])
    session = await house.log_in(ann, key, client("Notes.List", "Notes.Add"))
    assert session.capabilities == {READ}
    await refused(house.identities.set_override("desk@v1", "neither", [WRITE]), Code.BAD_REQUEST)


async def test_what_an_optional_use_leads_to_later_is_not_agreed_to_yet(
    house: Any, client: Any, key: SigningKey
) -> None:
    ann = await house.person("Ann")
    later = {
        **client(kind="service", identity="later@v1"),
        "schemas": {"Any": True},
        "rpc": {
            "Later.Do": {
                "version": "v1",
                "subject": "rpc.v1.Later.Do",
                "input": {"schema": "Any"},
                "output": {"schema": "Any"},
            }
        },
    }
    used = {"contract": "later@v1", "rpc": {"call": ["Later.Do"]}}
    app = {**client(), "uses": {"optional": {"later": used}}}
    await house.log_in(ann, key, app)
    await house.offer(later, "later")

    async def may_call(session: SigningKey) -> bool:
        grants = await house.authority.sessions.grants(session_key(session), digest(app))
        assert grants.ok
        return "rpc.v1.Later.Do" in grants.publish

    assert not await may_call(key)
    fresh = SigningKey.generate()
    login = await house.begin(fresh, app)
    assert not (await house.identities.login_flows.review(login, ann)).settled
    await house.bind(fresh, await house.identities.login_flows.approve(login, ann))
    assert await may_call(fresh)


async def test_a_new_digest_that_asks_for_no_more_goes_on(
    house: Any, client: Any, key: SigningKey
) -> None:
    ann = await house.person("Ann", READ, WRITE)
    session = await house.log_in(ann, key, client("Notes.List"))
    switch_contract = house.identities.sessions.switch_contract
    assert await switch_contract(session, session.digest, None) == session
    less = client()
    taken = await switch_contract(session, digest(less), canonical.encode(less))
    assert taken.digest == digest(less)
    assert await house.authority.sessions.get(session.key) == taken
    more = client("Notes.List", "Notes.Add")
    await refused(
        switch_contract(session, digest(more), canonical.encode(more)), Code.CONSENT_REQUIRED
    )
    other = client("Notes.List", identity="other@v1")
    await refused(
        switch_contract(session, digest(other), canonical.encode(other)), Code.CONTRACT_CHANGED
    )
    assert await house.authority.sessions.get(session.key) == taken


async def test_what_is_withdrawn_ends_the_sessions_and_is_asked_again(
    house: Any, client: Any, key: SigningKey
) -> None:
    ann = await house.person("Ann", READ)
    await house.log_in(ann, key, client("Notes.List"))
    await house.identities.withdraw(ann, "desk@v1", ORIGIN)
    assert await house.is_over(key)
    login = await house.begin(SigningKey.generate(), client("Notes.List"))
    assert not (await house.identities.login_flows.review(login, ann)).settled
    latest, *_ = await house.identities.consents.answers(ann.id)
    assert latest.answer is ConsentAnswer.WITHDRAWN


async def test_a_consent_cannot_be_rewritten(house: Any, client: Any, key: SigningKey) -> None:
    ann = await house.person("Ann", READ)
    await house.log_in(ann, key, client("Notes.List"))
    with pytest.raises(Exception, match="sealed"):
        await house.authority.store.write(lambda c: c.execute(consents.update().values(digest="x")))


def test_the_known_answers_of_logins_are_proved(vectors: Any) -> None:
    for known in vectors("contracts/auth-proof.json"):
        key = SigningKey.from_seed(canonical.decode_base64url(known["seed"]))
        begun, bound = known["oauthInit"], known["flowBind"]
        assert prove(key, login_message(begun["redirectTo"], begun.get("context"))) == begun["sig"]
        assert prove(key, flow_message(bound["flowId"])) == bound["sig"]
