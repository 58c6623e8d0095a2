"""What each side looks like on the other: names, schemas, errors, ids."""

import random
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.strategies import manifests, payload_schemas

from accord.bridge.calls import offered_forms
from accord.bridge.rules import (
    ERROR_SCHEMA,
    BridgeError,
    ChosenRpc,
    borrowed_capability,
    caller_contract,
    choose_rpcs,
    make_offering,
    rpc_name,
    to_community,
    to_fabric,
)
from accord.bridge.settings import BridgeSettings
from accord.capabilities.doors import descriptions
from accord.community.bus import Call, Registry, Topics
from accord.community.errors import Code, CommunityError
from accord.community.rules import check_registrable, load_descriptors, read_descriptor
from accord.contracts import compare, digest, validate
from accord.fabric import (
    ConflictError,
    DeadlineError,
    FabricError,
    NotFoundError,
    RemoteError,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
    read_error,
    write_error,
)
from accord.kernel.clock import SystemClock
from accord.kernel.schema import compile_schema

WORD = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True)
NAMES = st.builds(
    lambda family, words: ".".join((family, *words)),
    st.sampled_from(("llm", "embed", "rag", "market", "file", "experimental", "chat")),
    st.lists(WORD, min_size=1, max_size=3),
)


def form(name: str, version: str, request: Any, response: Any, stream: Any) -> dict[str, Any]:
    return {
        "name": name,
        "version": version,
        "stability": "stable",
        "trust": "member",
        "idempotent": True,
        "request_schema": request,
        "response_schema": response,
        "stream_schema": stream,
    }


FORMS = st.lists(
    st.builds(
        form,
        NAMES,
        st.sampled_from(("1.0", "1.1", "1.10", "2.0")),
        payload_schemas(),
        st.none() | payload_schemas(),
        st.none() | payload_schemas(),
    ),
    max_size=6,
)


@given(FORMS, st.randoms(use_true_random=False))
def test_whatever_is_offered_makes_a_valid_contract_with_one_digest(
    forms: list[dict[str, Any]], chance: random.Random
) -> None:
    made = make_offering(forms)
    assert validate(made.manifest) == []
    crossing = {each.capability for each in made.bridged.values()}
    left_out = {finding.pointer for finding in made.left_out}
    assert crossing | left_out == {each["name"] for each in forms}
    assert not crossing & left_out
    distinct = {(each["name"], each["version"]): each for each in forms}
    shuffled = list(distinct.values())
    chance.shuffle(shuffled)
    assert digest(make_offering(shuffled).manifest) == digest(
        make_offering(distinct.values()).manifest
    )


@given(FORMS)
def test_an_rpc_has_the_schemas_of_its_capability_s_newest_version(
    forms: list[dict[str, Any]],
) -> None:
    made = make_offering(forms)
    for rpc, bridged in made.bridged.items():
        declared = made.manifest["rpc"][rpc]
        same = [each for each in forms if each["name"] == bridged.capability]
        newest = max(tuple(map(int, each["version"].split("."))) for each in same)
        assert bridged.version == ".".join(map(str, newest))
        given_ = made.manifest["schemas"][declared["input"]["schema"]]
        assert given_ in [each["request_schema"] for each in same]


@given(NAMES, NAMES)
def test_two_capabilities_are_never_one_rpc(one: str, other: str) -> None:
    assert (rpc_name(one) == rpc_name(other)) == (one == other)


def test_our_own_capabilities_cross_but_those_that_speak_for_a_person() -> None:
    made = make_offering(descriptions().values())
    assert {finding.pointer: finding.rule for finding in made.left_out} == {
        "chat.history": "bridge.personal",
        "chat.send": "bridge.personal",
        "community.invite": "bridge.personal",
        "community.revoke": "bridge.personal",
        "experimental.chat.attachment": "bridge.personal",
        "experimental.chat.search": "bridge.personal",
        "experimental.community.withdraw": "bridge.personal",
        "experimental.rag.reembed": "bridge.stream",
    }
    assert made.bridged["Community.Rag.ListCorpora"].capability == "rag.list_corpora"
    assert made.bridged["Community.Llm.Chat"].may_stream
    assert not made.bridged["Community.File.Read"].may_stream


def test_only_what_was_chosen_and_is_offered_is_put_into_the_contract() -> None:
    registry = Registry(Topics(SystemClock()))
    for name in ("market.list", "market.post"):
        registry.register(load_descriptors("accord.capabilities.market")[f"{name}@1.0"], nobody)
    other = form("market.search", "1.0", {"type": "object"}, {"type": "object"}, None)
    del other["stream_schema"]
    registry.register(
        read_descriptor(other), nobody
    )  # schemas of its own, whose text nobody has here
    wanted = ("market.list", "market.search", "rag.query")
    assert [each["name"] for each in offered_forms(registry, wanted)] == ["market.list"]


async def nobody(_call: Call) -> Mapping[str, Any]:
    raise AssertionError


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"response_schema": None, "stream_schema": {"type": "object"}}, "bridge.stream"),
        ({"name": "chat.send"}, "bridge.personal"),
        ({"name": "experimental.service.shop.v1.find"}, "bridge.loop"),
        ({"request_schema": {"$ref": "#/$defs/a", "$defs": {"a": True}}}, "bridge.schema"),
    ],
)
def test_what_cannot_cross_is_left_out_with_its_rule(changed: dict[str, Any], rule: str) -> None:
    made = make_offering([form("market.list", "1.0", True, True, None) | changed])
    assert [finding.rule for finding in made.left_out] == [rule]
    assert made.manifest.get("rpc", {}) == {}


def test_a_capability_more_is_a_compatible_change_of_the_contract() -> None:
    forms = sorted(descriptions().values(), key=lambda each: str(each["name"]))
    report = compare(make_offering(forms[:-1]).manifest, make_offering(forms).manifest)
    assert report.compatible


@given(manifests(kind="service"), st.sampled_from(("member", "trusted", "anchor")))
def test_every_rpc_of_a_contract_can_be_a_capability(
    manifest: Mapping[str, Any], level: str
) -> None:
    for rpc, declared in manifest.get("rpc", {}).items():
        if manifest["id"].startswith("trellis."):
            with pytest.raises(BridgeError):
                ChosenRpc.parse(f"{manifest['id']}/{rpc}")
            continue
        chosen = ChosenRpc.parse(f"{manifest['id']}/{rpc}")
        if "transfer" in declared:
            with pytest.raises(BridgeError):
                borrowed_capability(manifest, chosen, level)
            continue
        descriptor = borrowed_capability(manifest, chosen, level)
        assert check_registrable(descriptor.name) == chosen.capability
        assert descriptor.trust.text == level
        schema = compile_schema(manifest["schemas"][declared["input"]["schema"]])
        for value in ({}, {"id": "x", "n": 1, "file": {}}, "text", None, 5):
            whole = {"params": {}, "input": value}
            assert descriptor.request.is_valid(whole) == schema.is_valid(value)


TEXTS = st.text(max_size=60) | st.builds(
    "{}@v{}/{}".format, st.text(min_size=1), st.integers(0, 10**5), st.text(min_size=1)
)


@given(TEXTS)
def test_any_text_in_the_list_of_services_is_chosen_or_refused(text: str) -> None:
    try:
        (chosen,) = choose_rpcs((text,))
    except BridgeError:
        return
    assert check_registrable(chosen.capability)
    assert validate(caller_contract([chosen]).manifest()) == []


@pytest.mark.parametrize(
    "services",
    [
        ("shop",),
        ("shop@v1/",),
        ("shop/Shop.Find",),
        ("trellis.auth@v1/Auth.Sessions.Me",),
        ("accord.community@v1/Community.Llm.Chat",),
        ("shop@v1/Shop.Find", "shop@v1/shop find".replace(" ", "-")),
    ],
)
def test_services_that_cannot_be_capabilities_are_no_setting(services: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"\[bridge\]|services"):
        BridgeSettings(services=services)


def test_by_default_no_service_is_for_members_and_no_plan_accepts_itself() -> None:
    settings = BridgeSettings()
    assert (settings.services, settings.accept) == ((), False)
    assert not any(re.match("chat|community|experimental", it) for it in settings.capabilities)


@pytest.mark.parametrize("code", list(Code))
def test_a_code_of_the_community_comes_back_as_itself_over_both_sides(code: Code) -> None:
    said = CommunityError(code, "not now", details={"retry_after_ms": 5})
    heard = read_error(write_error(to_fabric(said), "01", "0" * 32))
    assert isinstance(heard, RemoteError)
    assert compile_schema(dict(ERROR_SCHEMA)).is_valid(to_fabric(said).members())
    again = to_community(heard)
    assert again.code is code
    assert again.details["service_error"]["details"] == {"retry_after_ms": 5}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnauthorizedError("no"), Code.UNAUTHORIZED),
        (NotFoundError("no"), Code.NOT_FOUND),
        (ConflictError("no"), Code.BAD_REQUEST),
        (DeadlineError("no"), Code.TIMEOUT),
        (UnavailableError("no"), Code.PARTITION),
        (RemoteError("SoldOut", "no"), Code.BAD_REQUEST),
        (RemoteError("CommunityError", "no", {"code": "nonsense"}), Code.BAD_REQUEST),
        (RemoteError("CommunityError", "no", {"code": ["x"]}), Code.BAD_REQUEST),
        (FabricError("no"), Code.INTERNAL_ERROR),
    ],
)
def test_an_error_of_the_fabric_gets_the_nearest_code_and_keeps_its_type(
    error: FabricError, code: Code
) -> None:
    said = to_community(error)
    assert said.code is code
    assert said.details["service_error"]["type"] == error.type


def test_a_payload_that_breaks_a_contract_is_a_bad_request_with_its_issues() -> None:
    error = ValidationError("broken", issues=[{"path": "/id", "message": "expected text"}])
    said = to_community(error)
    assert said.code is Code.BAD_REQUEST
    assert said.details["service_error"]["issues"][0]["path"] == "/id"
