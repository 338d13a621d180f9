"""What a policy sees after some epochs, without training: the losses of each, folded into a memory."""

import numpy as np

import infobatch
from infobatch.memory.memory import Memory
from infobatch.plan import draw_plan
from infobatch.policies.base import tracks_of


def samples_after(policy, epochs, extras=(), **options):
    """The samples after ``epochs``, each an array of losses, NaN where a sample was not visited.

    ``extras`` has one dictionary of arrays per epoch.
    """
    memory = Memory(np.full(len(epochs[0]), np.nan, np.float32), tracks_of(policy))
    needed = [track for track in memory.tracks if not track.optional]
    channels = {track.channel for track in needed} - {None}
    for epoch, values in enumerate(epochs):
        losses = np.asarray(values, np.float32)
        rows = np.flatnonzero(np.isfinite(losses))
        memory.fold([(rows, losses[rows])], epoch)
        for channel in channels:
            reported = np.asarray(extras[epoch][channel], np.float32)
            memory.fold([(rows, reported[rows])], epoch, channel)
    scores = memory.columns["ema"] if policy.smoothing else memory.scores
    options = {"epoch": len(epochs), "num_epochs": 100, **options}
    return infobatch.Samples(scores, columns=memory.columns, **options)


def kept_by(strata, seed=0):
    """The samples that a draw keeps, sorted, and their weights."""
    plan = draw_plan(strata, seed=seed, epoch=1)
    kept = sorted(zip(plan.order.tolist(), plan.weights.tolist(), strict=True))
    return [sample for sample, _ in kept], [weight for _, weight in kept]


def losses_by_epoch(epochs, size, seed=0):
    """Losses that are all different."""
    rng = np.random.default_rng(seed)
    return rng.exponential(size=(epochs, size)).astype(np.float32)
