"""Scores before the first epoch, by a pass without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from infobatch.checks import check_batch, check_count
from infobatch.per_sample import PerSample


def score(
    model: nn.Module,
    data: Any,
    losses: Callable[[nn.Module, Any], torch.Tensor | PerSample],
    *,
    batch_size: int = 256,
    collate: Callable[[list[Any]], Any] | None = None,
    num_workers: int = 0,
) -> torch.Tensor:
    """One score per sample, for ``initial_scores=``: what ``losses(model, batch)`` returns for it.

    ``model`` is the one to be trained, if it was trained before, or a smaller one whose losses rank
    the samples alike. It is put into evaluation mode and back. The pass costs about a third of an epoch
    (a forward without a backward), which pruning the first epoch has to save first.

    >>> data = torch.utils.data.TensorDataset(torch.tensor([1.0, 2.0]))
    >>> score(nn.Identity(), data, lambda model, batch: model(batch[0]) ** 2)
    tensor([1., 4.])
    """
    size = check_count("score(): batch_size", batch_size, "it is a number of samples")
    # A loader draws a seed, which is not to come from the training's stream.
    loader: DataLoader[Any] = DataLoader(
        data, size, num_workers=num_workers, collate_fn=collate, generator=torch.Generator()
    )
    was_training = model.training
    model.eval()
    batches = []
    try:
        with torch.no_grad():
            for batch in loader:
                of_batch, ranks, _ = check_batch("score", losses(model, batch), None, None)
                batches.append((of_batch if ranks is None else ranks).float().cpu())
    finally:
        model.train(was_training)
    scores = torch.cat(batches) if batches else torch.empty(0)
    if len(scores) != len(data):
        raise ValueError(
            f"score() got {len(scores)} losses for {len(data)} samples, expected one each. Let the "
            "collate function keep every sample, and return one loss per sample from losses()."
        )
    return scores
