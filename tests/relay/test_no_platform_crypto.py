"""The gateway's side verifies no platform's signature, and cannot: it has no means to.

The connector is the only border where platforms' secrets live. What the gateway has is the token
that authenticates it to the connector, made by `accord.kernel.tokens`.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import accord.relay

RELAY = Path(accord.relay.__file__).parent
FOLDERS = ("gateway", "rules")
CRYPTO = {"nacl", "cryptography", "jwt", "Crypto", "OpenSSL", "rsa", "ecdsa", "hmac", "secrets"}
FORBIDDEN = ("accord.kernel.signing", "accord.relay.connector", "accord.relay.platforms")


def imports(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports would hide what is imported"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def offences(source: str) -> list[str]:
    return [
        name
        for name in imports(source)
        if name.partition(".")[0] in CRYPTO or name.startswith(FORBIDDEN)
    ]


@pytest.mark.parametrize(
    "file", sorted(file for folder in FOLDERS for file in (RELAY / folder).rglob("*.py")), ids=str
)
def test_no_file_of_the_gateways_side_imports_platform_crypto(file: Path) -> None:
    assert offences(file.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "import nacl.signing",
        "from cryptography.hazmat import primitives",
        "import hmac",
        "from accord.kernel import signing",
        "from accord.relay.connector import Keyring",
    ],
)
def test_an_offence_would_be_noticed(line: str) -> None:
    assert offences(line)


def test_importing_the_gateway_brings_no_platform_crypto_into_the_process() -> None:
    program = (
        "import sys, accord.relay.gateway\n"
        f"bad = {sorted(CRYPTO - {'hmac', 'secrets'})!r}\n"
        f"worse = {FORBIDDEN!r}\n"
        "print([name for name in sys.modules "
        "if name.partition('.')[0] in bad or name.startswith(worse)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]", done.stderr
