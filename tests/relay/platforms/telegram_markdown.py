"""MarkdownV2 as Telegram documents it, read strictly: the opposite of what the connector writes."""

from dataclasses import dataclass

RESERVED = frozenset("_*[]()~`>#+-=|{}.!")


@dataclass(frozen=True)
class Entity:
    kind: str
    text: str
    detail: str = ""


class EntitiesError(Exception):
    """What Telegram answers to a text that is not well formed."""


def parse(text: str) -> tuple[str, list[Entity]]:
    """The plain text and its entities, inner ones first."""
    plain: list[str] = []
    entities: list[Entity] = []
    open_: list[tuple[str, int]] = []
    at = 0

    def end(kind: str, detail: str = "") -> None:
        if not open_ or open_[-1][0] != kind:
            raise EntitiesError(f"Can't find end of the entity at {at}")
        start = open_.pop()[1]
        entities.append(Entity(kind, "".join(plain)[start:], detail))

    def toggle(kind: str) -> None:
        if any(each == kind for each, _ in open_):
            end(kind)
        else:
            open_.append((kind, len("".join(plain))))

    while at < len(text):
        inside = open_[-1][0] if open_ else ""
        here = text[at]
        if here == "\\" and at + 1 < len(text) and 0 < ord(text[at + 1]) < 127:
            plain.append(text[at + 1])
            at += 2
        elif inside == "pre":
            if text.startswith("```", at):
                end("pre")
                at += 3
            else:
                plain.append(here)
                at += 1
        elif inside == "code" and here != "`":
            plain.append(here)
            at += 1
        elif here == "`" and inside != "code" and text.startswith("```", at):
            open_.append(("pre", len("".join(plain))))
            at += 3
            line = text.find("\n", at)
            word = text[at:line] if line >= 0 else ""
            if word and not any(each.isspace() or each == "`" for each in word):
                at = line
            if text.startswith("\n", at):
                at += 1
        elif here == "`":
            toggle("code")
            at += 1
        elif text.startswith("__", at):
            toggle("underline")
            at += 2
        elif text.startswith("||", at):
            toggle("spoiler")
            at += 2
        elif here in "*_~":
            toggle({"*": "bold", "_": "italic", "~": "strikethrough"}[here])
            at += 1
        elif here == "[":
            open_.append(("link", len("".join(plain))))
            at += 1
        elif here == "]" and inside == "link":
            if not text.startswith("](", at):
                raise EntitiesError(f"a link without an address at {at}")
            at += 2
            url: list[str] = []
            while at < len(text) and text[at] != ")":
                at += text[at] == "\\" and at + 1 < len(text)
                url.append(text[at])
                at += 1
            if at == len(text):
                raise EntitiesError("Can't find end of a URL")
            end("link", "".join(url))
            at += 1
        elif here in RESERVED:
            raise EntitiesError(f"Character '{here}' is reserved and must be escaped")
        else:
            plain.append(here)
            at += 1
    if open_:
        raise EntitiesError(f"Can't find end of the entity {open_[-1][0]}")
    return "".join(plain), entities
