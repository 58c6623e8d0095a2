"""Settings: all of them by plane, folded and searched; an owner changes those that are safe."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from starlette.responses import Response

from accord.console.messages import mark, tr
from accord.console.page import Page, Visit
from accord.console.parts import ShownSetting
from accord.console.sessions import ConsoleError, Role, not_up

_WORDS: Final = 200
_VALUE: Final = 4000
_GROUPS: Final = (
    (mark("Station"), ("station", "log", "metrics", "telemetry", "store", "console")),
    (mark("Community"), ("community", "routing")),
    (mark("Agents and chats"), ("relay", "platforms", "webchat")),
    (mark("Services"), ("authority", "bridge")),
    (mark("Models and documents"), ("models", "media", "rag", "doors", "concierge")),
    (mark("Data"), ("pipeline",)),
)


@dataclass(frozen=True, slots=True)
class ShownSection:
    """A section with those of its settings that are shown."""

    name: str
    settings: Sequence[ShownSetting]
    changed: int
    is_open: bool


async def show(visit: Visit) -> Response:
    """Show the settings, or those with all the words that are looked for."""
    words = visit.query("words")[:_WORDS]
    edited = visit.form.text("setting")
    every = visit.parts.settings()
    found = [each for each in every if _has(each, words.casefold().split())]
    sections = {
        name: _section(name, list(each), bool(words), edited)
        for name, each in groupby(found, lambda setting: setting.section)
    }
    placed = {name for _, names in _GROUPS for name in names}
    groups = [
        (title, [sections[name] for name in names if name in sections]) for title, names in _GROUPS
    ]
    groups.append((mark("Others"), [each for name, each in sections.items() if name not in placed]))
    return visit.show(
        "settings.html",
        planes=[each for each in groups if each[1]],
        words=words,
        edited=edited,
        pending=[each for each in every if each.saved is not None],
        file=visit.parts.settings_file,
        home=visit.parts.home,
        address=visit.parts.address,
        device=visit.parts.node.key.id,
    )


async def change(visit: Visit) -> Response:
    """Change a setting, or set it back to its default."""
    name = visit.form.needed("setting", tr("The setting"))
    section, _, key = name.partition(".")
    if visit.parts.change_setting is None:
        raise not_up(tr("the settings file"))
    is_default = visit.form.text("default") == "yes"
    value = visit.form.texts.get("value", "")
    if not is_default and len(value) > _VALUE:
        raise ConsoleError(tr("this is too long"), where=name[:80], mend=tr("shorten it"))
    is_used = await visit.parts.change_setting(section, key, None if is_default else value)
    await visit.parts.note("console.setting_changed", visit.actor, setting=f"{section}.{key}")
    shown = {(each.section, each.key): each for each in visit.parts.settings()}
    if is_used and (section, key) == ("console", "language"):
        visit.console.language = shown[section, key].value
    if is_used:
        return visit.done(tr("{name} is changed, and holds from now on.", name=name))
    return visit.done(
        tr("{name} is saved. It holds when the station has been started again.", name=name)
    )


def _has(setting: ShownSetting, words: Sequence[str]) -> bool:
    text = f"[{setting.section}] {setting.key} {setting.variable} {setting.description}".casefold()
    return all(word in text for word in words)


def _section(
    name: str, settings: Sequence[ShownSetting], is_searched: bool, edited: str
) -> ShownSection:
    return ShownSection(
        name,
        settings,
        changed=sum(not each.is_default for each in settings),
        is_open=is_searched or edited.partition(".")[0] == name,
    )


PAGE: Final = Page(
    "settings",
    mark("Settings"),
    show,
    acts={"change": change},
    group=mark("Station"),
    acted_by=Role.OWNER,
)
