"""What a team asks of a change: a level, and exceptions that have an owner and an end.

A level selects rules; what a rule of a higher level finds is told and does not count. An exception
sets one rule aside at one place until a day. A policy is a TOML document that is read strictly: an
exception that has expired, or names a rule that does not exist or does not fail anything, is an
error, so that none outlives its reason unnoticed.
"""

import re
import tomllib
from dataclasses import dataclass
from datetime import date, time, timedelta
from typing import Any, Final, Literal

from accord.contracts.compatibility.comparison import ContractChange, Level
from accord.contracts.compatibility.rules import RULES
from accord.contracts.errors import UnreadableError
from accord.kernel import canonical
from accord.kernel.canonical import pointer
from accord.kernel.errors import Finding
from accord.kernel.schema import compile_schema

LEVELS: Final[tuple[Level, ...]] = ("wire", "source", "full")
"""The levels, each of which selects what those before it select."""

MAX_POLICY_BYTES: Final = 256 * 1024
MAX_EXCEPTIONS: Final = 1000
LONGEST_DAYS: Final = 366
"""Days for which an exception may be granted at a time."""

_FAILING: Final = ("breaking", "unproven", "migration")
_TABLE: Final = {rule.id: rule for rule in RULES}
_TEXT: Final = {"type": "string", "minLength": 3, "maxLength": 500}
_EXCEPTION: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["rule", "contract", "owner", "reason", "expires"],
    "properties": {
        "rule": {"type": "string"},
        "contract": {"type": "string", "minLength": 1, "maxLength": 200},
        "pointer": {"type": "string", "pattern": "^/", "maxLength": 1000},
        "owner": _TEXT,
        "reason": _TEXT,
        "expires": {"type": "string"},
    },
}
_POLICY: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "level": {"enum": list(LEVELS)},
        "versions": {"enum": ["latest", "live", "catalog", "all"]},
        "exceptions": {"type": "array", "maxItems": MAX_EXCEPTIONS, "items": _EXCEPTION},
    },
}
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)

Versions = Literal["latest", "live", "catalog", "all"]


@dataclass(frozen=True, slots=True)
class PolicyException:
    """A rule that is set aside at one place of one contract, through the day `expires`."""

    rule: str
    contract: str
    owner: str
    reason: str
    expires: date
    pointer: str = ""  # the place and everything below it; empty for the whole contract

    def covers(self, contract: str, change: ContractChange) -> bool:
        """Whether a change of a contract is excepted."""
        if (self.rule, self.contract) != (change.rule, contract):
            return False
        return (
            not self.pointer
            or change.pointer == self.pointer
            or change.pointer.startswith(f"{self.pointer}/")
        )

    def __str__(self) -> str:
        return f"excepted until {self.expires} by {self.owner}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Policy:
    """A level and the exceptions to it; `versions` is what a registry is asked for."""

    level: Level = "full"
    exceptions: tuple[PolicyException, ...] = ()
    versions: Versions | None = None

    def selects(self, rule: str) -> bool:
        """Whether findings of a rule count at this level."""
        return LEVELS.index(_TABLE[rule].level) <= LEVELS.index(self.level)

    def exception(self, contract: str, change: ContractChange) -> PolicyException | None:
        """The exception that sets a change aside, if there is one."""
        return next((each for each in self.exceptions if each.covers(contract, change)), None)


def read_policy(text: str, today: date, where: str | None = None) -> Policy:
    """Read a policy in TOML; raises UnreadableError with every finding.

    An exception holds through the day of its end, by the calendar of UTC.
    """
    if len(text.encode(errors="replace")) > MAX_POLICY_BYTES:
        raise UnreadableError(f"a policy has at most {MAX_POLICY_BYTES} bytes", where=where)
    try:
        value = _with_days(tomllib.loads(text))
        canonical.encode(value)
    except (tomllib.TOMLDecodeError, canonical.CanonicalError, RecursionError) as error:
        raise UnreadableError(f"this is not TOML of a policy: {error}", where=where) from None
    findings: list[Finding] = list(compile_schema(_POLICY).findings(value))
    if not findings:
        for at, each in enumerate(value.get("exceptions", ())):
            findings += _judge(each, today, at)
    if findings:
        raise UnreadableError(
            f"the policy is not valid: {findings[0]}"
            + (f" and {len(findings) - 1} more" if len(findings) > 1 else ""),
            where=where,
            mend="mend or remove the exception" if value.get("exceptions") else None,
            findings=findings,
        )
    exceptions = (
        PolicyException(**{**each, "expires": date.fromisoformat(each["expires"])})
        for each in value.get("exceptions", ())
    )
    return Policy(value.get("level", "full"), tuple(exceptions), value.get("versions"))


def _with_days(value: Any) -> Any:
    """TOML has days of its own, which are read as the text that they are written as."""
    if isinstance(value, dict):
        return {name: _with_days(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_days(each) for each in value]
    return value.isoformat() if isinstance(value, date | time) else value


def _judge(given: dict[str, Any], today: date, at: int) -> list[Finding]:
    """What is wrong with an exception beyond its form."""
    found = []

    def add(rule: str, member: str, message: str) -> None:
        found.append(Finding(rule, pointer("exceptions", at, member), message))

    named = given["rule"]
    rule = _TABLE.get(named)
    if rule is None:
        add("policy.unknown-rule", "rule", f"there is no rule {named!r}; see `contract rules`")
    elif rule.id == "contract.lineage" or rule.category not in _FAILING:
        add("policy.no-effect", "rule", f"{named} cannot be excepted")
    try:
        expires = date.fromisoformat(given["expires"]) if _DAY.fullmatch(given["expires"]) else None
    except ValueError:
        expires = None
    if expires is None:
        add("policy.no-day", "expires", "expected a day such as 2030-01-31")
    elif expires < today:
        add("policy.expired", "expires", f"the exception of {given['owner']} ended on {expires}")
    elif expires > today + timedelta(days=LONGEST_DAYS):
        add("policy.too-long", "expires", f"an exception ends within {LONGEST_DAYS} days")
    return found
