"""The page of the settings: every section, key, type, default and variable. Reads no setting."""

import json
from importlib import import_module
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from docs.making.markdown import bounds, code, join, meaning, sentence, table
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from accord.relay.gateway import GatewayLimits
from accord.station.settings import OTHER_VARIABLES, sections, tables, variable

_KINDS: Final = {str: "text", SecretStr: "secret text", int: "integer", float: "number"}
_OTHERS: Final = {
    "ACCORD_HOME": "the home",
    "ACCORD_RELAY_CONNECTOR": "the connector on another machine that `accord relay` looks after",
    "ACCORD_RELAY_TOKEN": "the operator's token for it",
    "ACCORD_RELAY_TOKEN_FILE": "a file with that token",
    "ACCORD_VECTORS": "where the tests find the known answers",
}

_FRAMES: Final = "it says what `frames_per_second` means, which is the setting"
_HOLDS: Final = "a transaction holds locks for that long; the rest follows in the next one"
_MEMORY: Final = "bounds memory alone: what is forgotten is read again"
# What, the module and the name in it, the unit, and why it is no setting.
_FIXED: Final = (
    (
        "frames that a gateway may have saved up",
        "relay.connector.socket",
        "_BURST_SECONDS",
        "seconds of `frames_per_second`",
        _FRAMES,
    ),
    (
        "how much of a line counts as one frame",
        "relay.connector.connections",
        "_BYTES_PER_FRAME",
        "bytes",
        _FRAMES,
    ),
    (
        "an id that a platform gives",
        "relay.connector.ingest",
        "_LONGEST_ID",
        "characters",
        "ids are keys in the store; no platform has longer ones",
    ),
    (
        "a link code",
        "relay.rules.messages",
        "LINK_CODE_BITS",
        "bits",
        "the protocol asks for at least 40; people type it",
    ),
    (
        "live secrets of one agent",
        "relay.connector.registry",
        "_MOST_SECRETS",
        "",
        "every upgrade is compared with all of them",
    ),
    (
        "refused hellos that `accord relay instances` shows, of one agent",
        "relay.connector.registry",
        "_MOST_REFUSED",
        "",
        "they stand in the record of the agent, which is read at each hello",
    ),
    (
        "operators' tokens",
        "relay.connector.operators",
        "_MOST_LIVE",
        "",
        "one list shows them all; a person has one",
    ),
    (
        "keys of managed tokens",
        "relay.connector.authentication",
        "_MOST_KEYS",
        "",
        "a token without a key id is tried with all of them",
    ),
    (
        "what a gateway is told to wait when its outbox is full",
        "relay.connector.outbox",
        "_FULL_SECONDS",
        "seconds",
        "an answer, not a limit; a gateway may ask sooner",
    ),
    (
        "the longest pause between two attempts to reach a platform's service",
        "relay.connector.leases",
        "_LONGEST_DELAY",
        "seconds",
        "messages wait for it, and a service that is back is asked a little later at most",
    ),
    (
        "the pause after a service refused the bot's credentials",
        "relay.connector.leases",
        "_REFUSED_DELAY",
        "seconds",
        "services ban clients that ask more often; a person has to act anyway",
    ),
    (
        "rows that one transaction of the retention removes",
        "relay.connector.retention",
        "_MOST",
        "of a table",
        _HOLDS,
    ),
    (
        "rows that one transaction makes dead letters",
        "relay.connector.dead_letters",
        "MOST_MOVED",
        "",
        _HOLDS,
    ),
    ("parked rows that one transaction moves", "relay.connector.parked", "_ROWS", "", _HOLDS),
    ("facts that are cached", "relay.connector.gate_facts", "_MOST_CACHED", "", _MEMORY),
    (
        "answers about who sees a channel that are cached",
        "relay.connector.gate_facts",
        "_MOST_VISIBILITIES",
        "",
        _MEMORY,
    ),
    ("decisions that are cached", "relay.connector.ingest", "_MOST_DECISIONS", "", _MEMORY),
    ("chats that are known to be stored", "relay.connector.ingest", "_MOST_CHATS", "", _MEMORY),
)


def render() -> str:
    """The page."""
    parts = [_section(name, model) for name, model in sections().items()]
    parts += [_fixed(), _gateway()]
    others = [(code(name), _OTHERS[name]) for name in sorted(OTHER_VARIABLES)]
    return join(
        [*parts, "## Variables that are not settings", table(("variable", "what it is"), others)]
    )


def _section(name: str, model: type[BaseModel]) -> str:
    about = meaning(model.__doc__, f"[{name}]").removeprefix(f"`[{name}]`: ")
    rows = [
        (code(key), code(variable(name, key)), *_told(field, f"[{name}] {key}"))
        for key, field in model.model_fields.items()
    ]
    columns = ("setting", "variable", "type", "default", "what it is")
    below = [_table(f"{name}.{key}", inner) for key, inner in tables(model).items()]
    return join([f"## [{name}]", sentence(about), table(columns, rows), *below])


def _fixed() -> str:
    rows = [
        (what, f"{getattr(import_module(f'accord.{module}'), name):,} {unit}".strip(), why)
        for what, module, name, unit, why in _FIXED
    ]
    about = (
        "What bounds the connector and is no setting, with the reason. Everything else that it "
        "allows is in `[relay]`, `[platforms]`, `[webchat]` and the tables of the platforms."
    )
    columns = ("what", "limit", "why it is fixed")
    return join(["## Limits of the relay that are fixed", about, table(columns, rows)])


def _gateway() -> str:
    rows = [
        (code(key), *_told(field, f"limit {key}"))
        for key, field in GatewayLimits.model_fields.items()
    ]
    about = (
        "A gateway reads no settings file. `accord relay gateway run --limit NAME=NUMBER` sets a "
        "limit, the variable `GATEWAY_RELAY_LIMITS` several (`NAME=NUMBER NAME=NUMBER`), and in a "
        "program `GatewaySettings(limits=GatewayLimits(...))`. Times are seconds."
    )
    columns = ("limit", "type", "default", "what it is")
    return join(["## Limits of a gateway", about, table(columns, rows)])


def _table(name: str, model: type[BaseModel]) -> str:
    about = meaning(model.__doc__, f"[[{name}]]").removeprefix(f"`[[{name}]]`: ")
    rows = [
        (code(key), *_told(field, f"[[{name}]] {key}")) for key, field in model.model_fields.items()
    ]
    columns = ("setting", "type", "default", "what it is")
    return join([f"### [[{name}]]", sentence(about), table(columns, rows)])


def _told(field: FieldInfo, where: str) -> tuple[str, str, str]:
    kind = join([_kind(field.annotation), _limits(field)], ", ")
    return kind, _default(field), meaning(field.description, where)


def _kind(annotation: Any) -> str:
    if isinstance(annotation, type) and annotation is bool:
        return "true or false"
    if known := _KINDS.get(annotation):
        return known
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin is Literal:
        return ", ".join(code(json.dumps(each)) for each in arguments)
    if origin is tuple and arguments[-1:] == (Ellipsis,):
        if isinstance(arguments[0], type) and issubclass(arguments[0], BaseModel):
            return "tables"
        return f"list of {_kind(arguments[0])}"
    if origin in (Union, UnionType):
        return " or ".join(_kind(each) for each in arguments)
    if origin is tuple:
        return " and ".join(_kind(each) for each in arguments)
    return code(getattr(annotation, "__name__", str(annotation)))


def _limits(field: FieldInfo) -> str:
    found: dict[str, Any] = {
        name: limit
        for rule in field.metadata
        for name in ("ge", "gt", "le")
        if (limit := getattr(rule, name, None)) is not None
    }
    above = f"above {found['gt']}" if "gt" in found else ""
    return join([above, bounds(found.get("ge"), found.get("le"))], ", ")


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        if field.default_factory is None:
            return "must be set"
        value = field.get_default(call_default_factory=True)
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    return code(json.dumps(value, ensure_ascii=False, default=str))
