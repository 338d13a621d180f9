"""The machine of a run: its hardware, its software versions, and the resources used."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path

import numpy as np
import torch

import infobatch

MODEL = ("cpu family", "model", "CPU part")  # in /proc/cpuinfo, on x86 and on ARM


def versions() -> dict[str, str]:
    """The software versions behind a result."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "infobatch": infobatch.__version__,
    }


def hardware(device: torch.device) -> dict[str, str | int]:
    """The hardware behind a result."""
    stated = _first_processor()
    parts: dict[str, str | int] = {
        "processor": stated.get("model name") or platform.processor() or platform.machine(),
        # Clouds give several processors one name.
        "model": ", ".join(f"{name} {stated[name]}" for name in MODEL if name in stated),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.release()}",
    }
    if device.type == "cuda":
        parts["gpu"] = torch.cuda.get_device_name(device)
    return parts


def _first_processor() -> dict[str, str]:
    """What Linux says about the first processor; empty elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    fields = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}


def cpu_seconds() -> float:
    """The CPU time of this process, its threads, and its finished worker processes."""
    spent = os.times()
    return time.process_time() + spent.children_user + spent.children_system


def peak_memory_mb(device: torch.device) -> float | None:
    """The peak memory of this process in megabytes: the GPU's if it trains on one.

    None if the system does not report it, as on Windows.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / (1 << 20)
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
