"""The descriptor of a platform, sent to the gateway at the handshake."""

from dataclasses import dataclass
from typing import Any, Final, Self

from accord.relay.rules import members
from accord.relay.rules.splitting import LEAST_LIMIT, measure

CONTRACT_VERSION: Final = 1
DEFAULT_MESSAGE_LENGTH: Final = 4096
_EMOJI: Final = "🔌"


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The abilities and limits of one platform.

    Attributes:
        len_unit: `utf16` counts UTF-16 code units; anything else counts characters.
        emoji: For display; may be None.
    """

    platform: str
    label: str
    max_message_length: int
    supports_draft_streaming: bool
    supports_edit: bool
    supports_threads: bool
    markdown_dialect: str
    len_unit: str
    emoji: str | None = _EMOJI
    platform_hint: str = ""
    pii_safe: bool = False
    contract_version: int = CONTRACT_VERSION

    @property
    def supports_code_blocks(self) -> bool:
        """Whether fenced code is rendered as code."""
        return self.markdown_dialect != "plain"

    def measure(self, text: str) -> int:
        """The length of a text in this platform's unit."""
        return measure(text, self.len_unit)

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Read the wire form: unknown members are ignored, missing optional ones defaulted.

        Raises:
            RelayError: A required member is missing, or a member has the wrong type.
        """
        payload = members.payload(value, "a descriptor")
        length = members.integer(payload, "max_message_length") or DEFAULT_MESSAGE_LENGTH
        if length < LEAST_LIMIT:
            raise members.bad(f"expected at least {LEAST_LIMIT}", where="/max_message_length")
        return cls(
            contract_version=members.integer(payload, "contract_version"),
            platform=members.identifier(payload, "platform"),
            label=members.text(payload, "label"),
            max_message_length=length,
            supports_draft_streaming=members.flag(payload, "supports_draft_streaming"),
            supports_edit=members.flag(payload, "supports_edit"),
            supports_threads=members.flag(payload, "supports_threads"),
            markdown_dialect=members.text(payload, "markdown_dialect"),
            len_unit=members.text(payload, "len_unit"),
            emoji=members.optional_text({"emoji": _EMOJI, **payload}, "emoji"),
            platform_hint=members.text(payload, "platform_hint", ""),
            pii_safe=members.flag(payload, "pii_safe", False),
        )

    def to_dict(self) -> dict[str, Any]:
        """The wire form, with every member."""
        return {
            "contract_version": self.contract_version,
            "platform": self.platform,
            "label": self.label,
            "max_message_length": self.max_message_length,
            "supports_draft_streaming": self.supports_draft_streaming,
            "supports_edit": self.supports_edit,
            "supports_threads": self.supports_threads,
            "markdown_dialect": self.markdown_dialect,
            "len_unit": self.len_unit,
            "emoji": self.emoji,
            "platform_hint": self.platform_hint,
            "pii_safe": self.pii_safe,
        }
