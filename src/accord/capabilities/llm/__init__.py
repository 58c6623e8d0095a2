"""Language models: `llm.chat` and `llm.complete`, by servers or in this process.

`asking`, `pieces`, `stopping` and `wire` are pure; `remote` and `embedded` are the two backends;
`generations` is their one queue; `handlers` serves them.
"""

from accord.capabilities.llm.generations import Generations
from accord.capabilities.llm.handlers import register
from accord.capabilities.llm.opening import LanguageModels, open_language_models
from accord.capabilities.llm.pieces import Backend

__all__ = ["Backend", "Generations", "LanguageModels", "open_language_models", "register"]
