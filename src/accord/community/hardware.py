"""What a node says of its machine in its manifest: processor, memory, disk, GPU, load.

Everything is read from the system without a library; what cannot be read is left out.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_GIB: Final = 1024**3
_MIB: Final = 1024**2
_NVIDIA: Final = (
    "--query-gpu=name,memory.total,memory.used",
    "--format=csv,noheader,nounits",
)
_SECONDS: Final = 5.0
_NAME: Final = 80


@dataclass(frozen=True, slots=True)
class Gpu:
    """A graphics processor; memory in GiB, None where it is not known."""

    name: str
    vram_gb: float | None = None
    used_gb: float | None = None


def parse_nvidia(text: str) -> list[Gpu]:
    """The GPUs in the table that `nvidia-smi` prints."""
    found = []
    for line in text.splitlines()[:64]:
        name, _, rest = line.partition(",")
        memory = [_gib(each) for each in rest.split(",")]
        if name.strip():
            total, used, *_ = [*memory, None, None]
            found.append(Gpu(name.strip()[:_NAME], total, used))
    return found


def _gib(mib: str) -> float | None:
    try:
        return round(float(mib) * _MIB / _GIB, 1)
    except ValueError:
        return None


def _run_nvidia() -> str:
    """What `nvidia-smi` prints; empty where it is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - no word of it is from others
            (program, *_NVIDIA), capture_output=True, timeout=_SECONDS, check=False, text=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


@dataclass(eq=False)
class Machine:
    """The machine of a node.

    Attributes:
        home: A folder on the disk whose free space is told.
        system: The root of `/proc` and `/sys`.
        nvidia: Gives the output of `nvidia-smi`.
        gpus: What `look` found.
    """

    home: Path
    system: Path = Path("/")
    nvidia: Callable[[], str] = field(default=_run_nvidia, repr=False)
    gpus: Sequence[Gpu] = field(default=(), init=False)

    def look(self) -> None:
        """Find the GPUs. Blocks, for seconds at worst."""
        found = parse_nvidia(self.nvidia())
        for card in sorted(self.system.glob("sys/class/drm/card[0-9]")):
            total = _number(card / "device/mem_info_vram_total")
            if total is not None:
                name = _line(card / "device/product_name") or "AMD GPU"
                found.append(Gpu(name[:_NAME], round(total / _GIB, 1)))
        self.gpus = found

    def hardware(self) -> dict[str, Any]:
        """The member `hardware` of a manifest."""
        told: dict[str, Any] = {"cpu_cores": os.cpu_count() or 1}
        memory = self._memory()
        if memory is not None:
            told["ram_gb"] = memory
        with suppress(OSError):
            told["disk_free_gb"] = shutil.disk_usage(self.home).free // _GIB
        if self.gpus:
            best = max(self.gpus, key=lambda gpu: gpu.vram_gb or 0.0)
            told["gpu"] = best.name
            if best.vram_gb is not None:
                told["vram_gb"] = best.vram_gb
        return told

    def load(self, in_flight: int, waiting: int) -> dict[str, Any]:
        """The member `load` of a manifest."""
        cpu = os.getloadavg()[0] / (os.cpu_count() or 1)
        return {"cpu": round(cpu, 2), "in_flight_total": in_flight, "queue": waiting}

    def _memory(self) -> float | None:
        for line in _lines(self.system / "proc/meminfo"):
            name, _, rest = line.partition(":")
            if name == "MemTotal":
                amount = rest.split()[:1]
                if amount and amount[0].isdigit():
                    return round(int(amount[0]) * 1024 / _GIB, 1)
        return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


def _line(path: Path) -> str:
    return next(iter(_lines(path)), "").strip()


def _number(path: Path) -> int | None:
    text = _line(path)
    return int(text) if text.isdigit() else None
