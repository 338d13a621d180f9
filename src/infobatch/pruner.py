"""The pruner: losses in, plans out. It owns the scores and knows which epoch it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from infobatch.checks import check_count, check_delta, check_index, check_losses, check_scores
from infobatch.dealing import loader_at_work
from infobatch.distributed import Ranks, check_ranks, has_process_group, resolve_ranks
from infobatch.endings import discard_unmatched, warn_of_dealing
from infobatch.ledger import Ledger, Progress
from infobatch.per_sample import PerSample
from infobatch.plan import FloatArray, Plan, fingerprint
from infobatch.planning import plan_epoch
from infobatch.policies import Policy, check_shardable, resolve_policy
from infobatch.sampler import Place, PlanBatchSampler, PlanSampler, Route, Walk
from infobatch.savings import EpochPasses, Savings
from infobatch.state import STATE_VERSION, check_state
from infobatch.weighting import weighted_mean, weighted_mean_at


class Pruner:
    """Prunes the epochs of a training run over ``num_samples`` samples.

    Give ``sampler`` to a loader, and the per-sample losses of each of its batches to ``update``.
    Scores stay frozen during an epoch; the next epoch's plan is drawn from them when it is first
    asked for. Epochs from ``delta * num_epochs`` on are whole, with weight 1.

    >>> pruner = Pruner(6, num_epochs=2, delta=1.0)
    >>> for epoch in range(2):
    ...     for index in pruner.sampler:
    ...         loss = pruner.update(torch.tensor([float(index)]))
    >>> print(pruner.savings)
    Saved 8.3% of 12 sample passes (11 made in 2 epochs)
    """

    def __init__(
        self,
        num_samples: int,
        num_epochs: int,
        *,
        policy: Policy | str | None = None,
        delta: float = 0.875,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        process_group: dist.ProcessGroup | None = None,
        sharded: bool = False,
        global_order: bool | None = None,
    ) -> None:
        rank, world_size = check_ranks(rank, world_size)
        self.num_samples = check_count("num_samples", num_samples, "an empty data set cannot train")
        self.num_epochs = check_count("num_epochs", num_epochs, "training takes at least one epoch")
        self.delta = check_delta(delta)
        self.seed = check_count("seed", seed, "it is the key of the random draws", least=0)
        self.policy = resolve_policy(policy)
        if sharded:
            check_shardable(self.policy)
            if global_order:
                raise ValueError(
                    "Pruner(sharded=True, global_order=True) asks for two things at once: that a rank "
                    "knows only its own samples, and that it is handed all. Expected one of them; "
                    "loaders that deal out the batches themselves, as Accelerate's, need global_order."
                )
        self.sharded = sharded
        self.global_order = global_order
        self._place = (rank, world_size, process_group)
        self._known_scores: FloatArray | None = None
        self._epoch = 0
        self._finished = -1  # the last epoch that came to its end
        self._resumed = False  # a state was loaded, and nothing walked since
        self._counted_from: int | None = 0  # what set_epoch's caller calls 0; unknown after a load
        self._prepared = False  # a loader that Accelerate prepared walks this epoch
        self._drops_rounds = False  # and leaves out what does not make a batch for each rank
        self._nothing_left = False  # the next walk is over an epoch that has finished
        self._peeked = False  # another walk was begun beside this one
        self._left_behind: Walk | None = None  # one that was under way when this one was begun
        self._ledger: Ledger | None = None
        self._walk: Walk | None = None
        self._history: list[EpochPasses] = []
        self._loaders_place: Place | None = None  # what a loader's own checkpoint says
        self._sampler = PlanSampler(
            self._begin, self._remaining, self.set_epoch, self._place_read, self._expect
        )

    # What a loader uses.

    @property
    def sampler(self) -> PlanSampler:
        """The sampler for a ``DataLoader``; always the same object."""
        return self._sampler

    def batch_sampler(self, batch_size: int, *, drop_last: bool = False) -> PlanBatchSampler:
        """A batch sampler for ``DataLoader(…, batch_sampler=…)``, faster than ``sampler``."""
        batch_size = check_count("batch_sampler(): batch_size", batch_size, "batches have samples")
        return PlanBatchSampler(self._sampler, batch_size, drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next; needed only where epochs are not simply iterated in turn.

        Loaders that call it with a counter of their own (Accelerate's, Fabric's) begin at 0 again
        after a resume: an epoch before the loaded one is taken for the start of such a count. (But for
        one: in a state from exactly the end of an epoch, that epoch's number means it, and nothing of
        it is left.)
        """
        epoch = check_count("set_epoch(): epoch", epoch, "epochs are counted from 0", least=0)
        loader = loader_at_work(self._sampler)
        counted = getattr(loader, "iteration", None) == epoch  # it begins, and says its own count
        if self._counted_from is None:
            is_earlier = epoch < self._epoch and (epoch != self._finished or self._in_mid_epoch())
            self._counted_from = self._epoch - epoch if counted or is_earlier else 0
        epoch += self._counted_from
        self._nothing_left = False
        if epoch == self._epoch:
            if counted and self._was_broken_off():
                # Accelerate counts only the iterations that came to their end.
                self._counted_from += 1
                self._move_to(epoch + 1)
            elif self._moves_on():  # this epoch has been: once more
                self._move_to(epoch)
        elif epoch == self._finished and self._resumed:
            # A loop that was stopped after its epoch's last step asks for that epoch again.
            self._nothing_left = True
        else:
            self._move_to(epoch)
        self._prepared = loader is not None
        self._drops_rounds = loader is not None and bool(
            getattr(loader.batch_sampler, "drop_last", False)
        )

    def _was_broken_off(self) -> bool:
        """Whether this epoch was trained on, and no loop is known to be still at it."""
        ledger, walk = self._ledger, self._walk
        return ledger is not None and ledger.started and not (walk is not None and walk.alive)

    def _in_mid_epoch(self) -> bool:
        return self._ledger is not None and self._ledger.done() > 0

    def _begin(self, walk: Walk) -> Route | None:
        """Begin a pass over the epoch: this one if nothing of it was trained on, else the next."""
        self._check_loaders_place()
        if self._nothing_left:
            self._nothing_left = False
            return None
        started = self._ledger is not None and self._ledger.started
        self._left_behind = None
        if started and self._walk is not None and self._walk.alive:
            if self._current_ledger().fetches_on_demand(self._walk.batch_size):
                self._peeked = True  # a look at the running epoch from beside its loop
                return self._ledger
            self._left_behind = self._walk  # a loader that fetches ahead is begun anew, it seems
        if started or self._moves_on() or self._dropped_the_rest():
            self._move_on()
        self._resumed = self._peeked = False
        if self._counted_from is None:
            self._counted_from = 0
        self._walk = None  # one that only looked does not bind the plan to the ranks of its time
        ledger = self._current_ledger()
        ledger.lookahead = None
        self._walk = walk
        return ledger

    def _remaining(self) -> int:
        if self._nothing_left:
            return 0
        if self._moves_on():
            self._move_on()
        return len(self._current_ledger())

    def _place_read(self) -> Place:
        if self._ledger is None or self._walk is None:
            return Place(self._epoch, 0 if self._ledger is None else self._ledger.done())
        return Place(self._epoch, self._ledger.reached(self._walk.handed_out))

    def _expect(self, place: Place) -> None:
        self._loaders_place = place

    def _check_loaders_place(self) -> None:
        """A loader's checkpoint has no scores: it is of use only beside the pruner's own, as old."""
        place, self._loaders_place = self._loaders_place, None
        if place is None or place == Place(0, 0):
            return
        done = 0 if self._ledger is None else self._ledger.done()
        between = done == 0 and place.epoch == self._finished and self._epoch == place.epoch + 1
        if self._resumed and (between or place == Place(self._epoch, done)):
            return
        own = f"after {done} samples of epoch {self._epoch}" if self._resumed else "not loaded"
        raise RuntimeError(
            f"The loader's state was loaded, of after {place.read} samples of epoch {place.epoch}, but "
            f"train_data's is {own}. Save train_data.state_dict() beside it, after the same update (and "
            "with snapshot_every_n_steps=1), and load both; train_data's alone will do."
        )

    # What a training loop uses.

    def update(
        self,
        losses: torch.Tensor | PerSample,
        *,
        scores: torch.Tensor | None = None,
        index: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Record a batch's losses and return the mean of weight × loss, for ``backward()``.

        ``losses`` has one entry a sample. ``scores`` ranks the samples where it is not the loss.
        ``index`` names the samples, where the batch carries them; without it the batches must come
        in the sampler's order, one update each (or several, for parts of a batch in turn).
        """
        if isinstance(losses, PerSample):
            scores = losses.scores if scores is None else scores
            losses = losses.losses
        check_losses("update()", losses)
        if scores is not None:
            check_scores(scores, losses)
        values = losses if scores is None else scores
        if index is not None:
            index = check_index("update", index, losses)
            self._refuse_two_loops("update()")
            ledger = self._current_ledger()
            loss, finite = weighted_mean_at("update", ledger, index, losses)
            ledger.record_at(index, values, finite=finite and scores is None)
            return loss
        ledger, handed_out = self._walked("update()")
        count = losses.shape[0]
        start = ledger.claim("update()", count, handed_out)
        ledger.record(values, start, count)
        return weighted_mean(losses, ledger.shares_of_mean(start, count, losses))

    def reweight(
        self, losses: torch.Tensor | PerSample, *, index: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The weighted mean for another forward of the last updated batch: nothing is recorded.

        For optimizers that evaluate a batch more than once, such as SAM or L-BFGS.
        """
        if isinstance(losses, PerSample):
            losses = losses.losses
        check_losses("reweight()", losses)
        if index is not None:
            index = check_index("reweight", index, losses)
            return weighted_mean_at("reweight", self._current_ledger(), index, losses)[0]
        ledger, _ = self._walked("reweight()")
        return weighted_mean(losses, ledger.shares_of_last_mean(losses))

    def skip(self, count: int | None = None, *, index: torch.Tensor | None = None) -> None:
        """Say that a batch gets no update (after a NaN, say): its samples keep their scores.

        Without ``count`` the rest of the current batch is passed over.
        """
        if index is not None:
            index = torch.as_tensor(index)
            unscored = torch.full(index.shape, float("inf"), device=index.device)
            index = check_index("skip", index, unscored)
            ledger = self._current_ledger()
            weighted_mean_at("skip", ledger, index, torch.zeros_like(unscored))
            ledger.record_at(index, unscored, finite=False)
            return
        ledger, handed_out = self._walked("skip()")
        if count is None:
            count = self._rest_of_batch(ledger, handed_out)
        count = check_count("skip(): count", count, "it is a number of samples")
        start = ledger.claim("skip()", count, handed_out)
        ledger.record_nothing(start, count)

    def break_off(self, samples: int) -> None:
        """Say that the loop left this epoch after ``samples`` samples of this rank, and meant to.

        Near an epoch's end a loader with workers has read ahead to its end; the batches that the loop
        did not take would look like updates that were left out. They still do if another number of
        samples was updated than is said here.
        """
        if self._walk is not None and self._ledger is not None and self._ledger.taken == samples:
            self._walk.broken_off = True

    def _walked(self, call: str) -> tuple[Ledger, int]:
        ledger, walk = self._current_ledger(), self._walk
        if ledger.ranks.global_order:
            raise RuntimeError(
                f"{call} got no index=, but with {ledger.ranks.world_size} ranks and global_order the "
                "loader (Accelerate's, say) deals the batches out by itself, and only the batch knows "
                "which samples it has. Expected the index in the batch: Pruner, Indexed, with_index, "
                "and update(losses, index=index)."
            )
        if walk is None:
            raise RuntimeError(
                f"{call} was called before the sampler handed out a sample of epoch {self._epoch}. "
                "Expected DataLoader(…, sampler=train_data.sampler), iterated from its start (anew after "
                "load_state_dict or set_epoch); or pass index=."
            )
        handed_out = walk.handed_out
        gone = not walk.alive and not walk.exhausted
        if self._left_behind is not None or (self._peeked and (gone or handed_out == ledger.taken)):
            self._refuse_two_loops(call)
        return ledger, handed_out

    def _refuse_two_loops(self, call: str) -> None:
        """Two iterators are under way at once: whose batch a loss is of cannot be told."""
        if self._peeked or (self._left_behind is not None and self._left_behind.alive):
            raise RuntimeError(
                f"{call} cannot tell which of two iterators its batch is of: a second one was begun "
                f"in epoch {self._epoch} while the first was under way. Expected one after the other; "
                "for a look beside the loop use a loader of its own, without this sampler."
            )
        self._left_behind = None

    def _rest_of_batch(self, ledger: Ledger, handed_out: int) -> int:
        assert self._walk is not None
        size = self._walk.batch_size
        if size is None:
            if not self._walk.asked_by_batch:
                raise RuntimeError(
                    "skip() cannot tell the size of the batch from this loader. Expected "
                    "skip(count) with the number of its samples."
                )
            return handed_out - ledger.taken
        return min(size - ledger.taken % size, len(ledger) - ledger.taken)

    # What a user looks at.

    @property
    def epoch(self) -> int:
        """The running epoch, from 0; after ``load_state_dict`` the one that the loader goes on with."""
        return self._epoch

    @property
    def plan(self) -> Plan:
        """This epoch's plan; drawn now if it was not yet."""
        return self._current_ledger().plan

    @property
    def progress(self) -> Progress:
        """How far the running epoch has come."""
        ledger = self._current_ledger()
        total = max(ledger.planned() - self._dropped(ledger), 1)
        return Progress(self._epoch, ledger.done(), total)

    @property
    def scores(self) -> torch.Tensor:
        """A score a sample, float32, NaN where never seen; a copy, this rank's news included."""
        scores = self._scores.copy()
        if self._ledger is not None and self._ledger.done():
            self._ledger.fold_into(scores)
        return torch.from_numpy(scores)

    @property
    def savings(self) -> Savings:
        """Sample passes made and saved so far."""
        epochs = list(self._history)
        if self._ledger is not None and self._ledger.done():
            epochs.append(self._passes(self._ledger, self._ledger.unscored()))
        return Savings(tuple(epochs))

    def get_pruned_count(self) -> int:
        """Sample passes saved so far, under the name that existing scripts use."""
        return self.savings.saved

    # Epochs.

    def _current_ledger(self) -> Ledger:
        ledger, walk = self._ledger, self._walk
        if ledger is not None and not ledger.started and (walk is None or not walk.alive):
            ranks = self._ranks()
            if ranks != ledger.ranks:  # the process group came after a look at the plan or a batch
                ledger, self._walk = None if self.sharded else ledger.on(ranks), None
        if ledger is None:
            plan = self._draw(self._scores, epoch=self._epoch, seed=self.seed)
            ledger = Ledger(plan, self._ranks())
        self._ledger = ledger
        return ledger

    def _ranks(self) -> Ranks:
        """This process's place: asked for late, since loaders are often built before the group."""
        return resolve_ranks(*self._place, sharded=self.sharded, global_order=self.global_order)

    @property
    def _scores(self) -> FloatArray:
        """The scores that this rank keeps; all of them, unless they are sharded."""
        scores = self._known_scores
        if scores is None or (self.sharded and self.is_fresh):
            owned = self._ranks().owned(self.num_samples)
            if scores is None or len(scores) != owned:  # or asked for before there was a group
                scores = self._known_scores = np.full(owned, np.nan, np.float32)
        return scores

    def _draw(self, scores: FloatArray, *, epoch: int, seed: int) -> Plan:
        policy = self.policy if self.prunes(epoch) else None
        return plan_epoch(scores, policy, self._ranks(), seed=seed, epoch=epoch)

    def prunes(self, epoch: int) -> bool:
        """Whether that epoch leaves samples out; those from ``delta * num_epochs`` on do not."""
        # The rounding undoes a product such as 0.07 * 100 = 7.000000000000001.
        return epoch < round(self.delta * self.num_epochs, 9)

    def _is_over(self) -> bool:
        """Whether all that the loader has to deliver of this epoch was updated."""
        ledger, walk = self._ledger, self._walk
        if ledger is None:
            return False
        if (
            self._prepared
            and ledger.by_index
            and ledger.started
            and loader_at_work(self._sampler) is None
        ):
            return True  # the loop has come to its end, whatever was delivered
        if walk is None or not walk.exhausted:
            return False
        if not ledger.by_index:
            return ledger.taken >= walk.deliverable
        # Batches that carry their indices may come more than once: the samples count.
        expected = ledger.planned() - self._dropped(ledger)
        return ledger.done() >= expected and ledger.visited() >= expected

    def _dropped(self, ledger: Ledger) -> int:
        """How many samples the loader leaves out at the epoch's end, over all ranks."""
        if not ledger.ranks.global_order:
            return self._walk.dropped * ledger.ranks.walkers if self._walk is not None else 0
        # A loader that deals out the batches itself drops an incomplete round of them.
        drops = self._drops_rounds or (self._walk is not None and self._walk.drop_last)
        a_round = ledger.largest_batch * ledger.ranks.world_size
        return len(ledger) % a_round if drops and a_round else 0

    def _moves_on(self) -> bool:
        """Whether a new iterator would be for the next epoch, and no loop is still at this one."""
        ledger, walk = self._ledger, self._walk
        if ledger is not None and self._prepared:
            return self._is_over() and loader_at_work(self._sampler) is None
        if ledger is None or walk is None or walk.alive:
            return False
        return self._is_over() if walk.exhausted else ledger.started

    def _dropped_the_rest(self) -> bool:
        """Whether an epoch was resumed with less than a batch left, and the loader dropped that.

        torch's loader tells that it will; this is for another kind, torchdata's for one.
        """
        ledger, walk = self._ledger, self._walk
        if ledger is None or walk is None or walk.asked_by_batch or not walk.exhausted:
            return False
        return not ledger.started and len(ledger) < ledger.largest_batch

    def _move_on(self) -> None:
        if self._is_over():
            self._finished = self._epoch
        self._move_to(self._epoch + 1)

    def _move_to(self, epoch: int) -> None:
        if self._ledger is not None and self._walk is not None and not self._ledger.by_index:
            discard_unmatched(self._ledger, self._walk, self._epoch)
        self._exchange()
        ledger, walk = self._ledger, self._walk
        self._ledger = self._walk = None  # freed before the next plan is drawn
        self._prepared = self._drops_rounds = False
        if ledger is not None and (ledger.done() or ledger.by_index or walk is not None):
            if walk is not None and ledger.by_index:
                warn_of_dealing(ledger, walk, self._epoch)
            ledger.fold_into(self._scores)
            unscored = ledger.unscored_by_all()
            if ledger.visited():
                self._history.append(self._passes(ledger, unscored))
        self._epoch = epoch

    def _exchange(self) -> None:
        """Bring together what the ranks recorded of this epoch. Collective."""
        walked = self._ledger is not None and (self._walk is not None or self._ledger.started)
        # Who walked, and who got a batch, may differ from rank to rank: all take part. (Without a
        # process group there is nobody to wait for, and who walked gets an error.)
        ranks = self._ranks()
        if ranks.global_order or (ranks.world_size > 1 and (walked or has_process_group())):
            self._current_ledger().exchange()

    def _passes(self, ledger: Ledger, unscored: int) -> EpochPasses:
        return EpochPasses(
            self._epoch,
            self.num_samples,
            ledger.planned(),
            min(ledger.visited(), ledger.planned()),
            unscored,
            ledger.plan.thresholds,
        )

    # State.

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied like a checkpoint: the copy goes on where this one stands."""
        options = {
            "policy": self.policy,
            "delta": self.delta,
            "seed": self.seed,
            "sharded": self.sharded,
            "global_order": self.global_order,
            **dict(zip(("rank", "world_size", "process_group"), self._place, strict=True)),
        }
        state = None if self.is_fresh else self.state_dict(gather=False)
        return _rebuilt, (self.num_samples, self.num_epochs, options, state)

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was recorded yet."""
        return not self._history and (self._ledger is None or not self._ledger.done())

    @property
    def can_be_sent(self) -> bool:
        """Whether another process could take it along: a process group stays in its own."""
        return self._place[2] is None

    def state_dict(self, *, gather: bool = True) -> dict[str, Any]:
        """Everything needed to go on from here, bit for bit, in plain tensors and numbers.

        With several ranks this is collective: call it on every rank; each gets the whole state, so
        write one of them. ``gather=False`` may be called on one rank alone: what the other ranks
        have recorded in the running epoch is then missing, and those samples keep their old scores.
        A sharded pruner's state is the rank's own: write and load one for each.
        """
        epoch, finished, scores = self._epoch, self._finished, self._scores.copy()
        history = list(self._history)
        losses = np.empty(0, np.float32)
        if gather:
            self._exchange()
        ledger = self._ledger if self._ledger is not None and self._ledger.visited() else None
        if ledger is not None and self._is_over():
            ledger.fold_into(scores)
            unscored = ledger.unscored_by_all() if gather else ledger.unscored()
            history.append(self._passes(ledger, unscored))
            epoch, finished, ledger = epoch + 1, epoch, None
        elif ledger is not None and ledger.by_index:
            losses = ledger.losses_by_index().copy()
        elif ledger is not None:
            losses = ledger.losses_by_position()[: ledger.recorded()].copy()
        return {
            "version": STATE_VERSION,
            "num_samples": self.num_samples,
            "share": list(self._ranks().share),
            "seed": self.seed,
            "epoch": epoch,
            "finished": finished,
            "scores": torch.from_numpy(scores),
            "losses": torch.from_numpy(losses),
            "losses_by": "index" if ledger is not None and ledger.by_index else "position",
            "plan_check": 0 if ledger is None else fingerprint(ledger.plan),
            "batch": 0 if ledger is None else ledger.largest_batch,
            "history": [
                [e.epoch, e.full, e.planned, e.made, e.unscored, *e.thresholds] for e in history
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: the next iteration of a loader continues where it was taken."""
        check_state(state, self.num_samples, self._ranks())
        scores = state["scores"].cpu().numpy().copy()
        losses = state["losses"].cpu().numpy().copy()
        ledger = None
        if len(losses):
            plan = self._draw(scores, epoch=state["epoch"], seed=state["seed"])
            by_index = state["losses_by"] == "index"
            if fingerprint(plan) != state["plan_check"] or (
                len(losses) > len(plan) and not by_index
            ):
                raise ValueError(
                    f"load_state_dict() got a state from the middle of epoch {state['epoch']}, but "
                    "the plan drawn again is not the one that was saved. Expected the same policy "
                    f"(here {self.policy!r}), delta ({self.delta}), num_epochs ({self.num_epochs}) "
                    "and versions of infobatch and numpy as when it was saved."
                )
            if by_index:
                ledger = Ledger(plan, self._ranks(), by_index=torch.from_numpy(losses))
            else:
                ledger = Ledger(plan, self._ranks(), earlier=losses)
            ledger.largest_batch = state.get("batch", 0)
        self.seed = state["seed"]
        self._epoch = state["epoch"]
        self._finished = state["finished"]
        self._nothing_left = False
        self._resumed = True
        self._counted_from = None
        self._prepared = self._drops_rounds = False
        self._known_scores = scores
        self._ledger = ledger
        self._walk = self._left_behind = None
        self._peeked = False
        self._history = [
            EpochPasses(epoch, full, planned, made, unscored, tuple(thresholds))
            for epoch, full, planned, made, unscored, *thresholds in state["history"]
        ]


def _rebuilt(
    num_samples: int, num_epochs: int, options: dict[str, Any], state: dict[str, Any] | None
) -> Pruner:
    pruner = Pruner(num_samples, num_epochs, **options)
    if state is not None:
        pruner.load_state_dict(state)
    return pruner
