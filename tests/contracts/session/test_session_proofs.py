"""A session proves what it says, byte by byte as existing implementations do."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from accord.contracts.session_proof import (
    connect_message,
    connect_token,
    flow_message,
    is_proved,
    login_message,
    prove,
    rpc_message,
    session_key,
)
from accord.kernel import canonical
from accord.kernel.signing import SigningKey

KEY = SigningKey.from_seed(bytes(range(32)))
SESSION = session_key(KEY)
REQUEST = (SESSION, "rpc.v1.X", b"{}", 1_735_689_700, "request-1")


def test_known_proofs(vectors: Callable[[str], Any]) -> None:
    for case in vectors("contracts/auth-proof.json"):
        key = SigningKey(canonical.decode_base64url(case["seed"]))
        connect, request = case["natsConnect"], case["rpcProof"]
        payload = request["payload"].encode()
        message = rpc_message(
            case["sessionKey"], request["subject"], payload, request["iat"], request["requestId"]
        )
        assert session_key(key) == case["sessionKey"]
        assert (
            prove(key, login_message(case["oauthInit"]["redirectTo"])) == case["oauthInit"]["sig"]
        )
        assert prove(key, flow_message(case["flowBind"]["flowId"])) == case["flowBind"]["sig"]
        signed = connect_message(connect["contractDigest"], connect["iat"])
        assert prove(key, signed) == connect["iatSig"]
        token = connect_token(key, connect["contractDigest"], connect["iat"])
        assert token == connect["runtimeToken"]
        hashed = canonical.encode_base64url(hashlib.sha256(payload).digest())
        assert hashed == request["payloadHashBase64url"]
        assert message.hex() == request["proofInputHex"]
        digest = canonical.encode_base64url(hashlib.sha256(message).digest())
        assert digest == request["proofDigestBase64url"]
        assert prove(key, message) == request["proof"]
        assert is_proved(case["sessionKey"], message, request["proof"])


def test_a_proof_covers_every_part_of_a_request() -> None:
    proof = prove(KEY, rpc_message(*REQUEST))
    assert is_proved(SESSION, rpc_message(*REQUEST), proof)
    others = ("A" * 43, "rpc.v1.Y", b"{ }", 1_735_689_701, "request-2")
    for place, other in enumerate(others):
        changed: Any = [*REQUEST]
        changed[place] = other
        assert not is_proved(SESSION, rpc_message(*changed), proof)


def test_parts_cannot_be_shifted_into_each_other() -> None:
    one = rpc_message(SESSION, "rpc.v1.X", b"", 1, "23")
    assert one != rpc_message(SESSION, "rpc.v1.X", b"", 12, "3")
    assert rpc_message("ab", "c", b"", 1, "") != rpc_message("a", "bc", b"", 1, "")


@pytest.mark.parametrize(
    ("session", "proof"), [("", ""), ("A", "A"), (SESSION, ""), ("é", "é"), (SESSION + "=", "AA")]
)
def test_what_is_malformed_proves_nothing(session: str, proof: str) -> None:
    assert not is_proved(session, b"message", proof)
