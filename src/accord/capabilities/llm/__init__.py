"""Language models: `llm.chat` and `llm.complete`, by servers or in this process."""

from accord.capabilities.llm.embedded import EmbeddedBackend
from accord.capabilities.llm.queue import GenerationMetrics, GenerationQueue
from accord.capabilities.llm.remote import RemoteBackend
from accord.capabilities.llm.rules.generation import (
    Backend,
    BackendModel,
    GenerationEnd,
    GenerationRequest,
    Piece,
    PromptRead,
    Repetition,
    Stopper,
    StopReason,
    TextPiece,
    ToolCallDelta,
    listed_models,
    read_request,
    role_violation,
)
from accord.capabilities.llm.service import (
    LanguageModels,
    open_language_models,
    register,
)

__all__ = [
    "Backend",
    "BackendModel",
    "EmbeddedBackend",
    "GenerationEnd",
    "GenerationMetrics",
    "GenerationQueue",
    "GenerationRequest",
    "LanguageModels",
    "Piece",
    "PromptRead",
    "RemoteBackend",
    "Repetition",
    "StopReason",
    "Stopper",
    "TextPiece",
    "ToolCallDelta",
    "listed_models",
    "open_language_models",
    "read_request",
    "register",
    "role_violation",
]
