"""The settings object: defaults, then one TOML file, then the environment.

`sections` declares what may be set; this module reads it and says what is wrong.
"""

import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import pydantic_settings
from pydantic import BaseModel, PrivateAttr, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from accord.authority.settings import AuthoritySettings
from accord.bridge.settings import BridgeSettings
from accord.capabilities.settings import (
    DoorsSettings,
    MediaSettings,
    ModelsSettings,
    RagSettings,
)
from accord.relay.errors import RelayError
from accord.relay.platforms import settings
from accord.relay.platforms.settings import DEFAULT_LIMITS, PlatformLimits, WebChatLimits
from accord.station.errors import SettingsError
from accord.station.relay_limits import ConnectorSettings
from accord.station.sections import (
    CommunitySettings,
    ConciergeSettings,
    ConsoleSettings,
    LogSettings,
    MetricsSettings,
    PipelineSettings,
    RoutingSection,
    StationSettings,
    StoreSettings,
    TelemetrySettings,
)

__all__ = ["LogSettings", "Settings", "TelemetrySettings", "load", "sections", "variable"]

PREFIX = "ACCORD_"
FILE_NAME = "accord.toml"

# Variables that are not settings: the home, the folder of the tests' known answers, and where an
# operator's commands find a connector on another machine.
OTHER_VARIABLES = frozenset(
    {
        "ACCORD_HOME",
        "ACCORD_RELAY_CONNECTOR",
        "ACCORD_RELAY_TOKEN",
        "ACCORD_RELAY_TOKEN_FILE",
        "ACCORD_VECTORS",
    }
)

_TOML_PLACE = re.compile(r"(.*) \(at (.*)\)", re.DOTALL)


class Settings(BaseSettings):
    """Everything that can be set, and the home folder it belongs to."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    _file: Path | None = PrivateAttr(None)

    home: Path = Path()
    station: StationSettings = StationSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    store: StoreSettings = StoreSettings()
    community: CommunitySettings = CommunitySettings()
    routing: RoutingSection = RoutingSection()
    relay: ConnectorSettings = ConnectorSettings()
    platforms: PlatformLimits = DEFAULT_LIMITS
    webchat: WebChatLimits = WebChatLimits()
    authority: AuthoritySettings = AuthoritySettings()
    models: ModelsSettings = ModelsSettings()
    media: MediaSettings = MediaSettings()
    rag: RagSettings = RagSettings()
    doors: DoorsSettings = DoorsSettings()
    pipeline: PipelineSettings = PipelineSettings()
    console: ConsoleSettings = ConsoleSettings()
    concierge: ConciergeSettings = ConciergeSettings()
    bridge: BridgeSettings = BridgeSettings()

    @property
    def file(self) -> Path | None:
        """The settings file that was read; None if there is none."""
        return self._file

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put the environment above the file, whose content `load` passes as arguments.

        Variables that name files of secrets are handled by `load`, too.
        """
        if isinstance(env_settings, EnvSettingsSource):
            files = set(secret_files())
            own = env_settings.env_vars
            env_settings.env_vars = {
                name: text for name, text in own.items() if name.upper() not in files
            }
        return env_settings, init_settings


def sections() -> dict[str, type[BaseModel]]:
    """Return every section by its name in the file."""
    return {
        name: field.annotation
        for name, field in Settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }


def tables(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return the settings of a section that are arrays of tables: `[[a.b]]`."""
    found = {}
    for name, field in model.model_fields.items():
        for argument in get_args(field.annotation):
            if isinstance(argument, type) and issubclass(argument, BaseModel):
                found[name] = argument
    return found


def variable(section: str, key: str) -> str:
    """Return the environment variable for a setting."""
    return f"{PREFIX}{section}__{key}".upper()


def secret_files() -> dict[str, tuple[str, str]]:
    """Return the variables that name a file with a secret, with its section and setting."""
    return {
        f"{variable(section, key)}_FILE": (section, key)
        for section, model in sections().items()
        for key, field in model.model_fields.items()
        if field.annotation is SecretStr
    }


def secrets_in(file: Path) -> list[str]:
    """Return the names of a file's secrets, such as `[metrics] token`."""
    found = []
    for section, written in _read(file, required=False).items():
        model = sections().get(section)
        if model is None or not isinstance(written, dict):
            continue
        for key, value in written.items():
            field = model.model_fields.get(key)
            table = tables(model).get(key)
            rows = value if table is not None and isinstance(value, list) else ()
            inner = {
                name
                for row in rows
                if table is not None and isinstance(row, dict)
                for name, given in row.items()
                if given and name in table.model_fields and _is_secret(table.model_fields[name])
            }
            if value and field is not None and _is_secret(field):
                found.append(f"[{section}] {key}")
            found += [f"[[{section}.{key}]] {name}" for name in sorted(inner)]
    return found


def _is_secret(field: FieldInfo) -> bool:
    return field.annotation is SecretStr or SecretStr in get_args(field.annotation)


def load(home: Path | str | None = None, config: Path | str | None = None) -> Settings:
    """Load the settings of the station whose folder is `home`.

    Args:
        home: The station's folder; by default `ACCORD_HOME`, else `~/.accord`.
        config: The settings file; by default `accord.toml` in the home, which need not exist.

    Raises:
        SettingsError: The file cannot be read, or a setting is unknown or wrong.
    """
    folder = home_folder(home)
    file = Path(config).expanduser().absolute() if config else folder / FILE_NAME
    written = _read(file, required=config is not None)
    findings = [*_unknown_variables(os.environ), *_unknown_sections(file, written)]
    known = {name: value for name, value in written.items() if name in sections()}
    for (section, key), secret in _read_secrets(os.environ, findings).items():
        if isinstance(known.setdefault(section, {}), dict):
            known[section][key] = secret
    try:
        settings = Settings(**known)
    except ValidationError as error:
        wrong = [_finding(file, detail) for detail in error.errors(include_url=False)]
        findings += [finding for finding in wrong if finding.where not in _places(findings)]
    except pydantic_settings.SettingsError as error:
        findings += [SettingsError(str(error), where="the environment")] if not findings else []
    else:
        if not findings:
            settings._file = file if file.exists() else None  # noqa: SLF001
            return settings.model_copy(update={"home": folder})
    # The cause holds the values as written, secrets included.
    raise SettingsError.of(findings) from None


def _places(findings: Sequence[SettingsError]) -> set[str | None]:
    return {finding.where for finding in findings}


def home_folder(home: Path | str | None = None) -> Path:
    """Return the station's folder: the given one, else `ACCORD_HOME`, else `~/.accord`."""
    chosen = home or os.environ.get("ACCORD_HOME") or "~/.accord"
    try:
        return Path(chosen).expanduser().absolute()
    except RuntimeError:
        raise SettingsError(
            "the user has no home folder to keep the station in",
            where=str(chosen),
            mend="name a folder with --home or ACCORD_HOME",
        ) from None


def home_option(home: Path) -> str:
    """Return the option that selects this home in commands; empty for the default home."""
    return "" if home == home_folder() else f" --home {shlex.quote(str(home))}"


def _read(file: Path, *, required: bool) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_bytes().decode())
    except (FileNotFoundError, NotADirectoryError):
        if not required:
            return {}
        raise SettingsError(
            "there is no such settings file", where=str(file), mend="name one that exists"
        ) from None
    except OSError as error:
        raise SettingsError(
            f"the settings file cannot be read: {error.strerror}",
            where=str(file),
            mend="make it a file that this user may read",
        ) from error
    except RecursionError:
        raise SettingsError(
            "the file nests too deeply", where=str(file), mend="write [section] and key = value"
        ) from None
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"byte {error.start} is not UTF-8", where=str(file), mend="save the file as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        match = _TOML_PLACE.fullmatch(str(error))
        what, place = match.groups() if match else (str(error), "somewhere")
        raise SettingsError(
            f"the file is not TOML: {what[:1].lower()}{what[1:]}",
            where=f"{file}, {place}",
            mend='write settings as [section] and key = value, with texts in "quotes"',
        ) from None


def _read_secrets(
    environment: Mapping[str, str], findings: list[SettingsError]
) -> dict[tuple[str, str], SecretStr]:
    """Read the secret files that the environment names; errors are added to the findings."""
    given = {name.upper(): value for name, value in environment.items()}
    found = {}
    for name, place in secret_files().items():
        if not (file := given.get(name)):
            continue
        where = f"environment variable {name}"
        if variable(*place) in given:
            mend = f"keep one of {variable(*place)} and {name}"
            findings.append(SettingsError("the secret is given twice", where=where, mend=mend))
            continue
        try:
            found[place] = settings.read_secret_file(file, where)
        except RelayError as error:
            findings.append(SettingsError(error.what, where=where, mend=error.mend))
    return found


def _unknown_variables(environment: Mapping[str, str]) -> Iterator[SettingsError]:
    known = [
        variable(name, key) for name, model in sections().items() for key in model.model_fields
    ]
    taken = {*OTHER_VARIABLES, *known, *secret_files()}
    for name in sorted(map(str.upper, environment)):
        if name.startswith(PREFIX) and name not in taken:
            yield _no_such("setting", f"environment variable {name}", name, known, "unset it")


def _unknown_sections(file: Path, written: Mapping[str, object]) -> Iterator[SettingsError]:
    for name in written:
        if name not in sections():
            place = f"{file}: [{name}]" if isinstance(written[name], dict) else f"{file}: {name}"
            yield _no_such("section", place, name, list(sections()), "remove it")


def _no_such(
    kind: str, where: str, name: str, known: Sequence[str], otherwise: str
) -> SettingsError:
    near = get_close_matches(name, known, n=1)
    mend = f"did you mean {near[0]}?" if near else f"{otherwise}, or use one of {', '.join(known)}"
    return SettingsError(f"there is no such {kind}", where=where, mend=mend)


def _finding(file: Path, detail: ErrorDetails) -> SettingsError:
    section, *keys = (str(step) for step in detail["loc"])
    if not keys and detail["type"] == "value_error":
        # Two settings of a section that do not fit together.
        return SettingsError(
            detail["msg"].removeprefix("Value error, "),
            where=f"{file}: [{section}]",
            mend="correct one of them",
        )
    if not keys:
        return SettingsError(
            "a section is wanted, not a value",
            where=f"{file}: {section}",
            mend=f"write it as [{section}] with its settings below",
        )
    key = keys[0]
    name = variable(section, key)
    given = set(map(str.upper, os.environ)) & {name, f"{name}_FILE"}
    where = f"environment variable {given.pop()}" if given else f"{file}: [{section}] {key}"
    fields = sections()[section].model_fields
    if key not in fields:
        return _no_such("setting", where, key, list(fields), "remove it")
    if table := tables(sections()[section]).get(key):
        return _finding_in_table(where, table, keys[1:], detail["msg"])
    default = fields[key].default
    secret = isinstance(default, SecretStr)
    # Never show the value of a secret, not even a wrong one.
    seen = "" if secret else f", not {detail['input']!r}"
    shown = fields[key].examples
    example = f"a value such as {shown[0]}" if shown else f"the default {default!r}"
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return SettingsError(
        f"the value {message[:1].lower()}{message[1:]}{seen}",
        where=where,
        mend=f"correct it, for example to {example}",
    )


def _finding_in_table(
    where: str, table: type[BaseModel], keys: Sequence[str], message: str
) -> SettingsError:
    """An error in one of several tables; the value is not shown, since it may be a secret."""
    number, key, *_ = (*keys, "", "")
    place = f"{where}, table {int(number) + 1}" if number.isdecimal() else where
    if key and key not in table.model_fields:
        return _no_such("setting", f"{place}: {key}", key, list(table.model_fields), "remove it")
    message = message.removeprefix("Value error, ").removeprefix("Input ")
    return SettingsError(
        f"the value {message[:1].lower()}{message[1:]}",
        where=f"{place}: {key}" if key else place,
        mend=(table.model_fields[key].description or "correct it") if key else "correct it",
    )
