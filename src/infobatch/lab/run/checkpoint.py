"""A run's checkpoint: safe reading, and the states of its random generators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from infobatch.lab.run.identity import what_differs
from infobatch.lab.run.settings import RunSettings
from infobatch.lab.task import TaskError


def read_checkpoint(path: Path, settings: RunSettings) -> dict[str, Any]:
    """Read the checkpoint of a run with these settings; nothing in it can run code."""
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # of many types, since a file can be damaged in many ways
        raise TaskError(
            f"{path} is damaged and cannot be read ({type(error).__name__}: {error}). "
            "Delete it, and the run is repeated."
        ) from error
    differing = what_differs(state["settings"], asdict(settings))
    if differing:
        raise TaskError(
            f"{path} belongs to a run with different settings: {differing}. Expected the settings that it was started with; "
            f"choose another --out, or delete {path.parent}."
        )
    return state


def random_states(device: torch.device, world_size: int) -> list[dict[str, torch.Tensor]]:
    """The state of each rank's random generators; collective."""
    streams = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        streams["cuda"] = torch.cuda.get_rng_state()
    states = [streams] * world_size
    if world_size > 1:
        dist.all_gather_object(states, streams)
    return states


def restore_random_states(
    states: Sequence[dict[str, torch.Tensor]], rank: int, device: torch.device
) -> None:
    """Restore a rank's random states; if there are new ranks, these keep their own."""
    if rank >= len(states):
        return
    torch.set_rng_state(states[rank]["cpu"])
    if device.type == "cuda" and "cuda" in states[rank]:
        torch.cuda.set_rng_state(states[rank]["cuda"])
