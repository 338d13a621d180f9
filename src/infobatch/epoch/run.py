"""The running epoch on one rank: its route, its losses, its weights."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import torch

from infobatch.distributed.ranks import Ranks
from infobatch.epoch.losses import (
    NO_EXTRAS,
    Earlier,
    IndexLosses,
    Losses,
    PositionLosses,
    was_visited,
)
from infobatch.epoch.matching import check_claim, rest_of_batch
from infobatch.epoch.progress import Progress
from infobatch.epoch.route import Route
from infobatch.epoch.walk import Walk
from infobatch.epoch.weights import Weights, weighted_mean, weighted_mean_at
from infobatch.plan import FloatArray, Plan
from infobatch.plan.batching import ShrunkBatches


class Run:
    """The running epoch's plan, as seen by one rank, and the losses recorded in it.

    ``earlier`` are the losses of a loaded checkpoint, in the form ``losses_by``; ``extras`` are the
    names of the values reported besides the scores, with the checkpoint's values.
    """

    def __init__(
        self,
        epoch: int,
        plan: Plan,
        ranks: Ranks,
        *,
        earlier: FloatArray | None = None,
        losses_by: str = "position",
        largest_batch: int = 0,
        extras: Earlier = NO_EXTRAS,
    ) -> None:
        self.epoch = epoch
        self.plan = plan
        self.ranks = ranks
        self.updated = 0  # samples of this rank that were updated or skipped
        self.followed = (
            0  # the same of the rank in the model group whose losses count, if it is known
        )
        self.largest_batch = largest_batch  # the most samples in an update
        self.closed = False  # its losses are part of the memory
        self.walk: Walk | None = None
        self._last: tuple[int, int] | None = None
        self.check_at = 0  # it cannot be complete before this many samples were updated
        self._earlier, self._earlier_by, self._extras = earlier, losses_by, extras
        self.losses: Losses | None = None
        left = plan.codes
        if earlier is not None and losses_by == "index":
            self.losses = IndexLosses(ranks, plan.num_samples, earlier, extras)
            left = plan.codes[~was_visited(earlier)[plan.rows(plan.codes)]]
        elif earlier is not None:
            left = plan.codes[len(earlier) :]
        self.route = Route(plan, ranks, left)
        if earlier is not None and losses_by == "position":
            self.losses = PositionLosses(self.route, earlier, extras)
        self.weights = Weights(self.route)

    def on(self, ranks: Ranks) -> Run:
        """Return the same epoch, not begun, for another set of ranks."""
        return Run(
            self.epoch,
            self.plan,
            ranks,
            earlier=self._earlier,
            losses_by=self._earlier_by,
            largest_batch=self.largest_batch,
            extras=self._extras,
        )

    def continue_with(self, walk: Walk) -> None:
        """Let an earlier iterator of this epoch be the one that counts."""
        self.walk = walk
        if self.updated:
            self._begin_updates(by_index=self.by_index)

    # Reports from the training loop.

    def update(
        self,
        losses: torch.Tensor,
        plain: torch.Tensor,
        scores: torch.Tensor | None,
        index: torch.Tensor | None,
        extras: Mapping[str, torch.Tensor] | None,
    ) -> torch.Tensor:
        """Record a batch and return its weighted mean; ``plain`` are the detached losses."""
        values = plain if scores is None else scores.detach()
        if index is not None:
            loss, finite = self._mean_at("update", losses, index)
            if not self.closed:  # repeats in the last batch were recorded before
                by_index = self._by_index()
                by_index.record(index, values, finite=finite and scores is None)
                if extras is not None:
                    for name in self._extras:
                        by_index.extras[name].record(index, extras[name].detach(), finite=False)
                self._count(index.shape[0])
            return loss
        count = losses.shape[0]
        start = self._claim("update()", count)
        by_position = self._by_position()
        by_position.record(values, start, count)
        if extras is not None:
            for name in self._extras:
                by_position.extras[name].record(extras[name].detach(), start, count)
        return weighted_mean(losses, self.weights.scaled(start, count, losses))

    def reweight(self, losses: torch.Tensor, index: torch.Tensor | None) -> torch.Tensor:
        """The weighted mean for a second forward pass of the last batch."""
        if index is not None:
            size = self.plan.num_samples
            return weighted_mean_at("reweight", self.weights, index, losses, size)[0]
        if self._last is None or self._last[1] != len(losses):
            size_of_last = None if self._last is None else self._last[1]
            raise RuntimeError(
                f"reweight() got {len(losses)} losses, expected as many as the last update() of this "
                f"epoch had ({size_of_last}). Call update() for the batch first, or pass index=."
            )
        return weighted_mean(losses, self.weights.scaled(*self._last, like=losses))

    def skip(self, count: int) -> None:
        """Skip positions without a score."""
        start = self._claim("skip()", count)
        self._by_position().record_nothing(start, count)

    def skip_at(self, index: torch.Tensor) -> None:
        """Skip samples without a score."""
        self._mean_at("skip", torch.zeros(index.shape, device=index.device), index)
        if not self.closed:
            self._by_index().record_nothing(index)
            self._count(index.shape[0])

    def _mean_at(
        self, call: str, losses: torch.Tensor, index: torch.Tensor
    ) -> tuple[torch.Tensor, bool]:
        """The weighted mean by sample, and whether all losses are known to be finite."""
        self._check_form()
        if not self.updated:
            self._begin_updates(by_index=True)
        return weighted_mean_at(call, self.weights, index, losses, self.plan.num_samples)

    def rest_of_batch(self) -> int:
        """How many samples of the current batch have no update yet."""
        assert self.walk is not None
        return rest_of_batch(self.updated, self.walk)

    def _claim(self, call: str, count: int) -> int:
        """Claim the next positions and return the first."""
        assert self.walk is not None
        start = self.updated
        if type(self.losses) is IndexLosses:
            raise RuntimeError(
                f"{call} without index= follows an update with index= in the same epoch. Expected "
                "one form throughout: pass index= to every update."
            )
        check_claim(call, count, start, self.walk)
        if not start:
            self._begin_updates(by_index=False)
        self.updated = start + count
        self.largest_batch = max(self.largest_batch, count)
        self._last = (start, count)
        return start

    def _begin_updates(self, *, by_index: bool) -> None:
        """Note what is known about the loader when the first losses of the epoch arrive."""
        walk = self.walk
        if walk is not None:
            if not by_index:
                walk.note_first_update()
            self.weights.cut_into(walk.batches)
        known = None if walk is None else walk.deliverable
        self.check_at = sys.maxsize if known is None else known

    def _count(self, count: int) -> None:
        self.updated += count
        self.largest_batch = max(self.largest_batch, count)

    def _by_position(self) -> PositionLosses:
        if self.losses is None:
            self.losses = PositionLosses(self.route, extras=self._extras)
        assert isinstance(self.losses, PositionLosses)
        return self.losses

    def _by_index(self) -> IndexLosses:
        if self.losses is None:
            self.losses = IndexLosses(self.ranks, self.plan.num_samples, extras=self._extras)
        assert isinstance(self.losses, IndexLosses)
        return self.losses

    def _check_form(self) -> None:
        """Raise if the batches cannot have an index, before anything changes."""
        if self.ranks.sharded:
            raise RuntimeError(
                "update(index=…) got a pruner with sharded=True, expected the form without index: a "
                "rank knows the samples of its own shard only. Use sharded=False."
            )
        if isinstance(self.losses, PositionLosses):
            raise RuntimeError(
                "update(index=…) follows an update without index in the same epoch. Expected one "
                "form throughout: pass index= to every update."
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
        if self.updated < self.check_at or walk is None or not walk.exhausted:
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
        dropped = 0 if self.walk is None else self.walk.dropped_of(len(self.route))
        return counted is not None and counted >= self.route.planned - dropped

    def rest_was_dropped(self) -> bool:
        """Whether less than a batch was left and another kind of loader dropped it.

        For torch's loader this is known in advance.
        """
        walk = self.walk
        if walk is None or not walk.has_sampler or walk.asked_by_batch or not walk.exhausted:
            return False
        return not self.updated and len(self.route) < self.largest_batch

    def made(self) -> int:
        """Sample passes made of the plan over all ranks, not counting repeats.

        Computed from this rank's progress, and equal on all ranks, so learning rates can depend on
        it.
        """
        updated = self.updated
        if not updated and self.walk is not None and self.ranks.share_batches:
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

    def unscored(self) -> int:
        """How many of the passes known to this rank gave no score."""
        return 0 if self.losses is None else self.losses.unscored()

    def progress(self) -> Progress:
        """The progress of the epoch, for schedules."""
        walk, route = self.walk, self.route
        if walk is None:
            return Progress(self.epoch, self.made(), route.planned, int(route.full_counts.sum()))
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
        if not self.by_index and self.ranks.sharded:
            before = len(self.plan) - len(self.route.left)
            done = before + min(self.trained, len(self.route.shard))
        extras = self.losses.extras.items()
        values = {name: extra.known()[:done].copy() for name, extra in extras}
        return self.losses.known()[:done].copy(), values

    def losses_by(self, form: str) -> Losses:
        """The losses in the form "position" or "index"; empty if none have been recorded yet."""
        return self._by_index() if form == "index" else self._by_position()
