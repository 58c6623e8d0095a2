"""The answers of this implementation to the vectors that all client libraries share."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from accord.contracts import session_proof
from accord.contracts.permissions import inbox_prefix
from accord.contracts.surfaces import escape_token
from accord.fabric.rules.errors import ValidationError
from accord.fabric.rules.idempotency import request_id
from accord.fabric.rules.terms import Event, event_pattern, event_subject
from accord.kernel import canonical
from accord.kernel.schema import compile_schema
from accord.kernel.signing import SigningKey

FILE: Final = Path(__file__).with_name("client_vectors.json")


def answers(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is computed for each vector."""
    return {
        "canonical": [canonical.encode(each["value"]).decode() for each in given["canonical"]],
        "numbers": [_number(each["hex"]) for each in given["numbers"]],
        "tokens": [escape_token(each["value"]) for each in given["tokens"]],
        "subjects": [_subjects(**each) for each in given["subjects"]],
        "requestIds": [_request_id(**each) for each in given["requestIds"]],
        "proofs": [_proofs(**each) for each in given["proofs"]],
    }


def _number(bits: str) -> str | None:
    try:
        return canonical.encode(struct.unpack(">d", bytes.fromhex(bits))[0]).decode()
    except canonical.CanonicalError:
        return None


def _request_id(own: str, key: str | None) -> str | None:
    try:
        return request_id(own, key)
    except ValidationError:
        return None


def _subjects(template: str, payload: Any, where: dict[str, Any]) -> list[str]:
    pointers = tuple(part.partition("}")[0] for part in template.split("{")[1:])
    event = Event("It", template, "", pointers, compile_schema(True), {})
    return [event_subject(event, payload), event_pattern(event, where)]


def _proofs(**each: Any) -> dict[str, str]:
    key = SigningKey.from_seed(canonical.decode_base64url(each["seed"]))
    session = session_proof.session_key(key)
    request = session_proof.rpc_message(
        session, each["subject"], each["payload"].encode(), each["iat"], each["requestId"]
    )
    login = session_proof.login_message(each["redirectTo"], each["context"])
    connect = session_proof.connect_message(each["digest"], each["iat"])
    return {
        "session": session,
        "inbox": inbox_prefix(session),
        "connect": session_proof.prove(key, connect),
        "token": session_proof.connect_token(key, each["digest"], each["iat"]),
        "request": session_proof.prove(key, request),
        "login": session_proof.prove(key, login),
        "flow": session_proof.prove(key, session_proof.flow_message(each["flowId"])),
    }
