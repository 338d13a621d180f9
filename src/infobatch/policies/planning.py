"""Planning an epoch from the memory: the policy decides, within the user's limits."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infobatch.checks import check_rows
from infobatch.distributed.ranks import Ranks
from infobatch.memory.export import read_scores
from infobatch.memory.memory import Memory
from infobatch.memory.tracks import Track
from infobatch.per_sample import GRADIENT
from infobatch.plan import FloatArray, Plan, Strata, draw_plan, whole_plan
from infobatch.policies.assumptions import check_not_negative, doubt_about_sizes
from infobatch.policies.base import MOST_LEFT_OUT, Policy, Samples, Sum, alone, tracks_of
from infobatch.policies.budget import check_save, scale_to, target_share
from infobatch.policies.classes import check_classes, compact
from infobatch.policies.gradient import (
    Sizing,
    added_noise,
    limit_noise,
    sizing_of,
    squares_by_stratum,
)
from infobatch.policies.options import Options
from infobatch.policies.protection import protect_classes
from infobatch.savings import FORWARD, EpochPasses


class BiasedPolicyWarning(UserWarning):
    """The expected gradient of the chosen rule is not that of the full data."""


class Decision(NamedTuple):
    """What an epoch leaves out, the noise that this adds, and the samples it was decided by."""

    strata: Strata
    added_noise: float
    samples: Samples


@dataclass(frozen=True)
class Planner:
    """Plans the epochs of a run: the policy, when it prunes, and what is remembered.

    ``cost``, ``labels`` and ``initial_scores`` are those of the options, one entry per sample.
    ``shadows`` are the planners of rules that are followed without pruning, by name.
    """

    num_samples: int
    num_epochs: int
    options: Options
    cost: FloatArray | None = None
    labels: npt.NDArray[Any] | None = None
    initial_scores: FloatArray | None = None
    shadows: Mapping[str, Planner] = field(default_factory=dict, compare=False)
    _warned: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, num_samples: int, num_epochs: int, options: Options) -> Planner:
        """Check the options together with the number of samples and epochs.

        Raises:
            TypeError: if the cost is a function: there is no data set to apply it to.
            ValueError: if an array does not fit, labels are missing, or a budget cannot be met.
        """
        if callable(options.cost):
            raise TypeError(
                "Pruner(cost=…) got a function, expected an array with the cost of each sample: a "
                "Pruner has no data set to apply it to. Use InfoBatch, or compute the array."
            )
        labels = check_rows("labels", options.labels, num_samples, positive=False)
        if labels is None and options.needs_labels:
            raise ValueError(
                f"{_wants_labels(options)} got no labels, expected the class of each sample: pass labels=, an array "
                "with one entry per sample."
            )
        if labels is not None and options.needs_labels:
            check_classes(labels)
        cost = check_rows("cost", options.cost, num_samples, positive=True)
        scores = read_scores(options.initial_scores, num_samples)
        shadows = {
            name: cls.of(num_samples, num_epochs, shadow_options).followed()
            for name, shadow_options in options.shadows.items()
        }
        return cls(num_samples, num_epochs, options, cost, labels, scores, shadows)

    @cached_property
    def _classes(self) -> npt.NDArray[Any] | None:
        """The number of each sample's class, if the order depends on it."""
        if self.options.order != "stratified":
            return None
        assert self.labels is not None
        return compact(self.labels)

    def followed(self) -> Planner:
        """This planner without the warning of a bias: it leaves nothing out, so there is none."""
        self._warned.add("bias")
        return self

    def __post_init__(self) -> None:
        if self.options.save is not None:
            cold, (most, why) = self.initial_scores is None, self._most_left_out()
            prunable = self.prunable(0)
            check_save(self.options.save, prunable, self.num_epochs, cold=cold, most=most, why=why)

    @property
    def policy(self) -> Policy:
        """The rule."""
        return self.options.rule

    @property
    def delta(self) -> float:
        """The share of the epochs that may prune."""
        return self.options.pruned_share

    def _most_left_out(self) -> tuple[float, str]:
        """The largest share of an epoch's cost that a budget can ask for, and the reason."""
        most, why = MOST_LEFT_OUT, ""
        if self.policy.most_left_out < most:
            most, why = self.policy.most_left_out, f" by {self.policy!r}"
        protected, cost = self.options.protect_classes, self.cost
        # With costs, the samples left out of a class may be its expensive ones.
        if protected is not None and cost is None and 1 - protected < most:
            most, why = 1 - protected, f" with protect_classes={protected}"
        if self.policy.refreshes:
            most, why = (1 - FORWARD) * most, f"{why} with what refresh() costs counted"
        return most, why

    def new_memory(self, ranks: Ranks) -> Memory:
        """Build the memory as it is before the first epoch."""
        if self.initial_scores is None:
            scores = np.full(ranks.owned(self.num_samples), np.nan, np.float32)
        else:
            scores = self.initial_scores[ranks.shard.first :: ranks.shard.step].copy()
        return Memory(scores, self.tracks)

    @property
    def tracks(self) -> tuple[Track, ...]:
        """What is remembered about each sample besides its score."""
        return (*tracks_of(self.policy), *self.options.tracks)

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of the values that ``update(extras=…)`` must report besides the score."""
        channels = [track.channel for track in self.tracks]
        channels += [channel for shadow in self.shadows.values() for channel in shadow.channels]
        return tuple(dict.fromkeys(channel for channel in channels if channel is not None))

    def prunes(self, epoch: int) -> bool:
        """Whether an epoch may prune: after the warm-up, before ``delta * num_epochs``."""
        # The rounding undoes a product such as 0.07 * 100 = 7.000000000000001.
        first = max(self.options.warmup, self.policy.first_epoch)
        return first <= epoch < round(self.delta * self.num_epochs, 9)

    def prunable(self, start: int) -> int:
        """How many epochs from ``start`` on can prune; without scores the first one cannot."""
        cold = self.initial_scores is None
        return sum(self.prunes(epoch) for epoch in range(max(start, int(cold)), self.num_epochs))

    @property
    def keep_ratio(self) -> float:
        """See :attr:`infobatch.InfoBatch.keep_ratio`."""
        if self.options.save is not None:
            reason = f"save={self.options.save} adapts it to the budget in every epoch"
        elif not hasattr(self.policy, "ratio"):
            reason = f"{self.policy!r} has no prune_ratio"
        else:
            return float(1 - self.policy.ratio)
        raise AttributeError(
            f"InfoBatch.keep_ratio is 1 - prune_ratio, but {reason}. Use len(train_data.plan) / "
            "train_data.plan.num_samples for the share of the samples that this epoch keeps, "
            "train_data.savings.fraction for what was saved so far, and train_data.policy for "
            "the settings of the rule."
        )

    def draw(
        self, memory: Memory, ranks: Ranks, history: Sequence[EpochPasses], *, epoch: int, seed: int
    ) -> Plan:
        """Draw the plan of an epoch that follows those in ``history``."""
        decided = self.decide(memory, ranks, history, epoch=epoch, seed=seed)
        classes = _of_shard(self._classes, ranks)
        key = {"seed": seed, "epoch": epoch}
        if decided is None:
            return whole_plan(len(memory), **key, shard=ranks.shard, classes=classes)
        strata, noise, samples = decided
        plan = draw_plan(strata, **key, shard=ranks.shard, classes=classes)
        cost, biased = _kept_cost(plan, samples), strata.biased
        return replace(plan, added_noise=noise, kept_cost=cost, biased=biased)

    def decide(
        self, memory: Memory, ranks: Ranks, history: Sequence[EpochPasses], *, epoch: int, seed: int
    ) -> Decision | None:
        """Decide what an epoch leaves out, within the user's limits; None if it is whole."""
        # A mask of unseen samples costs a pass and a byte per sample, and is rarely needed.
        scores = memory.scores
        lowest = scores.min(initial=np.inf)
        unseen = np.isnan(scores) if np.isnan(lowest) else None
        # With sharded scores, the other ranks' sums would wait for a shard without scores.
        nothing_seen = unseen is not None and not ranks.sharded and bool(unseen.all())
        if not self.prunes(epoch) or nothing_seen:
            return None
        samples = self._samples(memory, ranks, history, epoch, seed)
        self._check_sizes(samples, float(lowest))
        strata = self.policy.strata(samples)
        if strata.biased:
            self._warn_of_bias()
        if len(strata.labels) != len(scores):
            raise ValueError(
                f"{self.policy!r}.strata() returned {len(strata.labels)} labels, expected one for "
                f"each of the {len(scores)} samples."
            )
        if unseen is not None:
            strata = replace(strata, labels=strata.labels * ~unseen)
            del unseen  # frees a byte per sample for the draw
        strata, noise = self._limited(strata, samples)
        if 0.0 in strata.keep and not samples.sum(np.array([_possible(strata)]))[0]:
            warnings.warn(
                f"{self.policy!r} leaves out every sample in epoch {epoch}, so this epoch trains on all "
                "of them. If that is because everything is learned, training can end here.",
                stacklevel=2,
            )
            return None
        return Decision(strata, noise, samples)

    def _check_sizes(self, samples: Samples, lowest: float) -> None:
        """Check what the rule, or a limit, takes the scores for; ``lowest`` may be NaN."""
        gradient, max_noise = self.policy.gradient, self.options.max_noise
        if gradient is None and max_noise is None:
            return
        if samples.sizes is not None:
            lowest = float(np.fmin.reduce(samples.sizes, initial=np.inf))
        elif np.isnan(lowest):
            lowest = float(np.fmin.reduce(samples["score"], initial=np.inf))
        user = repr(self.policy)
        if gradient is None:
            user = f"max_noise={max_noise} with {user}"
        check_not_negative(user, gradient or "cross_entropy", lowest, samples)
        if gradient is None or "sizes" in self._warned:
            return
        doubt = doubt_about_sizes(self.policy, samples)
        if doubt is not None:
            self._warned.add("sizes")
            warnings.warn(doubt, stacklevel=2)

    @property
    def doubts_sizes(self) -> bool:
        """Whether a warning was given that the scores do not show the sizes of the gradients."""
        return "sizes" in self._warned

    def _warn_of_bias(self) -> None:
        """Warn the user once that the rule does not preserve the expected gradient."""
        if "bias" in self._warned:
            return
        self._warned.add("bias")
        warnings.warn(
            f"{self.policy!r} is biased: its weights do not make up for the samples that it leaves out, "
            "so the expected gradient is not that of the full data. Several rules were published that "
            "way; docs/policies.md lists those that are unbiased.",
            BiasedPolicyWarning,
            stacklevel=2,
        )

    def _samples(
        self, memory: Memory, ranks: Ranks, history: Sequence[EpochPasses], epoch: int, seed: int
    ) -> Samples:
        columns = {name: column.view() for name, column in memory.columns.items()}
        for column in columns.values():
            column.flags.writeable = False
        add_up = ranks.communicator.sum if ranks.sharded else alone
        save, target = self.options.save, None
        if save is not None:
            run = (self.num_epochs, self.prunable(epoch))
            target = target_share(save, history, *run, refreshes=self.policy.refreshes)
        return Samples(
            scores=columns["ema" if self.policy.smoothing else "score"],
            epoch=epoch,
            num_epochs=self.num_epochs,
            target=target,
            columns=MappingProxyType(columns),
            cost=_of_shard(self.cost, ranks),
            labels=_of_shard(self.labels, ranks),
            sizes=self._sizes(columns, len(memory), add_up),
            sum=add_up,
            seed=seed,
        )

    @property
    def _goes_by_sizes(self) -> bool:
        return any(track.channel == GRADIENT for track in tracks_of(self.policy))

    def measured_by(self, known: FloatArray, channels: Sequence[str]) -> tuple[int, Sizing]:
        """The row of what samples have reported that gives the sizes of their gradients, and how.

        ``known`` has their scores in its first row, and what ``channels`` names in the others.
        """
        if GRADIENT in channels and (self._goes_by_sizes or self.policy.gradient is None):
            row = 1 + channels.index(GRADIENT)
            if np.isfinite(known[row]).any():
                return row, "score"
        return 0, sizing_of(self.policy)

    def _sizes(
        self, columns: Mapping[str, FloatArray], count: int, add_up: Sum
    ) -> FloatArray | None:
        """The reported sizes of the gradients, if the rule goes by them and a rank has any."""
        if not self._goes_by_sizes:
            return None
        sizes = columns.get(GRADIENT)
        if not add_up(np.array([float(sizes is not None)]))[0]:
            return None
        return np.full(count, np.nan, np.float32) if sizes is None else sizes

    def _limited(self, strata: Strata, samples: Samples) -> tuple[Strata, float]:
        """The strata within the user's limits, and the noise that they add."""
        options = self.options
        if samples.target is not None and self.policy.budget == "scale":
            strata = scale_to(strata, samples, samples.target)
        if options.protect_classes is not None:
            strata = protect_classes(strata, samples, options.protect_classes)
        squares = squares_by_stratum(strata, samples, sizing_of(self.policy))
        if options.max_noise is not None:
            strata = limit_noise(strata, squares, options.max_noise)
        return strata, added_noise(strata, squares)

    def __str__(self) -> str:
        return f"policy={self.policy!r}, delta={self.delta}, num_epochs={self.num_epochs}"


def _wants_labels(options: Options) -> str:
    """The option that needs labels, as a user would type it."""
    if options.protect_classes is not None:
        return f"protect_classes={options.protect_classes}"
    return f"policy={options.rule!r}" if options.rule.needs_labels else f"order={options.order!r}"


def _of_shard(values: npt.NDArray[Any] | None, ranks: Ranks) -> npt.NDArray[Any] | None:
    return None if values is None else values[ranks.shard.first :: ranks.shard.step]


def _possible(strata: Strata) -> float:
    """1 if any of a rank's samples can be kept, else 0."""
    alive = np.array([True, *(share > 0 for share in strata.keep)])
    return float(alive[strata.labels].any())


def _kept_cost(plan: Plan, samples: Samples) -> float | None:
    """The share of the cost that a plan keeps, over all ranks."""
    if samples.cost is None:
        return None
    kept = np.sum(samples.cost[plan.rows(plan.codes)], dtype=np.float64)
    kept, full = samples.sum(np.array([kept, np.sum(samples.cost, dtype=np.float64)]))
    return float(kept / full)
