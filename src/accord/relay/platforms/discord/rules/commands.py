"""The commands that agents offer, in Discord's form. Pure.

A command that Discord would refuse is left out, so that the others are shown.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

MOST_COMMANDS: Final = 100
_MOST_OPTIONS: Final = 25
_MOST_CHOICES: Final = 25
_LONGEST: Final = 100
_NAME: Final = re.compile(r"[\w-]{1,32}")
_SUB_COMMAND: Final = 1
_GROUP: Final = 2
_TEXT: Final = 3
_OPTIONS: Final = range(_TEXT, 12)
_CHOOSABLE: Final = {_TEXT: (str,), 4: (int,), 10: (int, float)}

CommandPayload = dict[str, Any]


def read_commands(manifest: Any) -> list[CommandPayload]:
    """The valid commands of a manifest (name, description, options); the first of each name."""
    found: dict[str, CommandPayload] = {}
    for entry in manifest[:MOST_COMMANDS] if isinstance(manifest, list) else ():
        command = _named(entry)
        if command is None:
            continue
        options = _options(entry.get("options"), depth=0)
        if options:
            command["options"] = options
        found.setdefault(command["name"], {**command, "type": 1})
    return list(found.values())


def merge_commands(offers: Mapping[str, list[CommandPayload]]) -> list[CommandPayload]:
    """The commands of all instances; of equal names, that of the first instance by id."""
    found: dict[str, CommandPayload] = {}
    for instance in sorted(offers):
        for command in offers[instance]:
            found.setdefault(command["name"], command)
    return [found[name] for name in sorted(found)][:MOST_COMMANDS]


def _named(entry: Any) -> CommandPayload | None:
    match entry:
        case {"name": str(name)} if _NAME.fullmatch(name) and name == name.lower():
            said = entry.get("description")
            description = said.strip() if isinstance(said, str) else ""
            return {"name": name, "description": description[:_LONGEST] or name}
        case _:
            return None


def _options(value: Any, depth: int) -> list[CommandPayload]:
    """Options, required ones first as Discord demands; or sub-commands, but not both."""
    found: dict[str, CommandPayload] = {}
    for entry in value[:_MOST_OPTIONS] if isinstance(value, list) else ():
        option = _option(entry, depth)
        if option is not None:
            found.setdefault(option["name"], option)
    nested = [each for each in found.values() if each["type"] in (_SUB_COMMAND, _GROUP)]
    return nested or sorted(found.values(), key=lambda each: not each.get("required", False))


def _option(entry: Any, depth: int) -> CommandPayload | None:
    option = _named(entry)
    if option is None:
        return None
    kind = entry.get("type", _TEXT)
    if type(kind) is not int:
        return None
    option["type"] = kind
    if (kind == _GROUP and depth == 0) or (kind == _SUB_COMMAND and depth <= 1):
        # Within a group there are sub-commands, and within these there are options.
        options = _options(entry.get("options"), 1 if kind == _GROUP else 2)
        if kind == _GROUP:
            options = [each for each in options if each["type"] == _SUB_COMMAND]
        if options:
            option["options"] = options
        return option if options or kind == _SUB_COMMAND else None
    if kind not in _OPTIONS:
        return None
    if entry.get("required") is True:
        option["required"] = True
    choices = _choices(entry.get("choices"), kind)
    if choices:
        option["choices"] = choices
    return option


def _choices(value: Any, kind: int) -> list[CommandPayload]:
    allowed = _CHOOSABLE.get(kind)
    if allowed is None or not isinstance(value, list):
        return []
    found: dict[str, CommandPayload] = {}
    for entry in value[:_MOST_CHOICES]:
        match entry:
            case {"name": str(name), "value": chosen} if 0 < len(name) <= _LONGEST:
                is_short = not isinstance(chosen, str) or len(chosen) <= _LONGEST
                if type(chosen) in allowed and is_short:
                    found.setdefault(name, {"name": name, "value": chosen})
            case _:
                continue
    return list(found.values())
