"""Names: capabilities and their versions, trust levels, and a node's id as people read it.

Sections 2.1 and 3.1 of the specification. A name says nothing about who offers it; that is the
registry's and the manifest's business.
"""

import base64
import re
from enum import IntEnum
from typing import Final, NamedTuple, Self

from accord.community.errors import Code, CommunityError
from accord.kernel import signing

_CAPABILITY: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){1,7}", re.ASCII)
_VERSION: Final = re.compile(r"(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})", re.ASCII)
_MAX_NAME: Final = 100

OWNED: Final = frozenset({"llm", "embed", "rag", "file", "market", "chat", "community"})
"""Prefixes that the specification gives to a service of this release."""

RESERVED: Final = frozenset({"federation", "ocr", "tts", "stt", "trans", "img"})
"""Prefixes that the specification keeps for later releases."""

EXPERIMENTAL: Final = "experimental"

_ANSWER_VERIFIED: Final = frozenset({"post", "invite", "revoke", "ingest", "expire"})


class Level(IntEnum):
    """How far the community trusts a node; higher includes lower."""

    UNKNOWN = 0
    MEMBER = 1
    TRUSTED = 2
    ANCHOR = 3

    @property
    def text(self) -> str:
        """The level as protocols carry it."""
        return self.name.lower()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a level.

        Raises:
            CommunityError: There is no such level: `bad_request`.
        """
        for level in cls:
            if level.text == text:
                return level
        raise CommunityError(
            Code.BAD_REQUEST,
            f"there is no trust level {text[:40]!r}",
            mend="expected unknown, member, trusted or anchor",
        )


class Version(NamedTuple):
    """A capability's version."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `X.Y`.

        Raises:
            CommunityError: Another form: `bad_request`.
        """
        match = _VERSION.fullmatch(text)
        if match is None:
            raise CommunityError(
                Code.BAD_REQUEST,
                f"{text[:40]!r} is not a version",
                mend="expected major.minor, such as 1.0",
            )
        return cls(int(match[1]), int(match[2]))

    def satisfies(self, wanted: "Version") -> bool:
        """Whether this offered version serves a caller that asks for `>=wanted`: section 2.1."""
        return self.major == wanted.major and self.minor >= wanted.minor


class Wanted(NamedTuple):
    """What a caller asks for: `name@>=A.B`."""

    name: str
    least: Version

    def __str__(self) -> str:
        return f"{self.name}@>={self.least}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `name@>=A.B`.

        Raises:
            CommunityError: Another form: `bad_request`.
        """
        name, separator, version = text.partition("@>=")
        if not separator:
            raise CommunityError(
                Code.BAD_REQUEST,
                f"{text[:120]!r} does not say which versions will do",
                mend="expected name@>=major.minor, such as llm.chat@>=1.0",
            )
        return cls(check_capability(name), Version.parse(version))

    def is_met_by(self, name: str, version: Version) -> bool:
        """Whether an offered `name@version` is what the caller asks for."""
        return name == self.name and version.satisfies(self.least)


def check_capability(name: str) -> str:
    """The name itself, when it has the form of a capability's.

    Raises:
        CommunityError: It has not: `bad_request`.
    """
    if len(name) > _MAX_NAME or not _CAPABILITY.fullmatch(name):
        raise CommunityError(
            Code.BAD_REQUEST,
            f"{name[:120]!r} is not the name of a capability",
            mend="expected lower-case words with dots between, such as llm.chat",
        )
    return name


def check_registrable(name: str) -> str:
    """The name itself, when a capability may be registered under it: section 3.1.

    Raises:
        CommunityError: Its prefix is kept for later, or belongs to nobody: `bad_request`.
    """
    prefix = check_capability(name).partition(".")[0]
    if prefix in RESERVED:
        raise CommunityError(
            Code.BAD_REQUEST,
            f"the prefix {prefix}. is reserved",
            where=name,
            mend=f"register it as {EXPERIMENTAL}.{name}",
        )
    if prefix not in OWNED and prefix != EXPERIMENTAL:
        raise CommunityError(
            Code.BAD_REQUEST,
            f"no service owns the prefix {prefix}.",
            where=name,
            mend=f"register it as {EXPERIMENTAL}.{name}",
        )
    return name


def must_verify_answer(name: str) -> bool:
    """Whether a caller must verify the signature of this capability's answers: section 5.2."""
    return name == "chat.send" or name.rpartition(".")[2] in _ANSWER_VERIFIED


def display_id(node_id: str) -> str:
    """A node's or community's id as people read it: its first ten bytes, four groups of four.

    For eyes only: whoever chooses a key can choose what these ten bytes say.

    Raises:
        CommunityError: The id is not one: `bad_request`.
    """
    try:
        public = signing.parse_id(node_id)
    except signing.SigningError as error:
        raise CommunityError(Code.BAD_REQUEST, error.what, mend=error.mend) from None
    text = base64.b32encode(public[:10]).decode("ascii")
    return "-".join(text[start : start + 4] for start in range(0, 16, 4))
