"""A budget: the share of a run's cost to save, met by adapting every epoch.

What is still to be saved is divided among the remaining epochs that prune, so that every deviation
is made up for in the epochs that follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from infobatch.plan import Strata
from infobatch.policies.base import MOST_LEFT_OUT, Samples
from infobatch.savings import FORWARD, EpochPasses


def target_share(
    save: float,
    history: Sequence[EpochPasses],
    epochs: int,
    left: int,
    *,
    refreshes: bool = False,
) -> float:
    """The share of the coming epoch's cost to leave out.

    ``save`` is the share of the cost of all ``epochs`` epochs to save, and ``left`` the number of
    epochs that can still leave something out, including the coming one. With ``refreshes``, the
    samples that they leave out are expected to be forwarded when they end.
    """
    saved = sum(passes.saved_cost for passes in history)
    missing = (save * epochs - saved) / max(left, 1)
    return min(max(missing / (1 - _taken_back(history, refreshes)), 0.0), MOST_LEFT_OUT)


def _taken_back(history: Sequence[EpochPasses], refreshes: bool) -> float:
    """The share of an epoch's saving that refreshing costs, as in the last epoch that pruned."""
    for passes in reversed(history):
        if passes.kept_cost < 1:
            return FORWARD * min(passes.refreshed_cost / (1 - passes.kept_cost), 1.0)
    return FORWARD if refreshes else 0.0


def check_save(
    save: object,
    prunable: int,
    epochs: int,
    *,
    cold: bool,
    most: float = MOST_LEFT_OUT,
    why: str = "",
) -> float:
    """Return the share to save, or raise an error if it cannot be reached.

    ``prunable`` epochs can each leave out a share ``most``; ``why`` says what limits it.
    """
    if not isinstance(save, int | float | np.floating) or not 0 <= save < 1:
        raise ValueError(
            f"save got {save!r}, expected a share of the run's cost in [0, 1): 0.4 trains on 40% "
            "less."
        )
    possible = most * prunable / epochs
    if save > possible:
        first = (
            " the first epoch is whole because nothing is known yet (initial_scores= would prune "
            "it too), and" * cold
        )
        raise ValueError(
            f"save={save} is not possible in {epochs} epochs: at most {possible:.2f} is, because"
            f"{first} of {epochs} epochs only {prunable} can leave samples out, at most "
            f"{most:.0%} each{why}. Save less, train for more epochs, or raise delta."
        )
    return float(save)


def scale_to(strata: Strata, samples: Samples, target: float) -> Strata:
    """Scale the shares that the strata leave out, by one factor, so that ``target`` is left out.

    At most ``MOST_LEFT_OUT`` of a stratum is left out if its weights are rescaled; otherwise all of it
    can be. If that is not enough, the rest is taken at random from the samples that the rule would keep.
    """
    most = MOST_LEFT_OUT if strata.weights == "inverse" else 1.0
    masses = _masses(strata, samples)
    kept_by_rule = (strata.labels == 0) & ~np.isnan(samples.scores)
    spare = float(samples.sum(np.array([_mass(samples, kept_by_rule)]))[0])
    ratios = 1 - np.array(strata.keep, np.float64)
    pruned = ratios > 0
    wanted = target * float(masses.sum())
    missing = wanted - most * float(masses[1:] @ pruned)
    if missing <= 0:
        return replace(strata, keep=_keep(_scaled(ratios, masses[1:], wanted, most)))
    spare += float(masses[1:] @ ~pruned)  # strata that only set a weight
    extra = min(most, missing / spare) if spare > 0 else 0.0
    labels = strata.labels.copy()
    labels[kept_by_rule] = len(ratios) + 1
    weights = strata.weights if isinstance(strata.weights, str) else (*strata.weights, 1.0)
    keep = _keep(np.array([*np.where(pruned, most, extra), extra]))
    return replace(strata, labels=labels, keep=keep, weights=weights)


def _scaled(
    ratios: npt.NDArray[np.float64], masses: npt.NDArray[np.float64], wanted: float, most: float
) -> npt.NDArray[np.float64]:
    """Scale the ratios by one factor, each to at most ``most``, to leave out a mass ``wanted``."""
    low, high = 0.0, most / min((ratio for ratio in ratios if ratio > 0), default=1.0)
    for _ in range(60):
        factor = (low + high) / 2
        enough = float(np.minimum(most, factor * ratios) @ masses) >= wanted
        low, high = (low, factor) if enough else (factor, high)
    return np.minimum(most, high * ratios)


def _keep(ratios: npt.NDArray[np.float64]) -> tuple[float, ...]:
    return tuple((1 - ratios).tolist())


def _masses(strata: Strata, samples: Samples) -> npt.NDArray[np.float64]:
    """The cost of each stratum, over all ranks; without costs, its number of samples."""
    sums = [_mass(samples, strata.labels == label) for label in range(len(strata.keep) + 1)]
    return samples.sum(np.array(sums, np.float64))


def _mass(samples: Samples, members: npt.NDArray[np.bool_]) -> float:
    if samples.cost is None:
        return float(np.count_nonzero(members))
    return float(np.sum(samples.cost, dtype=np.float64, where=members))
