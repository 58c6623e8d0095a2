"""The library of Standard Webhooks and ours say the same of every request."""

import base64
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import orjson
from standardwebhooks import Webhook, WebhookVerificationError

from accord.kernel.signing import SigningKey, parse_id
from accord.relay.platforms import webhook

REQUESTS = 1000


def requests(
    seed: int,
) -> Iterator[tuple[random.Random, webhook.WebhookKeys, Webhook, str, int, bytes]]:
    chance = random.Random(seed)
    now = int(time.time())
    for number in range(REQUESTS):
        secret = "whsec_" + base64.b64encode(chance.randbytes(chance.randint(24, 64))).decode()
        body = orjson.dumps({"text": "é👋 \n" * chance.randint(0, 9), "n": number})
        yield (
            chance,
            webhook.read_keys(secret, "secret"),
            Webhook(secret),
            f"msg_{chance.randrange(10**9)}",
            now + chance.randint(-60, 60),
            body,
        )


def theirs(other: Webhook, name: str, timestamp: str, body: bytes, signature: str) -> bool:
    headers = {
        "webhook-id": name,
        "webhook-timestamp": timestamp,
        "webhook-signature": signature,
    }
    try:
        other.verify(body, headers, json_parse=False)
    except (WebhookVerificationError, ValueError):
        return False
    return True


def test_both_agree_on_a_thousand_requests_half_of_them_tampered_with() -> None:
    accepted = 0
    for chance, keys, other, name, moment, body in requests(1):
        signature = other.sign(name, datetime.fromtimestamp(moment, UTC), body.decode())
        assert keys.sign(name, moment, body) == signature
        given = (name, str(moment), body, signature)
        match chance.randrange(10):
            case 0:
                given = (name + "1", str(moment), body, signature)
            case 1:
                given = (name, str(moment + 1), body, signature)
            case 2:
                given = (name, str(moment), body.replace(b"n", b"m", 1), signature)
            case 3:
                given = (name, str(moment), body, "v1," + signature[:2:-1])
            case 4:
                given = (name, str(moment), body, signature.replace("v1,", "v2,"))
            case _:
                assert keys.is_signed(*given)
        answer = keys.is_signed(*given)
        assert answer == theirs(other, *given)
        accepted += answer
    assert 400 < accepted < 600


def test_during_a_rotation_they_take_what_we_sign_with_both_keys() -> None:
    for chance, _, _, name, moment, body in requests(2):
        old, new, public = (base64.b64encode(chance.randbytes(32)).decode() for _ in range(3))
        keys = webhook.read_keys(f"whsec_{new} whsec_{old} whsk_{public}", "send_secret")
        signatures = keys.sign(name, moment, body)
        for secret in (old, new):
            assert theirs(Webhook(f"whsec_{secret}"), name, str(moment), body, signatures)


def test_an_asymmetric_signature_is_proven_by_its_public_key_alone() -> None:
    chance = random.Random(3)
    for _ in range(100):
        key = SigningKey.from_seed(chance.randbytes(32))
        private = webhook.read_keys("whsk_" + base64.b64encode(key.seed).decode(), "send_secret")
        public = webhook.read_keys("whpk_" + base64.b64encode(parse_id(key.id)).decode(), "secret")
        signature = private.sign("msg", 1, b"{}")
        assert signature.startswith("v1a,")
        assert public.is_signed("msg", "1", b"{}", signature)
        assert not public.is_signed("msg", "2", b"{}", signature)
        assert not private.is_signed("msg", "1", b"{}", signature)
