"""How the console asks services: in the session of the home's shell, as the commands do.

Owns the way from the shell's key to an answer. Whoever operates the authority lets it in once, by
the same steps as `accord rpc allow`; the history tells of it as of any other participant.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from accord.authority.assembly import Running
from accord.console.errors import ConsoleError
from accord.console.parts import Parts
from accord.contracts.session_proof import session_key
from accord.fabric import Authority, Service
from accord.fabric.shell import SHELL, shell_contract
from accord.kernel.signing import SigningError, SigningKey

_PATIENCE: Final = 10.0


async def is_allowed(parts: Parts, running: Running) -> bool:
    """Whether the shell of the home may call."""
    key = await asyncio.to_thread(_kept, _file(parts))
    return key is not None and session_key(key) in await _known(running)


async def allow(parts: Parts, running: Running) -> None:
    """Let the shell of the home call.

    Raises:
        AccordError: Its key cannot be made, or the authority refuses it.
    """
    wanted = {"deployment": SHELL, "compatibility": "mutable-dev"}
    await running.operating.do("deploy", wanted)
    key = session_key(await asyncio.to_thread(_made, _file(parts)))
    if key not in await _known(running):
        instance = {"deployment": SHELL, "key": key, "name": f"shell-{key[:8]}"}
        await running.operating.do("instances/add", instance)


async def ask(parts: Parts, target: Mapping[str, Any], name: str, payload: Any) -> Any:
    """Call an RPC of a contract.

    Raises:
        AccordError: The shell is not let in, or the call is refused.
    """
    key = await asyncio.to_thread(_kept, _file(parts))
    if key is None:
        raise ConsoleError(
            "the shell of this home may not call yet", mend="let it in, on Services", status=409
        )
    where = Authority(_reachable(parts.address), _PATIENCE)
    service = Service(shell_contract(target), key=key, authority=where)
    async with parts.turns.taken(), service.connect() as session:
        return await session.client(target).call(name, payload)


async def _known(running: Running) -> set[str]:
    told = await running.operating.do("deployments/list", {})
    if SHELL not in {each["id"] for each in told["deployments"]}:
        return set()
    told = await running.operating.do("instances/list", {"deployment": SHELL})
    return {each["key"] for each in told["instances"] if not each["disabled"]}


def _file(parts: Parts) -> Path:
    return parts.home / "keys" / "shell.ed25519"


def _kept(file: Path) -> SigningKey | None:
    return SigningKey.load(file) if file.exists() else None


def _made(file: Path) -> SigningKey:
    if file.exists():
        return SigningKey.load(file)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SigningError(
            f"the folder of the key cannot be made ({error.strerror})", where=str(file.parent)
        ) from None
    return SigningKey.create(file)


def _reachable(address: str) -> str:
    """Where it listens on every address, this machine's own is among them."""
    return address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
