"""Scores before the first epoch, from a pass without gradients."""

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
    """Score each sample with a pass without gradients, for ``initial_scores=``.

    The pass costs about a third of an epoch (a forward pass without a backward pass), which pruning
    the first epoch has to recover.

    Args:
        model: the one to be trained, if it is pretrained, or a smaller one whose losses rank the
            samples similarly. It is put into evaluation mode and back.
        data: the training data, of which every sample is visited once.
        losses: ``losses(model, batch)`` returns one loss per sample of a batch.
        batch_size: the number of samples in a batch.
        collate: the ``collate_fn`` of the loader.
        num_workers: the number of the loader's worker processes.

    Returns:
        One score per sample, float32 on the CPU.

    Raises:
        ValueError: if there is not one loss per sample.

    >>> data = torch.utils.data.TensorDataset(torch.tensor([1.0, 2.0]))
    >>> score(nn.Identity(), data, lambda model, batch: model(batch[0]) ** 2)
    tensor([1., 4.])
    """
    size = check_count("score(): batch_size", batch_size, "it is a number of samples")
    # A loader draws a seed, which must not come from the training's random stream.
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
