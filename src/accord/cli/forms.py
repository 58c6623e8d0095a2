"""The forms of names and ids that commands take, told in words before anybody is asked.

Owns the sentences. Whether something of that name exists is for whoever keeps it.
"""

import re
from typing import Final

import typer

from accord.capabilities.rag import names

_NODE: Final = re.compile(r"ed25519:[A-Za-z0-9_-]{43}", re.ASCII)


def corpus(name: str) -> str:
    """The name of a corpus.

    Raises:
        typer.BadParameter: It cannot be one.
    """
    if not names.is_name(name):
        raise typer.BadParameter("expected at most 64 of a-z, 0-9 and -, such as `manuals`")
    return name


def own_corpus(name: str) -> str:
    """The name of a corpus that may be written to.

    Raises:
        typer.BadParameter: It cannot be one.
    """
    if corpus(name) == names.SYSTEM:
        raise typer.BadParameter(f"`{name}` is reserved; choose another name")
    return name


def post(event_id: str) -> str:
    """The id of a post of the market.

    Raises:
        typer.BadParameter: It cannot be one.
    """
    from accord.kernel.ulid import is_ulid

    if not is_ulid(event_id):
        raise typer.BadParameter(
            "a post's id has 26 digits and capitals; `accord market list` shows it before each"
        )
    return event_id


def node(node_id: str) -> str:
    """The id of a node.

    Raises:
        typer.BadParameter: It cannot be one.
    """
    if not _NODE.fullmatch(node_id.strip()):
        raise typer.BadParameter(
            "a node's id is `ed25519:` and 43 characters; its owner prints it with "
            "`accord community id`"
        )
    return node_id.strip()
