"""What existing gateways answered on the relay's wire: we must say the same, or say why not."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from accord.kernel import tokens
from accord.relay import rules
from accord.relay.errors import RelayError

Vectors = Callable[[str], Any]


def test_session_keys(vectors: Vectors) -> None:
    answers = vectors("relay/session_keys.json")
    for case in answers["cases"]:
        source = rules.SessionSource.from_dict(case["source"])
        options = answers["defaults"] | case["options"]
        assert rules.session_key(source, **options) == case["key"], case["id"]


def test_session_keys_by_what_a_hello_declares(vectors: Vectors) -> None:
    answers = vectors("relay/session_keys.json")
    for case in answers["cases"]:
        source = rules.SessionSource.from_dict(case["source"])
        declared = {"type": "hello", "platform": "relay", **case["options"]}
        hello = rules.read_frame(json.dumps(declared))
        assert isinstance(hello, rules.Hello), case["id"]
        assert hello.sessions.keys(source)[0] == case["key"], case["id"]
        # What is declared survives being written and read again.
        assert rules.read_frame(rules.write_frame(hello).strip()) == hello


def test_upgrade_tokens(vectors: Vectors) -> None:
    for case in vectors("relay/upgrade_tokens.json")["cases"]:
        if case["op"] == "make":
            made = tokens.make(case["payload"], case["secret"], case["now"], case["ttl_seconds"])
            assert made == case["token"]
        else:
            verified = tokens.verify(case["token"], case["secrets"], case["now"])
            assert verified == case["payload"], case["id"]


def test_descriptors(vectors: Vectors) -> None:
    for case in vectors("relay/descriptor.json")["cases"]:
        if "error" in case:
            with pytest.raises(RelayError):
                rules.Descriptor.from_dict(case["in"])
            continue
        descriptor = rules.Descriptor.from_dict(case["in"])
        assert descriptor.to_dict() == case["out"], case["id"]
        written = json.dumps(descriptor.to_dict(), sort_keys=True, ensure_ascii=False)
        assert written == case["canonical_json"]
        assert {
            "MAX_MESSAGE_LENGTH": descriptor.max_message_length,
            "supports_code_blocks": descriptor.supports_code_blocks,
            "len_of_a_rocket_b": descriptor.measure("a🚀b"),
            "supports_draft_streaming": descriptor.supports_draft_streaming,
        } == case["adapter"], case["id"]


def test_inbound_events(vectors: Vectors) -> None:
    for case in vectors("relay/inbound_events.json")["cases"]:
        event = rules.MessageEvent.from_dict(case["event"])
        source = event.source
        assert rules.session_key(source) == case["out"]["session_key"], case["id"]
        if source.platform not in rules.KNOWN_TO_EXISTING_GATEWAYS:
            # To an existing gateway a platform that it does not know is `relay`; to ours it is
            # itself.
            source = dataclasses.replace(source, platform=rules.GENERIC_PLATFORM)
        # The revision that gave these answers knew no profiles of chats.
        source = dataclasses.replace(source, profile=None)
        out = case["out"]
        assert event.text == out["text"]
        assert event.message_type.value == out["message_type"]
        assert event.message_id == out["message_id"]
        assert event.reply_to_message_id == out["reply_to_message_id"]
        assert list(event.media_urls) == out["media_urls"]
        # The specification's newest revision writes scope_id only; the alias may still appear.
        out["source"].pop("guild_id", None)
        assert source.to_dict() == out["source"], case["id"]


def test_outbound_actions(vectors: Vectors) -> None:
    for case in vectors("relay/outbound_actions.json")["cases"]:
        chats: dict[str, rules.SessionSource] = {}
        for inbound in case["inbound"]:
            source = rules.MessageEvent.from_dict(inbound).source
            chats[source.chat_id] = source
        written = []
        for call in case["calls"]:
            send = call["send"]
            last = chats.get(send["chat_id"])
            action = rules.Send(
                send["chat_id"],
                send["content"],
                send.get("reply_to"),
                rules.reply_metadata(last),
            )
            frame = rules.Outbound("r1", action, last.platform if last else None)
            line = json.loads(rules.write_frame(frame))
            written.append({"action": line["action"], "platform": line.get("platform")})
        assert written == case["outbound"], case["id"]


def test_passthrough(vectors: Vectors) -> None:
    for case in vectors("relay/passthrough.json")["cases"]:
        forward = rules.PassthroughForward.from_dict(case["forward"])
        assert {
            "platform": forward.platform,
            "bot_id": forward.bot_id,
            "method": forward.method,
            "path": forward.path,
            "headers": [list(header) for header in forward.headers],
            "body_hex": forward.body.hex(),
        } == case["decoded"], case["id"]
        if case["forward"]:
            assert forward.to_dict() == case["forward"]
        event = rules.interaction_event(forward)
        if case["event"] is None:
            assert event is None, case["id"]
            continue
        assert event is not None
        assert event.text == case["event"]["text"]
        case["event"]["source"].pop("guild_id", None)
        assert event.source.to_dict() == case["event"]["source"], case["id"]
        assert rules.session_key(event.source) == case["event"]["session_key"]


def test_policy_projection(vectors: Vectors) -> None:
    for case in vectors("relay/policy_projection.json")["cases"]:
        ((platform, _),) = rules.read_identities(case["env"])
        policy = rules.project_policy(platform, case["config"], case["env"])
        if case["policy"] is None:
            # Ours posts an all-default policy too, or a once strict one would stay (section 9).
            assert policy in (None, rules.RelevancePolicy()), case["id"]
            assert (policy is None) == (platform == rules.GENERIC_PLATFORM)
        else:
            assert policy is not None
            assert {"platform": platform, **policy.to_dict()} == case["policy"], case["id"]


def test_urls(vectors: Vectors) -> None:
    for case in vectors("relay/urls.json")["cases"]:
        assert rules.dial_url(case["in"]) == case["dial"]
        assert rules.http_url(case["in"], "/relay/provision") == case["provision"]
        assert rules.http_url(case["in"], "/relay/policy") == case["policy"]


def test_identities(vectors: Vectors) -> None:
    for case in vectors("relay/identities.json")["cases"]:
        found = [list(identity) for identity in rules.read_identities(case["env"])]
        assert found == case["identities"], case["id"]


def test_lengths_and_splitting(vectors: Vectors) -> None:
    for case in vectors("relay/chunking.json")["cases"]:
        if "chunks" not in case:
            assert rules.measure(case["text"], "chars") == case["chars"]
            assert rules.measure(case["text"], "utf16") == case["utf16"]
            continue
        assert rules.measure(case["text"], case["len_unit"]) == case["len"]
        pieces = rules.split_pieces(case["text"], case["max_length"], case["len_unit"])
        if len(case["chunks"]) == 1:
            assert rules.split_text(case["text"], case["max_length"], "chars") == case["chunks"]
        # Where it does not fit, section 9 decides otherwise: no counters, no lost white space, and
        # so never more pieces than there.
        assert 1 <= len(pieces) <= len(case["chunks"]), case["id"]
        assert all(len(str(piece)) <= case["max_length"] for piece in pieces)
        assert "".join(piece.body for piece in pieces) == case["text"]
