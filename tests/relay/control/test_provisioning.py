"""How a managed gateway gets its secret by a signed token."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from accord.kernel import canonical
from accord.relay.connector import (
    ManagedClaims,
    ManagedTokens,
    ProvisionRequest,
    PublicKey,
    load_managed_keys,
)
from accord.relay.errors import Code, RelayError

NOW = 1_767_225_600


@pytest.fixture(scope="session")
def key() -> RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture(scope="session")
def stranger() -> RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture
def managed(key: RSAPrivateKey) -> ManagedTokens:
    return ManagedTokens([PublicKey(key.public_key(), "k1")], issuer="portal")


def claims(**given: Any) -> dict[str, Any]:
    base = {"aud": "agent:a1", "tenant": "t1", "iss": "portal", "iat": NOW, "exp": NOW + 300}
    return {name: value for name, value in {**base, **given}.items() if value is not None}


def sign(key: Any, headers: dict[str, Any] | None = None, **given: Any) -> str:
    return jwt.encode(claims(**given), key, "RS256", headers=headers or {"kid": "k1"})


def asked(**given: Any) -> ProvisionRequest:
    return ProvisionRequest(**{"gateway_id": "gw", "platform": "chat", "bot_id": "bot", **given})


def test_a_good_token_proves_tenant_and_instance(key: RSAPrivateKey, managed: Any) -> None:
    assert managed.verify(sign(key), NOW) == ManagedClaims("t1", "a1", NOW)


@pytest.mark.parametrize(
    "given",
    [
        {"aud": None},
        {"aud": "a1"},
        {"aud": "agent:"},
        {"aud": ["agent:a1"]},
        {"aud": 5},
        {"tenant": None},
        {"tenant": ""},
        {"tenant": 7},
        {"tenant": "x\x00"},
        {"iss": "somebody"},
        {"iss": None},
        {"exp": None},
        {"exp": "soon"},
        {"exp": True},
        {"exp": float("inf")},
        {"exp": float("nan")},
        {"iat": None},
        {"iat": NOW + 60},
        {"nbf": NOW + 60},
        {"nbf": "x"},
    ],
)
def test_a_token_with_wrong_claims_is_not_believed(
    key: RSAPrivateKey, managed: Any, given: dict[str, Any]
) -> None:
    with pytest.raises(RelayError) as refused:
        managed.verify(sign(key, **given), NOW)
    assert refused.value.code is Code.UNAUTHORIZED


def test_an_expired_token_says_so(key: RSAPrivateKey, managed: Any) -> None:
    assert managed.verify(sign(key), NOW + 300)
    with pytest.raises(RelayError) as refused:
        managed.verify(sign(key), NOW + 301)
    assert refused.value.code is Code.EXPIRED


def test_only_rs256_by_a_configured_key_is_believed(
    key: RSAPrivateKey, stranger: RSAPrivateKey, managed: Any
) -> None:
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    forged = [
        sign(stranger),
        sign(stranger, {}),
        sign(stranger, {"kid": "k1", "jku": "https://evil.example/keys"}),
        sign(key, {"kid": "another"}),
        jwt.encode(claims(), key, "RS512", headers={"kid": "k1"}),
        jwt.encode(claims(), key, "PS256", headers={"kid": "k1"}),
        jwt.encode(claims(), "", "none"),
        hmac_with(public),
        "",
        "a.b.c",
        "..",
        "\ud800.\ud800.x",
        sign(key)[:-4] + "AAAA",
        sign(key) + "x" * 20_000,
        f"{canonical.encode_base64url(b'[' * 9000)}.e30.e30",
        canonical.encode_base64url(b'{"a":' * 2000) + ".e30.e30",
    ]
    for token in forged:
        with pytest.raises(RelayError) as refused:
            managed.verify(token, NOW)
        assert refused.value.code is Code.UNAUTHORIZED


def hmac_with(public: bytes) -> str:
    """The classic confusion: the public key taken for a shared secret."""
    import base64
    import hashlib
    import hmac

    def part(value: dict[str, Any]) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    body = part({"alg": "HS256", "typ": "JWT", "kid": "k1"}) + b"." + part(claims())
    mac = base64.urlsafe_b64encode(hmac.new(public, body, hashlib.sha256).digest()).rstrip(b"=")
    return (body + b"." + mac).decode()


def test_without_keys_no_token_is_believed(key: RSAPrivateKey) -> None:
    with pytest.raises(RelayError):
        ManagedTokens().verify(sign(key), NOW)


@pytest.mark.parametrize("form", ["jwks", "pem"])
def test_keys_are_read_from_the_operators_file(
    tmp_path: Path, key: RSAPrivateKey, form: str
) -> None:
    path = tmp_path / "keys"
    if form == "jwks":
        entry = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
        path.write_text(json.dumps({"keys": [{**entry, "kid": "k1", "use": "sig"}]}))
    else:
        path.write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            * 2
        )
    tokens = ManagedTokens(load_managed_keys(path))
    assert tokens.verify(sign(key), NOW).instance == "a1"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b'{"keys": []}',
        b'{"keys": 5}',
        b'{"keys": [1]}',
        b'{"keys": [{"kty": "RSA"}]}',
        b'{"keys": [{"kty": "oct", "k": "AAAA"}]}',
        b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
        b"-----BEGIN NOTHING-----",
        b"\xff" * 10,
    ],
)
def test_a_file_without_usable_keys_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(RelayError) as refused:
        load_managed_keys(path)
    assert str(path) in str(refused.value)


def test_a_short_key_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with pytest.raises(RelayError):
        load_managed_keys(path)
    short = rsa.generate_private_key(65537, 1024).public_key()
    path.write_bytes(
        short.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    with pytest.raises(RelayError, match="2048"):
        load_managed_keys(path)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_a_repeated_call_returns_the_same_live_secret(half: Any) -> None:
    mine = ManagedClaims("t1", "a1", NOW)
    first = await half.control.provision(mine, asked(route_keys=("g1",)))
    second = await half.control.provision(mine, asked(platform="other", route_keys=("g2",)))
    assert first.secret == second.secret
    assert second.route_keys == ("g2",)
    assert (await half.directory.authenticate(half.bearer(first))).tenant == "t1"
    rotated = await half.control.rotate(await half.control.principal("a1"))
    assert (await half.control.provision(mine, asked())).secret == rotated.secret


@pytest.mark.parametrize(
    ("who", "what"),
    [
        (ManagedClaims("t2", "a1", NOW), {}),
        (ManagedClaims("t2", "a2", NOW), {}),
        (ManagedClaims("t1", "a1", NOW), {"gateway_id": "gw2"}),
    ],
)
async def test_a_call_that_does_not_fit_the_stored_record_conflicts(
    half: Any, who: ManagedClaims, what: dict[str, Any]
) -> None:
    first = await half.control.provision(ManagedClaims("t1", "a1", NOW), asked())
    with pytest.raises(RelayError) as refused:
        await half.control.provision(who, asked(**what))
    assert refused.value.code is Code.CONFLICT
    assert first.secret not in str(refused.value)
    assert len(await half.control.instances()) == 1


async def test_another_instance_of_the_tenant_binds_routes_and_gets_no_secret(half: Any) -> None:
    first = await half.control.provision(
        ManagedClaims("t1", "a1", NOW), asked(route_keys=("g1",), wake_url="https://wake.example/")
    )
    other = ManagedClaims("t1", "a2", NOW)
    given = await half.control.provision(
        other, asked(bot_id="another", route_keys=("g2",), wake_url="https://else.example/")
    )
    assert (given.secret, given.delivery_key, given.route_keys) == ("", "", ("g2",))
    [record] = await half.control.instances()
    assert record.wake_url == "https://wake.example/"
    status = await half.control.status(await half.control.principal("a1"))
    assert [each["route_key"] for each in status["routeKeys"]] == ["g1", "g2"]
    assert "another" not in str(status["identities"])
    assert first.secret not in "".join(await half.journal())
    # A key of another tenant stays where it is, and so does everything else.
    await half.control.route("t2", "chat", "g3")
    with pytest.raises(RelayError, match="another tenant"):
        await half.control.provision(other, asked(route_keys=("g9", "g3")))
    await half.control.revoke("a1")
    with pytest.raises(RelayError, match="taken"):
        await half.control.provision(other, asked(route_keys=("g4",)))


async def test_a_revoked_instance_binds_no_routes_to_another(half: Any) -> None:
    await half.control.provision(ManagedClaims("t1", "a1", NOW), asked())
    other = ManagedClaims("t1", "a2", NOW)
    await half.control.provision(other, asked(gateway_id="gw2"))
    await half.control.revoke("a2")
    with pytest.raises(RelayError, match="taken"):
        await half.control.provision(other, asked(route_keys=("g4",)))


async def test_route_keys_never_belong_to_two_tenants(half: Any) -> None:
    await half.control.provision(ManagedClaims("t1", "a1", NOW), asked(route_keys=("g1", "g2")))
    same = await half.control.provision(
        ManagedClaims("t1", "a2", NOW), asked(gateway_id="gw2", route_keys=("g1",))
    )
    assert same.route_keys == ("g1",)
    with pytest.raises(RelayError) as refused:
        await half.control.provision(
            ManagedClaims("t2", "a3", NOW), asked(gateway_id="gw3", route_keys=("g9", "g2"))
        )
    assert refused.value.code is Code.CONFLICT
    assert len(await half.control.instances()) == 2
    # The same key on another platform is another key.
    await half.control.provision(
        ManagedClaims("t2", "a3", NOW), asked(gateway_id="gw3", platform="else", route_keys=("g2",))
    )


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_of_two_tenants_that_ask_at_once_one_gets_the_route(half: Any) -> None:
    outcomes = await asyncio.gather(
        *(
            half.control.provision(
                ManagedClaims(f"t{n}", f"a{n}", NOW), asked(gateway_id=f"gw{n}", route_keys=("g1",))
            )
            for n in range(6)
        ),
        return_exceptions=True,
    )
    assert sum(isinstance(each, RelayError) for each in outcomes) == 5


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_route_keys_are_replaced_and_released(half: Any, inbound: Callable[..., Any]) -> None:
    mine = ManagedClaims("t1", "a1", NOW)
    await half.control.provision(mine, asked(route_keys=("g1", "g2")))
    await half.control.provision(mine, asked(route_keys=("g2", "g3")))
    for scope, tenant in (("g1", None), ("g2", "t1"), ("g3", "t1")):
        facts = await half.directory.facts(inbound(kind="group", chat="c", scope=scope))
        assert next(iter(facts.routes.values()), None) == tenant
    other = await half.control.provision(
        ManagedClaims("t2", "a2", NOW), asked(gateway_id="gw2", route_keys=("g1",))
    )
    assert other.tenant == "t2"


async def test_a_deprovisioned_instance_comes_back_only_by_a_newer_token(half: Any) -> None:
    first = await half.control.provision(ManagedClaims("t1", "a1", NOW), asked())
    half.clock.advance(10)
    await half.control.deprovision(await half.control.principal("a1"))
    with pytest.raises(RelayError) as refused:
        await half.control.provision(ManagedClaims("t1", "a1", NOW + 10), asked())
    assert refused.value.code is Code.UNAUTHORIZED
    again = await half.control.provision(
        ManagedClaims("t1", "a1", NOW + 11), asked(gateway_id="gw-new")
    )
    assert again.secret != first.secret
    with pytest.raises(RelayError):
        await half.directory.authenticate(half.bearer(first))
    assert (await half.directory.authenticate(half.bearer(again))).gateway_id == "gw-new"


async def test_an_instance_that_the_operator_revoked_stays_away_until_pardoned(half: Any) -> None:
    await half.control.provision(ManagedClaims("t1", "a1", NOW), asked())
    await half.control.revoke("a1")
    with pytest.raises(RelayError) as refused:
        await half.control.provision(ManagedClaims("t1", "a1", NOW + 99), asked())
    assert refused.value.code is Code.FORBIDDEN
    await half.control.pardon("a1")
    assert await half.control.provision(ManagedClaims("t1", "a1", NOW + 99), asked())
