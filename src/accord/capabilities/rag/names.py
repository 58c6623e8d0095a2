"""Names of corpora."""

import re
from typing import Final

PATTERN: Final = "[a-z0-9-]{1,64}"
"""The pattern in the schemas of the capabilities."""

PERSONAL: Final = "personal"
"""The corpus that never leaves its node."""

SYSTEM: Final = "system"
"""Reserved."""


def is_name(text: str) -> bool:
    """Whether a text is a valid name."""
    return re.fullmatch(PATTERN, text, re.ASCII) is not None
