"""The pruner for streamed data: it knows samples by their keys, and decides before they are decoded."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from infobatch import checks
from infobatch.distributed.ranks import Place, Ranks
from infobatch.keyed.chance import Hashes, Keys, draw, hash_keys
from infobatch.keyed.exchange import (
    all_decisions,
    check_ranks,
    gather_visits,
    joined,
    owned,
    something_known,
)
from infobatch.keyed.keeps import Keeps
from infobatch.keyed.memory import KeyedMemory
from infobatch.keyed.outline import Outline
from infobatch.keyed.record import Record, Visits
from infobatch.keyed.state import State
from infobatch.keyed.table import DECODED, Board
from infobatch.memory.memory import SCORE
from infobatch.memory.tracks import Track
from infobatch.per_sample import PerSample
from infobatch.plan.draw import DROPPED
from infobatch.plan.strata import LabelArray, Strata
from infobatch.policies.base import Policy
from infobatch.policies.options import Options
from infobatch.policies.planning import Planner
from infobatch.policies.resolve import resolve_policy
from infobatch.savings import EpochPasses, Savings
from infobatch.step.weights import weighted_mean
from infobatch.transfer import send


class KeyedPruner:
    """Prunes streamed data: samples without an index that come back under the same key.

    Give :attr:`keeps` to the pipeline, before anything is decoded, call :meth:`set_epoch` before each
    epoch, and give the losses of each batch to :meth:`update`, with the keys. The first epoch meets
    all samples; a key that is not known yet is always kept. Later, each known key is kept or left out
    by a random number that depends only on (seed, epoch, key), with the probability that the policy
    gives it, and weighs 1 over that probability: the expected gradient is that of all data.

    Decisions are independent of each other, so the weights sum to the number of samples on average and
    not, as a :class:`Pruner`'s do, in every epoch.

    Args:
        num_epochs: how many epochs training takes in total.
        prune_ratio, delta, policy, seed, save, warmup, max_noise, tracks: see
            :class:`infobatch.Options`. The policy may not need labels or a forward pass over what was
            left out.
        key: the name under which samples that are dictionaries have their key.
        rank, world_size, process_group: as for :class:`Pruner`.
        sharded: each rank keeps only the scores of a share of the keys; every rank still knows the
            hashes and decisions, eleven bytes per key.

    Raises:
        TypeError, ValueError: if an argument is not what is expected.

    >>> pruner = KeyedPruner(num_epochs=2, delta=1.0)
    >>> for epoch in range(2):
    ...     pruner.set_epoch(epoch)
    ...     for key in filter(pruner.keeps, ["a", "b", "c", "d"]):
    ...         loss = pruner.update(torch.tensor([float(key == "d")]), key=[key])
    >>> print(pruner.savings)
    Saved 25.0% of 8 sample passes (6 made in 2 epochs)
    """

    def __init__(
        self,
        num_epochs: int,
        prune_ratio: float | None = None,
        delta: float | None = None,
        *,
        policy: Policy | str | None = None,
        seed: int = 0,
        save: float | None = None,
        warmup: int = 0,
        max_noise: float | None = None,
        tracks: Iterable[Track] = (),
        key: str = "__key__",
        rank: int | None = None,
        world_size: int | None = None,
        process_group: dist.ProcessGroup | None = None,
        sharded: bool = False,
    ) -> None:
        options = Options(
            prune_ratio=prune_ratio,
            delta=delta,
            policy=policy,
            seed=seed,
            save=save,
            warmup=warmup,
            max_noise=max_noise,
            tracks=tracks,
        )
        _check_rule(resolve_policy(options.rule, sharded=sharded))
        self._place = Place(rank, world_size, process_group, sharded=sharded)
        self._planner = Planner(0, checks.check_epochs(num_epochs), options)
        self._seed = seed
        self._memory = KeyedMemory(self._planner.tracks)
        self._history: list[EpochPasses] = []
        self._repeated = 0
        self._board = Board()
        self._keeps = Keeps(self._board.folder, key)
        self._warned_of_decoding = False
        nothing = Strata(np.empty(0, np.uint8), ())
        self._start(Outline.of(0, nothing, nothing.labels), self._memory.hashes, nothing.labels)

    # For the loader.

    @property
    def keeps(self) -> Keeps:
        """A function that returns whether the running epoch keeps a sample; cheap to send to workers.

        It takes a sample, if that is a dictionary with its key, or the key itself: a string, bytes
        or an integer. Use it before decoding: ``WebDataset(urls).select(pruner.keeps)`` or
        ``dataset.filter(pruner.keeps, input_columns="id")``.
        """
        return self._keeps

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; call it before the loader is iterated.

        What the last epoch recorded is folded into the scores, and the new epoch's decisions are
        published to the workers. With several ranks it is collective: call it on all of them.

        Args:
            epoch: its number, counted from 0.

        Raises:
            ValueError: if the epoch lies before the running one.
        """
        epoch = checks.check_count("set_epoch(): epoch", epoch, "counted from 0", least=0)
        if epoch < self._outline.epoch:
            raise ValueError(
                f"set_epoch({epoch}) was called in epoch {self._outline.epoch}, expected that one or a later one. "
                "After a resume, count from pruner.epoch; for a new training, build a new pruner."
            )
        if epoch > self._outline.epoch:
            self._close()
            self._begin(epoch)

    # For the training loop.

    def update(
        self,
        losses: torch.Tensor | PerSample,
        scores: torch.Tensor | None = None,
        *,
        key: Keys,
        extras: Mapping[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Record a batch's losses and return the mean of weight × loss, for ``backward()``.

        Args:
            losses: one loss per sample, a 1-D tensor of any float type on any device, or a
                :class:`~infobatch.PerSample`. It is not changed.
            scores: what to rank the samples by, if not their losses.
            key: the samples' keys, as the batch has them: a list, or a tensor of integers, which
                should be on the CPU, so that nothing waits for the device.
            extras: further values, by name, that some policies need; one per sample.

        Returns:
            A scalar with gradient, in the losses' dtype.

        Raises:
            RuntimeError: if samples were not chosen for this epoch, or most keys come again.
            TypeError, ValueError: if there is not one loss and one key per sample.
        """
        channels = self._planner.channels
        others = checks.check_extras("update", losses, extras, channels, self.policy)
        samples = checks.check_counts("update", losses)
        losses, scores, _ = checks.check_batch("update", losses, scores, None)
        hashes = self._hashes("update", key, len(losses))
        weights = self._weights(hashes, key)
        plain = (losses if scores is None else scores).detach()
        unknown = plain.new_full((), torch.nan).expand(plain.shape)
        values = [unknown if other is None else other for other in others]
        self._record.add(hashes, {SCORE: plain, **dict(zip(channels, values, strict=True))})
        if weights is None:
            return losses.mean()
        dtype = torch.promote_types(losses.dtype, torch.float32)
        scaled = send((weights / len(losses)).to(dtype), losses.device)
        return weighted_mean(losses, scaled, samples)

    def weights(self, key: Keys) -> torch.Tensor:
        """Return the weights of a batch's samples; nothing is recorded.

        For losses that are not a mean over samples, and for optimizers that evaluate a batch twice.

        Args:
            key: the keys of the samples.

        Returns:
            One weight per sample, float64 on the CPU.
        """
        weights = self._weights(self._hashes("weights", key, None), key)
        return torch.ones(len(key), dtype=torch.float64) if weights is None else weights

    # For the user.

    @property
    def epoch(self) -> int:
        """The running epoch, from 0; after ``load_state_dict``, the one to be continued."""
        return self._outline.epoch

    @property
    def num_epochs(self) -> int:
        """How many epochs training takes in total."""
        return self._planner.num_epochs

    @property
    def policy(self) -> Policy:
        """The rule by which samples are left out."""
        return self._planner.policy

    @property
    def seed(self) -> int:
        """The key of the random draws."""
        return self._seed

    @property
    def num_keys(self) -> int:
        """How many keys are known, over all ranks; those of the running epoch count when it ends."""
        return self._outline.known

    @property
    def epoch_length(self) -> int | None:
        """How many samples the running epoch keeps over all ranks, if it reads every known key.

        None in the first epoch, before anything is known.
        """
        return self._outline.planned if self._outline.known else None

    @property
    def repeated(self) -> int:
        """How often a key came again within an epoch, in the epochs that have ended.

        Two keys with the same hash count as one that repeats, so this bounds the hash collisions.
        Of n keys, n² / 2⁶⁵ pairs collide on average (3 in a million runs, if n is ten million).
        """
        return self._repeated

    def scores(self, key: Keys) -> torch.Tensor:
        """Return the scores of some samples at the start of this epoch.

        Args:
            key: the keys of the samples.

        Returns:
            One float32 per key, NaN where there is none; with ``sharded=True``, also where another rank
            keeps it.
        """
        return torch.from_numpy(self._memory.scores_of(self._hashes("scores", key, None)))

    @property
    def savings(self) -> Savings:
        """Sample passes made and saved so far; of the running epoch, only this rank's passes."""
        made = self._record.count
        if not made:
            return Savings(tuple(self._history))
        return Savings((*self._history, self._passes(self._outline.known or made, made, 0, 0)))

    # State.

    def state_dict(self, *, gather: bool = True) -> dict[str, Any]:
        """Return everything needed to continue from here, bit for bit, in plain tensors and numbers.

        After ``set_epoch`` and before the first ``update`` of an epoch, any rank may call it alone.
        Later, call it on every rank: each gets the whole state, so save one of them.

        Args:
            gather: with False, one rank alone may call it at any time; what the others recorded in the
                running epoch is then missing.

        Returns:
            The state; ``torch.load(weights_only=True)`` loads it. With ``sharded=True``, save the states
            of all ranks.
        """
        visits, ranks = self._record.visits(), self._ranks()
        if gather and self._record.count:
            ranks.communicator.meet("state_dict()")
            visits = joined(list(gather_visits(visits, ranks.communicator)))
        return State(
            self._seed,
            self._outline.epoch,
            self._memory.hashes,
            self._memory.rows.columns,
            visits,
            tuple(self._history),
            self._repeated,
            ranks.world_size if ranks.sharded else 1,
            self._outline.check,
        ).to_dict()

    def load_state_dict(
        self,
        state: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        loader_resumes: bool = False,
    ) -> None:
        """Continue from a state. With several ranks it is collective.

        Args:
            state: what ``state_dict`` returned; with ``sharded=True``, a list of those of all ranks,
                whose number may be another one now.
            loader_resumes: whether the loader, too, continues within the epoch, as one with a state
                of its own does. A loader that starts the epoch again meets all of its
                samples; ``keeps`` then leaves out those that were trained on before.

        Raises:
            TypeError, ValueError: if the state is damaged, or the same epoch cannot be continued.
        """
        states = list(state) if isinstance(state, list | tuple) else [state]
        loaded, ranks = State.joined(states), self._ranks()
        shard = owned(loaded.hashes, ranks)
        memory = KeyedMemory(self._planner.tracks)
        memory.restore(loaded.hashes[shard], {n: c[shard] for n, c in loaded.columns.items()})
        self._memory, self._history, self._seed = memory, list(loaded.history), loaded.seed
        self._repeated = loaded.repeated
        visits = loaded.visits
        self._begin(loaded.epoch, None if loader_resumes else visits.hashes)
        if len(visits.hashes) and self._outline.check != loaded.check:
            raise ValueError(
                f"load_state_dict() got a state from the middle of epoch {loaded.epoch}, but what it "
                "leads to here is not what was decided then. Expected the same settings as when it was "
                f"saved (here {self._planner}) and the same versions of infobatch and numpy."
            )
        # What all ranks have recorded is one rank's from here on.
        earlier = visits if ranks.rank == 0 else None
        self._record = Record(loaded.epoch, self._planner.channels, earlier)
        self._continued = len(visits.hashes) > 0

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "A KeyedPruner cannot be pickled or copied, for instance with a data set that is sent to "
            "workers: it belongs to the training process. Give the data set pruner.keeps, which can."
        )

    # The epoch.

    def _ranks(self) -> Ranks:
        return self._place.find(loaders_shard=False)

    def _begin(self, epoch: int, visited: Hashes | None = None) -> None:
        """Decide what an epoch leaves out; ``visited`` keys were trained on before a resume."""
        memory, ranks = self._memory, self._ranks()
        strata, noise = Strata(np.zeros(len(memory), np.uint8), ()), 0.0
        key = {"epoch": epoch, "seed": self._seed}
        if something_known(len(memory), ranks):
            decision = self._planner.decide(memory.rows, ranks, self._history, **key)
            if decision is not None:
                strata, noise, _ = decision
        hashes, labels = memory.hashes, draw(strata, memory.hashes, **key)
        if ranks.sharded:
            hashes, labels = all_decisions(hashes, labels, ranks)
        self._start(Outline.of(epoch, strata, labels, noise), hashes, labels, visited)
        if ranks.world_size > 1:
            check_ranks([epoch, self._outline.check, len(hashes)], ranks)

    def _start(
        self, outline: Outline, hashes: Hashes, labels: LabelArray, visited: Hashes | None = None
    ) -> None:
        self._outline = outline
        self._continued = False
        self._record = Record(outline.epoch, self._planner.channels)
        if visited is not None and len(visited):
            hashes, labels = _without(hashes, labels, visited)
        table = self._board.publish(hashes, labels)
        if len(table.hashes) == len(self._memory):  # one copy of the hashes is enough
            self._memory.hashes = table.hashes

    def _close(self) -> None:
        """Fold the running epoch into the memory. Collective."""
        ranks, memory = self._ranks(), self._memory
        visits = joined(
            [_own(part, ranks) for part in gather_visits(self._taken(), ranks.communicator)]
        )
        passes = len(visits.hashes)
        visits = visits.sorted()
        unscored = int(np.isnan(visits.values[SCORE]).sum())
        counts = np.array([passes, len(visits.hashes), unscored, 0.0, 0.0])
        counts[3] = memory.fold(visits, self._outline.epoch)
        counts[4] = len(memory)
        if ranks.sharded:
            counts = ranks.communicator.sum(counts)
        passes, made, unscored, new, full = counts.astype(int).tolist()
        if not made:
            return
        self._repeated += passes - made
        self._history.append(self._passes(full, made, unscored, new))
        self._warn(passes - made, made, unscored, new)

    def _taken(self) -> Visits:
        """What was recorded, with the record's buffers freed: at an epoch's end, memory counts."""
        visits = self._record.visits()
        self._record = Record(self._outline.epoch, self._planner.channels)
        return visits

    def _passes(self, full: int, made: int, unscored: int, new: int) -> EpochPasses:
        planned = max(self._outline.planned + new, made) if self._outline.known else full
        return EpochPasses(
            self._outline.epoch,
            full,
            planned,
            made,
            unscored,
            self._outline.thresholds,
            self._outline.added_noise,
        )

    def _warn(self, repeated: int, made: int, unscored: int, new: int) -> None:
        if repeated:
            warnings.warn(
                f"{repeated:,} times a key came again within epoch {self._outline.epoch}, which visited {made:,} "
                "different ones. Each sample should have a key of its own and be read once per epoch: "
                "those that share a key share their score, and are kept or left out together.",
                stacklevel=4,
            )
        if new == made and self._outline.known:
            warnings.warn(
                f"None of the {made:,} keys of epoch {self._outline.epoch} is among the {self._outline.known:,} that were "
                "known before, so nothing could be left out. Expected keys that are the same in every "
                "epoch, not counters or paths that change.",
                stacklevel=4,
            )
        if unscored == made:
            warnings.warn(
                f"None of the {made:,} samples of epoch {self._outline.epoch} got a score: every loss (or score) "
                "was NaN or infinite. Their earlier scores stay. Has training diverged?",
                stacklevel=4,
            )

    # A batch.

    def _hashes(self, call: str, key: Keys, count: int | None) -> Hashes:
        try:
            hashes = None if isinstance(key, str | bytes) else hash_keys(key)
        except TypeError:
            hashes = None
        if hashes is None or hashes.ndim != 1:
            raise TypeError(
                f"{call}(key=…) got {key!r:.80}, expected the batch's keys: a list of strings, bytes or "
                "integers, or a tensor of integers, one per sample, as keeps() got them."
            )
        if count is not None and len(hashes) != count:
            raise ValueError(
                f"{call}(key=…) got {len(hashes)} keys, expected one for each of the {count} losses."
            )
        return hashes

    def _weights(self, hashes: Hashes, key: Keys) -> torch.Tensor | None:
        """The weights of a batch by the decisions that chose it; None if all are 1."""
        if self._board.current[DECODED] and not self._warned_of_decoding:
            self._warned_of_decoding = True
            warnings.warn(
                "KeyedPruner.keeps() got samples that had been decoded. It works, but reads and decodes "
                "what it then leaves out: move it before the decoding, for instance "
                "WebDataset(urls).select(pruner.keeps).decode(…).",
                stacklevel=3,
            )
        table = self._board.table
        assert table is not None
        if not len(table.hashes):
            return None
        rows = table.rows(hashes)
        known = rows >= 0
        labels = np.where(known, table.labels[rows], 0)
        foreign = labels == DROPPED
        if not self._continued:  # a loader that resumes need not ask for what it had read before
            foreign |= known & (table.asked[rows] == 0)
        if foreign.any():
            self._raise_foreign(foreign, key)
        if self._outline.weights is None:
            return None
        return torch.from_numpy(self._outline.weights[labels])

    def _raise_foreign(self, foreign: npt.NDArray[np.bool_], key: Keys) -> None:
        example = list(key)[int(foreign.argmax())]
        raise RuntimeError(
            f"{int(foreign.sum())} of a batch's {len(foreign)} samples were not chosen for epoch "
            f"{self._outline.epoch}, such as {example!r}. Expected samples for which keeps() returned True in this "
            "epoch. Either the pipeline does not ask it (add .select(pruner.keeps), or "
            ".filter(pruner.keeps)), or it began to read before set_epoch(), so that the samples were "
            "chosen, and have to be weighted, as those of an earlier epoch: call set_epoch() before the "
            "loader is iterated."
        )


def _check_rule(rule: Policy) -> None:
    """Raise if a rule needs what is not known about streamed data."""
    if rule.needs_labels or rule.refreshes:
        needed = (
            "the class of each sample (labels)"
            if rule.needs_labels
            else "a forward pass, refresh(),"
        )
        why = (
            "before training" if rule.needs_labels else "over the samples that an epoch leaves out"
        )
        raise ValueError(
            f"KeyedPruner got policy={rule!r}, which needs {needed} {why}. Streamed data has no index to get "
            "it by. Use a rule that goes by scores alone, such as 'auto', 'mean' or 'importance'."
        )


def _own(visits: Visits, ranks: Ranks) -> Visits:
    """Those of the keys whose scores this rank keeps."""
    shard = owned(visits.hashes, ranks)
    return Visits(visits.hashes[shard], {name: v[shard] for name, v in visits.values.items()})


def _without(hashes: Hashes, labels: LabelArray, visited: Hashes) -> tuple[Hashes, LabelArray]:
    """The decisions with what was visited before a resume left out, also where it was not known."""
    all_hashes = np.union1d(hashes, visited)
    all_labels = np.zeros(len(all_hashes), np.uint8)
    all_labels[all_hashes.searchsorted(hashes)] = labels
    all_labels[all_hashes.searchsorted(visited)] = DROPPED
    return all_hashes, all_labels
