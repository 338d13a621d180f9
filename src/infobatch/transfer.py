"""Copies from the host to a device for which nobody waits."""

from __future__ import annotations

from collections import deque

import torch

# A device may make a copy long after it was asked for it, and some read memory that has been freed
# by then (pytorch/pytorch#139550): the sources of the latest copies are kept.
_sources: deque[torch.Tensor] = deque(maxlen=64)


def send(
    values: torch.Tensor, device: torch.device, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return a tensor on a device, and there in a type, without waiting for the device.

    It must not be changed afterwards if it is on the host: the copy may not have been made yet.

    >>> send(torch.tensor([1, 2]), torch.device("cpu"), torch.float32)
    tensor([1., 2.])
    """
    if values.device != device:
        if values.device.type == "cpu":
            values = values.contiguous()
            _sources.append(values)
        # The type is changed there: on the host it would take a temporary tensor, and time.
        values = values.to(device, non_blocking=True)
    return values if dtype is None else values.to(dtype)
