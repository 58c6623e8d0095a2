"""What the community's log knows of files: what each is called, what it is, and who shared it.

Pure. A blob itself has no name; documents and attachments give it one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from accord.console.naming import Names


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a file comes from.

    Attributes:
        name: What it is called; empty where nobody called it anything.
        kind: What it is to the community.
        shared_by: Who shared it, as people read it; empty when nobody did.
    """

    name: str = ""
    kind: str = "a file"
    shared_by: tuple[str, ...] = ()


def origins(
    files: Iterable[Mapping[str, Any]], messages: Iterable[Mapping[str, Any]], names: Names
) -> dict[str, Origin]:
    """What is known of each file.

    Args:
        files: What the node tells of them: who holds each, and which documents it is.
        messages: The chat, whose attachments have names.
        names: What members are called.
    """
    attached = {
        file["cid"]: Origin(file["name"], "attached to a message", (names(each["from"]),))
        for each in messages
        for file in each["attachments"]
    }
    return {each["cid"]: _origin(each, attached, names) for each in files}


def _origin(told: Mapping[str, Any], attached: Mapping[str, Origin], names: Names) -> Origin:
    cid, documents = told["cid"], told["documents"]
    if documents:
        corpora = sorted({each["corpus"] for each in documents})
        return Origin(
            next((each["title"] for each in documents if each["title"]), ""),
            f"a document in {', '.join(corpora)}",
            tuple(dict.fromkeys(names(each["by"]) for each in documents)),
        )
    if cid in attached:
        return attached[cid]
    if told["held_by"]:
        return Origin("", "a shared file", tuple(map(names, told["held_by"])))
    return Origin()
