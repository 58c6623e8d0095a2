"""Speech, text of pictures, translation and descriptions of pictures, all experimental.

A name is imported when it is first used, so that the child processes of the engines load no server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from accord.capabilities.media.service import MediaEngine, MediaEngines, open_media

__all__ = ["MediaEngine", "MediaEngines", "open_media"]

_HOME: Final = "accord.capabilities.media.service"

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOME), name)
