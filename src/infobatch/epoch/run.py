"""The running epoch on one rank: its route, its losses, its weights."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from infobatch.distributed.ranks import Ranks
from infobatch.epoch.matching import check_claim, rest_of_batch
from infobatch.epoch.progress import Progress
from infobatch.epoch.walk import Walk
from infobatch.per_sample import PerSample
from infobatch.plan import FloatArray, Plan
from infobatch.plan.batching import ShrunkBatches
from infobatch.step.losses import (
    IndexLosses,
    Losses,
    PositionLosses,
    Reported,
    was_visited,
)
from infobatch.step.route import Route
from infobatch.step.weights import Weights, check_planned, weighted_mean
from infobatch.transfer import send


class Resumed(NamedTuple):
    """The part of an epoch that a loaded checkpoint has made."""

    losses: FloatArray  # a row per channel
    kind: type[PositionLosses | IndexLosses]
    largest_batch: int


LossesT = TypeVar("LossesT", bound=Losses)


class Run:
    """The running epoch's plan, as seen by one rank, and the losses recorded in it.

    ``channels`` are the names of the values reported besides the scores.
    """

    def __init__(
        self,
        epoch: int,
        plan: Plan,
        ranks: Ranks,
        channels: Sequence[str] = (),
        resumed: Resumed | None = None,
    ) -> None:
        self.epoch = epoch
        self.plan = plan
        self.ranks = ranks
        self.updated = 0  # samples of this rank that were updated or skipped
        self.largest_batch = 0 if resumed is None else resumed.largest_batch  # in one update
        self.followed = 0  # as many of the rank in the model group whose losses count, once known
        self.closed = False  # its losses are part of the memory
        self.walk = Walk()  # of which nothing is known, until a loader iterates the sampler
        self.check_at = 0  # it cannot be complete before this many samples were updated
        self.losses: Losses | None = None
        self.channels, self._resumed = channels, resumed
        self._last_count: int | None = None  # samples in the last update by position
        left = plan.codes
        if resumed is not None and resumed.kind is IndexLosses:
            left = left[~was_visited(resumed.losses[0])[plan.rows(left)]]
        elif resumed is not None:
            left = left[resumed.losses.shape[1] :]
        self.route = Route(plan, ranks, left)
        if resumed is not None:
            self.losses = resumed.kind(1 + len(channels), self.route, resumed.losses)
        self.weights = Weights(self.route, None)

    def on(self, ranks: Ranks) -> Run:
        """Return the same epoch, not begun, for another set of ranks."""
        return Run(self.epoch, self.plan, ranks, self.channels, self._resumed)

    def begin(self, walk: Walk) -> None:
        """Make this walk the epoch's: a new one, or an earlier one that goes on after a look at the data."""
        self.walk = walk
        walk.walk_along(self.route)
        self.weights = Weights(self.route, walk.batches)
        self.check_at = 0
        if self.updated and not self.by_index:
            walk.note_first_update()

    # Reports from the training loop.

    def update(
        self,
        losses: torch.Tensor,
        reported: Reported,
        index: torch.Tensor | None,
        *,
        by_loss: bool,
        samples: PerSample | None,
    ) -> torch.Tensor:
        """Record a batch and return its weighted mean.

        ``by_loss`` if its losses are the scores; ``samples`` if they are divided by counts.
        """
        if index is not None:
            index = send(index, losses.device)
            loss, finite = self._mean_at("update", losses, index, samples)
            self._record_at(index, reported, finite=finite and by_loss)
            return loss
        start, count = self._record("update()", reported)
        return weighted_mean(losses, self.weights.scaled(start, count, losses), samples)

    def record(self, reported: Reported, index: torch.Tensor | None) -> None:
        """Record a batch whose weighted mean the loop has computed itself."""
        if index is None:
            self._record("record()", reported)
        else:
            assert reported[0] is not None
            index = send(index, reported[0].device)
            self._check_at("record", index)
            self._record_at(index, reported)

    def batch_weights(self, index: torch.Tensor | None, device: torch.device) -> torch.Tensor:
        """The weights of the next batch, or of the samples ``index``."""
        if index is not None:
            index = send(index, device)
            self._check_at("batch_weights", index)
            return self._scaled_at("batch_weights", index, torch.float32) * index.shape[0]
        count = rest_of_batch("batch_weights()", self.updated, self.walk)
        return self.weights.unscaled(self.updated, count, device)

    def reweight(
        self, losses: torch.Tensor, index: torch.Tensor | None, samples: PerSample | None
    ) -> torch.Tensor:
        """The weighted mean for a second forward pass of the last batch."""
        if index is not None:
            return self._mean_at("reweight", losses, send(index, losses.device), samples)[0]
        count = len(losses)
        if count != self._last_count:
            raise RuntimeError(
                f"reweight() got {count} losses, expected as many as the last update() of this epoch "
                f"had ({self._last_count}). Call update() for the batch first, or pass index=."
            )
        scaled = self.weights.scaled(self.updated - count, count, losses)
        return weighted_mean(losses, scaled, samples)

    def skip(self, count: int | None) -> None:
        """Skip positions without a score; None stands for the rest of the current batch."""
        if count is None:
            count = rest_of_batch("skip()", self.updated, self.walk)
        start = self._claim("skip()", count)
        self.losses_of(PositionLosses).record_nothing(start, count)

    def skip_at(self, index: torch.Tensor) -> None:
        """Skip samples without a score."""
        if self.losses is not None:
            index = send(index, self.losses.device)
        self._check_at("skip", index)
        if not self.closed:
            self.losses_of(IndexLosses).record_nothing(index)
            self._count(index.shape[0])

    def _record(self, call: str, reported: Reported) -> tuple[int, int]:
        """Record the next positions; return the first, and how many."""
        assert reported[0] is not None
        count = reported[0].numel()  # as shape[0], at a third of its time
        start = self._claim(call, count)
        losses = self.losses
        if type(losses) is not PositionLosses:
            losses = self.losses_of(PositionLosses)
        losses.record(start, count, reported)
        return start, count

    def _record_at(self, index: torch.Tensor, reported: Reported, *, finite: bool = False) -> None:
        """Record some samples; ``finite`` if all their scores are known to be finite."""
        if self.closed:  # repeats in the last batch were recorded before
            return
        losses = self.losses
        if type(losses) is not IndexLosses:
            losses = self.losses_of(IndexLosses)
        losses.record(index, reported, finite=finite)
        self._count(index.shape[0])

    def _mean_at(
        self, call: str, losses: torch.Tensor, index: torch.Tensor, samples: PerSample | None
    ) -> tuple[torch.Tensor, bool]:
        """The weighted mean by sample, and whether all losses are known to be finite."""
        scaled = self._scaled_at(call, index, losses.dtype)
        loss = weighted_mean(losses, scaled, None if self.weights.whole else samples)
        if losses.device.type != "cpu":
            return loss, False
        mean = loss.item()
        if math.isnan(mean):
            check_planned(call, scaled, index)
        return loss, math.isfinite(mean)

    def _scaled_at(self, call: str, index: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Weight / count by sample."""
        self._check_form()
        return self.weights.scaled_at(call, index, dtype)

    def _check_at(self, call: str, index: torch.Tensor) -> None:
        """Raise if samples are not of this epoch, as far as that can be seen without waiting."""
        if index.device.type == "cpu":
            check_planned(call, self._scaled_at(call, index, torch.float32), index)
        else:
            self._check_form()

    def _claim(self, call: str, count: int) -> int:
        """Claim the next positions and return the first."""
        start = self.updated
        if type(self.losses) is IndexLosses:
            raise RuntimeError(
                f"{call} without index= follows an update with index= in the same epoch. Expected "
                "one form throughout: pass index= to every update."
            )
        check_claim(call, count, start, self.walk)
        if not start:
            self.walk.note_first_update()
        self.updated = start + count
        self.largest_batch = max(self.largest_batch, count)
        self._last_count = count
        return start

    def _count(self, count: int) -> None:
        self.updated += count
        self.largest_batch = max(self.largest_batch, count)

    def losses_of(self, kind: type[LossesT]) -> LossesT:
        """The losses, by position or by index; none at first."""
        if self.losses is None:
            self.losses = kind(1 + len(self.channels), self.route)
        assert isinstance(self.losses, kind)
        return self.losses

    def _check_form(self) -> None:
        """Raise if the batches cannot have an index, before anything changes."""
        if self.ranks.sharded:
            raise RuntimeError(
                "update(index=…) got a pruner with sharded=True, expected the form without index: a "
                "rank knows the samples of its own shard only. Use sharded=False."
            )
        if type(self.losses) is PositionLosses:
            raise RuntimeError(
                "update(index=…) follows an update without index in the same epoch. Expected one "
                "form throughout: pass index= to every update."
            )
        if self.walk.cut is not None and self.walk.cut.pad:
            raise RuntimeError(
                "update(index=…) got a batch of batch_sampler(pad=True), expected the form without "
                "index: the index cannot tell the repeats of a padded batch, whose weight is 0, from "
                "the samples. Use pad=False, or leave index= out."
            )

    # Progress.

    @property
    def by_index(self) -> bool:
        """Whether the batches carry their samples' indices."""
        return isinstance(self.losses, IndexLosses)

    @property
    def trained(self) -> int:
        """Samples of this rank that were updated or skipped, here or where the losses are."""
        return max(self.updated, self.followed)

    def is_complete(self) -> bool:
        """Whether everything that the loader delivers was updated, as far as counting can tell."""
        walk = self.walk
        if not self.check_at:
            known = walk.deliverable
            self.check_at = sys.maxsize if known is None else known
        if self.updated < self.check_at or not walk.exhausted:
            return False
        if self.ranks.share_batches:  # ranks without losses cannot tell: set_epoch() ends it
            return False
        if not isinstance(self.losses, IndexLosses) or walk.prepared is not None:
            return True
        if self.ranks.global_order:  # each rank sees its own batches only: they end it together
            return False
        # Batches that carry their indices may repeat, so the samples are counted.
        expected = min(walk.to_issue, len(self.route.shard))
        missing = expected - (self.losses.visited_here() - self.route.visited_before)
        self.check_at = self.updated + missing
        return missing <= 0

    def covers_all(self) -> bool:
        """Whether every sample that a loader delivers was visited; known after an exchange."""
        counted = None if self.losses is None else self.losses.visited()
        dropped = self.walk.dropped_of(len(self.route))
        return counted is not None and counted >= self.route.planned - dropped

    def rest_was_dropped(self) -> bool:
        """Whether less than a batch was left and another kind of loader dropped it.

        For torch's loader this is known in advance.
        """
        if self.walk.asked_by_batch or not self.walk.exhausted:
            return False
        return not self.updated and len(self.route) < self.largest_batch

    def made(self) -> int:
        """Sample passes made of the plan over all ranks, not counting repeats.

        Computed from this rank's progress, and equal on all ranks, so learning rates can depend on
        it.
        """
        updated = self.updated
        if not updated and self.ranks.share_batches:
            updated = self.walk.taken  # another rank has the losses of these batches
        if self.ranks.global_order and updated:
            # All ranks share one route; some may have a smaller last batch.
            batch = self.largest_batch
            updated = -(-updated // batch) * batch * self.ranks.world_size
        return self.route.reached(updated)

    def visited(self) -> int:
        """Like ``made``, but counted if this rank has all ranks' losses; waits for the device."""
        counted = None if self.losses is None else self.losses.visited()
        return self.made() if counted is None else counted

    @cached_property
    def old_scores(self) -> npt.NDArray[np.bool_]:
        """Which rows the epoch leaves out and, once it has ended, were not refreshed since."""
        return ~self.plan.kept()

    def unscored(self) -> int:
        """How many of the passes known to this rank gave no score."""
        return 0 if self.losses is None else self.losses.unscored()

    def progress(self) -> Progress:
        """The progress of the epoch, for schedules."""
        walk, route = self.walk, self.route
        batches = walk.batches
        if isinstance(batches, ShrunkBatches):  # each stands for a whole one
            at = self.made() - route.visited_before if self.ranks.global_order else self.updated
            done, total = (
                int(route.full_counts.clip(max=batches.full_position(position)).sum())
                for position in (at, batches.deliverable)
            )
            return Progress(self.epoch, done, max(total, 1), max(total, 1))
        total = max(route.planned - walk.dropped_of(len(route)), 1)
        full = max(int(route.full_counts.sum()) - walk.dropped_of(int(route.full_counts.max())), 1)
        return Progress(self.epoch, self.made(), total, full)

    def recorded(self) -> tuple[FloatArray, dict[str, FloatArray]]:
        """The losses for a checkpoint, and the values reported besides them."""
        assert self.losses is not None
        done = None if self.by_index else self.route.reached(self.trained)
        if self.ranks.sharded:  # of this rank's own
            before = len(self.plan) - len(self.route.left)
            done = before + min(self.trained, len(self.route.shard))
        scores, *extras = self.losses.known()[:, :done].copy()
        return scores, dict(zip(self.channels, extras, strict=True))
