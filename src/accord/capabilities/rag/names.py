"""What a corpus may be called."""

import re
from typing import Final

PATTERN: Final = "[a-z0-9-]{1,64}"
"""The form of a name, as the schemas of the capabilities have it."""

PERSONAL: Final = "personal"
"""The corpus that never leaves its node."""

SYSTEM: Final = "system"
"""A name that nobody may use yet."""


def is_name(text: str) -> bool:
    """Whether a corpus can be called so."""
    return re.fullmatch(PATTERN, text, re.ASCII) is not None
