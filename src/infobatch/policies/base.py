"""The interface of a policy, and the samples that it sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from infobatch.memory.tracks import Ema, Track
from infobatch.plan import FloatArray, Strata

Sum = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]


def alone(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the values unchanged: the sum over a single rank."""
    return values


@dataclass(frozen=True)
class Samples:
    """What is known about the samples when an epoch begins; read-only.

    ``scores`` has one float32 per sample, NaN where a sample was never seen: its last score, or the
    moving average where the policy has a ``smoothing``. With sharded scores these are one rank's
    samples, and ``sum`` adds up numbers over the ranks.
    """

    scores: FloatArray
    epoch: int = 0
    num_epochs: int = 1
    target: float | None = None  # the share to leave out, if the user has set a budget
    columns: Mapping[str, npt.NDArray[Any]] | None = None
    cost: FloatArray | None = None  # of each sample, if the user has given costs
    labels: npt.NDArray[Any] | None = None  # the class of each sample, if the user has given it
    sum: Sum = alone
    seed: int = 0

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        """A column that the policy's tracks remember, such as ``samples["visits"]``."""
        columns = self.columns or {}
        if column not in columns:
            raise KeyError(
                f"samples[{column!r}] is not remembered. Known columns: {sorted(columns)}. Name the "
                "track that has it in the policy's tracks, for instance tracks = (Visits(),)."
            )
        return columns[column]

    @property
    def age(self) -> npt.NDArray[np.int32]:
        """Epochs since each sample's last visit, 1 if it was in the previous epoch; needs LastVisit."""
        age: npt.NDArray[np.int32] = np.int32(self.epoch) - self["last_visit"]
        return age

    def rng(self) -> np.random.Generator:
        """A generator for the policy, the same on every rank and after a resume."""
        return np.random.default_rng((self.seed, self.epoch, 1))


class Policy(Protocol):
    """Sorts samples into strata.

    A policy may have these attributes:

    * ``tracks``: what to remember about each sample, see :mod:`infobatch.memory.tracks`;
    * ``smoothing``: rank by a moving average of the scores;
    * ``ratio``: what ``InfoBatch(prune_ratio=…)`` sets;
    * ``budget``: what happens if the user sets a budget. ``"scale"``, the default, scales the
      shares that are left out to fit ``samples.target``; ``"own"`` means that ``strata`` fits them
      itself; ``"none"`` refuses a budget;
    * ``most``: the largest share of an epoch that it can leave out, if that is below 0.9; a budget
      that asks for more is refused;
    * ``gradient``: how the size of a gradient follows from a score, see
      :mod:`infobatch.policies.gradient`;
    * ``default_delta``: the default of ``delta`` for this rule, instead of 0.875;
    * ``first_epoch``: the first epoch that may prune; earlier ones are whole, because too little is
      known;
    * ``refreshes = True``: the samples that an epoch leaves out are to be forwarded at its end, see
      :meth:`infobatch.InfoBatch.refresh`;
    * ``biased = True``: the expected gradient is not that of the full data; the user is warned
      once;
    * ``needs_labels = True``: ``samples.labels`` must be given;
    * ``shardable = True``: everything computed over all samples goes through ``samples.sum``.
    """

    def strata(self, samples: Samples) -> Strata:
        """Return the strata of the epoch that is about to begin.

        Called once at the start of each pruned epoch. Must be deterministic: take randomness from
        ``samples.rng()`` and leave the choice within a stratum to the draw that follows. Samples
        without a score are kept, whatever their label.
        """
        ...


def tracks_of(policy: Policy) -> tuple[Track, ...]:
    """The tracks that this policy needs, including the one for its ``smoothing``."""
    tracks: tuple[Track, ...] = tuple(getattr(policy, "tracks", ()))
    smoothing = getattr(policy, "smoothing", 0.0)
    return (*tracks, Ema(smoothing)) if smoothing else tracks
