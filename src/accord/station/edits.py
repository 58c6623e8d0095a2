"""Settings that a page may change: which ones, when a change holds, and how it is written.

A change is one key of the settings file. Comments and order stay, and nothing is written unless the
whole file is still valid. Addresses, secrets, paths, limits against abuse and how long data is kept
are not among them: a mistake there shuts people out, lets them in, or deletes something.
"""

import os
import secrets
import stat
import tomllib
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import tomlkit
from tomlkit.exceptions import TOMLKitError

from accord.kernel.files import sync_folder
from accord.station.errors import SettingsError
from accord.station.settings import FILE_NAME, Settings, load, secret_files, sections, variable


class Applies(Enum):
    """When a changed setting holds."""

    NOW = "now"
    RESTART = "restart"


EDITABLE: Final[Mapping[tuple[str, str], Applies]] = {
    ("station", "name"): Applies.RESTART,
    ("station", "drain_seconds"): Applies.RESTART,
    ("log", "level"): Applies.NOW,
    ("log", "format"): Applies.RESTART,
    ("log", "file"): Applies.RESTART,
    ("metrics", "history_seconds"): Applies.RESTART,
    ("telemetry", "sample"): Applies.RESTART,
    ("community", "sync_seconds"): Applies.RESTART,
    ("community", "gossip_fanout"): Applies.RESTART,
    ("routing", "enabled"): Applies.RESTART,
    ("routing", "local"): Applies.RESTART,
    ("routing", "attempts"): Applies.RESTART,
    ("routing", "seconds"): Applies.RESTART,
    ("models", "max_concurrent"): Applies.RESTART,
    ("models", "max_waiting"): Applies.RESTART,
    ("models", "discover_seconds"): Applies.RESTART,
    ("models", "seconds"): Applies.RESTART,
    ("models", "ctx"): Applies.RESTART,
    ("models", "threads"): Applies.RESTART,
    ("media", "seconds"): Applies.RESTART,
    ("media", "document_pages"): Applies.RESTART,
    ("rag", "search_seconds"): Applies.RESTART,
    ("rag", "search_nodes"): Applies.RESTART,
    ("rag", "search_corpora"): Applies.RESTART,
    ("pipeline", "export_seconds"): Applies.RESTART,
    ("console", "session_hours"): Applies.RESTART,
    ("console", "idle_hours"): Applies.RESTART,
    ("console", "language"): Applies.NOW,
    ("concierge", "enabled"): Applies.RESTART,
    ("concierge", "corpus"): Applies.RESTART,
    ("concierge", "model"): Applies.RESTART,
}


def choices(section: str, key: str) -> tuple[str, ...]:
    """The words that a setting may be; none where it may be anything of its type."""
    annotation = sections()[section].model_fields[key].annotation
    if annotation is bool:
        return ("true", "false")
    return tuple(map(str, get_args(annotation))) if get_origin(annotation) is Literal else ()


def change_setting(settings: Settings, section: str, key: str, text: str | None) -> Settings:
    """Write a setting into the settings file, and return the settings that the file now says.

    Args:
        settings: Those that the station runs with.
        text: The value as a person writes it; None for the default.

    Raises:
        SettingsError: It may not be changed here, or is wrong. The file is then as it was.
    """
    place = f"[{section}] {key}"
    _demand_editable(section, key, place)
    file = _file(settings)
    before = _read(file)
    try:
        if not isinstance(tomllib.loads(before).get(section, {}), dict):
            raise _as_written(file, place)
        document = tomlkit.parse(before)
        _set(document, section, key, None if text is None else _value(section, key, text, place))
        after = tomlkit.dumps(document)
        expected = _plain(before, section, key, text, place)
    except (TOMLKitError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(
            "the settings file cannot be changed",
            where=str(file),
            mend="see what accord config check says about it",
        ) from error
    if tomllib.loads(after) != expected:
        raise _as_written(file, place)
    return _replace(settings, file, before, after, place)


def _as_written(file: Path, place: str) -> SettingsError:
    return SettingsError(
        "this setting cannot be changed as the file is written",
        where=f"{file}: {place}",
        mend="change it in the file",
    )


def _demand_editable(section: str, key: str, place: str) -> None:
    if (section, key) not in EDITABLE:
        raise SettingsError(
            "this setting is not changed on a page", where=place[:80], mend="change it in the file"
        )
    name = variable(section, key)
    taken = {name, *(each for each, at in secret_files().items() if at == (section, key))}
    if given := taken & set(map(str.upper, os.environ)):
        raise SettingsError(
            "the environment sets this, and stands above the file",
            where=f"environment variable {min(given)}",
            mend="change it there",
        )


def _file(settings: Settings) -> Path:
    """The file that was read, or that of the home; the target of a link."""
    return (settings.file or settings.home / FILE_NAME).resolve()


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            "the settings file cannot be read",
            where=str(file),
            mend="make it a UTF-8 file that this user may read",
        ) from error


def _value(section: str, key: str, text: str, place: str) -> bool | int | float | str:
    """A value of the setting's type; whether it is within its limits is checked with the file."""
    annotation: Any = sections()[section].model_fields[key].annotation
    text = text.strip()
    try:
        if annotation is bool:
            return {"true": True, "false": False}[text]
        if annotation is int:
            return int(text[:40])
        if annotation is float:
            number = float(text[:40])
            return int(number) if number.is_integer() and "." not in text else number
    except (ValueError, KeyError, OverflowError):
        kinds = {bool: "true or false", int: "a whole number", float: "a number"}
        raise SettingsError(
            f"the value should be {kinds[annotation]}", where=place, mend="correct it"
        ) from None
    if not text.isprintable():
        raise SettingsError("the value has control characters", where=place, mend="correct it")
    return text


def _set(document: Any, section: str, key: str, value: bool | float | str | None) -> None:
    if value is None:
        if section in document and key in document[section]:
            del document[section][key]
        return
    if section not in document:
        document[section] = tomlkit.table()
    document[section][key] = value


def _plain(before: str, section: str, key: str, text: str | None, place: str) -> dict[str, Any]:
    """What the file should say: as before, but for this one key."""
    told = tomllib.loads(before)
    if text is not None:
        told.setdefault(section, {})[key] = _value(section, key, text, place)
    elif section in told:
        told[section].pop(key, None)
    return told


def _replace(settings: Settings, file: Path, before: str, after: str, place: str) -> Settings:
    """Put a new file in place of the old one, if it is valid and nobody has changed it since."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else 0o600
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(after.encode())
            opened.flush()
            os.fsync(descriptor)
        draft.chmod(mode)
        try:
            changed = load(settings.home, draft)
        except SettingsError as error:
            raise SettingsError(
                error.what,
                where=(error.where or place).replace(str(draft), str(file)),
                mend=error.mend,
            ) from None
        if _read(file) != before:
            raise SettingsError(
                "somebody has changed the settings file meanwhile",
                where=str(file),
                mend="load the page again",
            )
        draft.rename(file)
        sync_folder(file.parent)
    except OSError as error:
        raise SettingsError(
            f"the settings file cannot be written ({error.strerror})",
            where=str(file),
            mend="let this user write there, or change it by hand",
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    return changed
