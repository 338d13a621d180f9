"""What a task's scoring function returns, and ``update`` takes."""

from __future__ import annotations

from typing import NamedTuple

import torch


class PerSample(NamedTuple):
    """One loss and one score a sample.

    ``losses`` is 1-D and differentiable, and its plain mean is the batch loss that you would train
    with. ``scores`` says how much each sample has left to teach, and depends on nothing else in
    the batch.
    """

    losses: torch.Tensor
    scores: torch.Tensor
