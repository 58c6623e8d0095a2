"""How the authority itself connects to NATS: as one of its own users, for as long as it lives."""

import asyncio
from typing import Any, Final

import structlog
from nats.errors import Error as NatsError

from accord.authority.errors import AuthorityError, Code
from accord.authority.nats.cluster import Cluster, Credentials
from accord.fabric.wire import Client

_log = structlog.stdlib.get_logger(__name__)

_SECONDS: Final = 10.0


async def connect(name: str, cluster: Cluster, user: Credentials, **options: Any) -> Client:
    """Connect; a connection that is lost later is made again, however long that takes.

    Args:
        name: What the connection is for, for logs.
        cluster: The system.
        user: Which of the authority's users.
        options: More arguments of `nats.connect`.

    Raises:
        AuthorityError: The server does not let it in.
    """
    problem: Exception | None = None

    async def tell(error: Exception) -> None:
        nonlocal problem
        if repr(error) != repr(problem):  # while a server is away, every attempt says the same
            _log.warning("a connection to NATS has a problem", purpose=name, why=repr(error))
        problem = error

    arguments: dict[str, Any] = {
        "error_cb": tell,
        "name": f"accord {name}",
        **cluster.options(user),
        **options,
    }
    client = Client()
    try:
        # A first attempt that fails must say so, and not be repeated for ever.
        async with asyncio.timeout(_SECONDS):
            await client.connect(**arguments)
    except (OSError, NatsError, TimeoutError) as error:
        await client.close()
        raise AuthorityError(
            Code.UNAVAILABLE,
            f"NATS does not let the authority in to {name} ({problem or error!r})",
            where=", ".join(arguments["servers"]),
            mend="check the address and the credentials",
        ) from error
    return client
