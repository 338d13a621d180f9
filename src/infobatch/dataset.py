"""InfoBatch, the three-line form: a thin data set that wraps a pruner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.context import get_spawning_popen
from os import PathLike
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset, get_worker_info

from infobatch.batch import fetch
from infobatch.checks import Rows, check_dataset
from infobatch.epoch.progress import Progress
from infobatch.epoch.sampler import PlanBatchSampler, PlanSampler, Shrink
from infobatch.memory.tracks import Track
from infobatch.per_sample import PerSample
from infobatch.plan import Plan
from infobatch.policies.base import Policy
from infobatch.policies.limits import costs_of, labels_of
from infobatch.policies.resolve import resolve_policy
from infobatch.pruner import Pruner
from infobatch.savings import Savings


class InfoBatch(Dataset[Any]):
    """A data set that prunes its own epochs.

    Batches look exactly as before. Pass ``sampler=train_data.sampler`` to the loader and each
    batch's per-sample losses, in order, to ``train_data.update``. Attributes of the inner data set
    remain accessible. For loaders that reorder, prefetch in their own way, filter or shard batches,
    use :class:`~infobatch.Pruner` with :class:`~infobatch.Indexed`.

    Args:
        dataset: anything with ``__len__`` and ``__getitem__``.
        num_epochs: how many epochs training takes in total.
        prune_ratio: the share of the below-mean samples that an epoch leaves out, 0.5 by default
            (the paper's r).
        delta: pruning stops from epoch ``delta * num_epochs`` on; 0.875 by default, for most rules.
        policy: a name or an object of :mod:`infobatch.policies`, instead of the mean rule.
        seed: the key of the draws; the global random generators are never touched.
        save: instead of a ratio, the share of the run's sample passes to save, counting the whole
            first and last epochs too. Each epoch adapts to what is still to be saved.
        cost: the cost of a pass of each sample (tokens, pixels), as an array or a function of a
            sample, which is called once for each. The budget and the savings then count cost, and
            importance rules prefer cheap samples.
        warmup: how many epochs at the start are whole.
        max_noise: prune less in an epoch that would add more than this share to the gradient noise;
            0.1 is like dividing the batch size by 1.1.
        protect_classes: the minimum share of each class that every epoch keeps.
        labels: the class of each sample, if a rule or ``protect_classes`` needs it; by default
            ``dataset.targets``.
        initial_scores: the scores of an earlier run, so that even the first epoch is pruned: a
            tensor or array with one score per sample, or a file written by :meth:`export_scores`.
        tracks: what to remember about each sample besides what the policy needs, for
            :meth:`export_scores`; see :mod:`infobatch.tracks`.
        rank, world_size, process_group: which rank of a distributed job this process is; by default
            those of torch.distributed, if it is initialised when the first epoch begins.
        sharded: each rank keeps only the scores of a fixed shard of the samples.
    """

    def __init__(
        self,
        dataset: Any,
        num_epochs: int,
        prune_ratio: float | None = None,
        delta: float | None = None,
        *,
        policy: Policy | str | None = None,
        seed: int = 0,
        save: float | None = None,
        cost: Rows | Callable[[Any], float] | None = None,
        warmup: int = 0,
        max_noise: float | None = None,
        protect_classes: float | None = None,
        labels: Rows | None = None,
        initial_scores: Rows | str | PathLike[str] | None = None,
        tracks: Iterable[Track] = (),
        rank: int | None = None,
        world_size: int | None = None,
        process_group: dist.ProcessGroup | None = None,
        sharded: bool = False,
    ) -> None:
        check_dataset(dataset)
        self.dataset = dataset
        rule = resolve_policy(policy, ratio=prune_ratio)
        self.pruner = Pruner(
            len(dataset),
            num_epochs,
            policy=rule,
            delta=delta,
            seed=seed,
            save=save,
            cost=costs_of(dataset, cost) if callable(cost) else cost,
            warmup=warmup,
            max_noise=max_noise,
            protect_classes=protect_classes,
            labels=labels_of(dataset, rule, protect_classes) if labels is None else labels,
            initial_scores=initial_scores,
            tracks=tracks,
            rank=rank,
            world_size=world_size,
            process_group=process_group,
            sharded=sharded,
        )

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return fetch(self.dataset, indices)

    def __getattr__(self, name: str) -> Any:
        # Only called for missing attributes. Special methods are never the inner data set's, and
        # "dataset" is missing while pickle or copy builds the object.
        if name == "pruner" and "dataset" in self.__dict__:
            # Not an AttributeError: Python would take that for "ask the inner data set".
            raise RuntimeError(
                "This InfoBatch is a loader worker's copy, which only reads samples. Use update(), "
                "scores and so on in the process that trains."
            )
        if hasattr(type(self), name):  # a property that itself raised an AttributeError
            return object.__getattribute__(self, name)
        if name.startswith("__") or "dataset" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        try:
            return getattr(self.dataset, name)
        except AttributeError:
            inner = type(self.dataset).__name__
            raise AttributeError(
                f"InfoBatch has no attribute {name!r}, and neither has the {inner} that it wraps."
            ) from None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in ("prune", "no_prune"):
            if hasattr(cls, name):  # also from another base class
                raise TypeError(
                    f"{cls.__name__} overrides {name}(), which InfoBatch does not call. To prune by "
                    "your own rule, pass InfoBatch(…, policy=…) an object of a class that derives "
                    "from infobatch.Policy; see docs/policies.md."
                )

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        # A loader's worker only reads samples, so it does not get the scores. (A process that will
        # train receives its data set before any training.)
        if get_spawning_popen() is not None and not _can_train(state.get("pruner")):
            state.pop("pruner", None)
        return state

    @property
    def sampler(self) -> PlanSampler:
        """See :attr:`Pruner.sampler`."""
        return self.pruner.sampler

    def batch_sampler(
        self, batch_size: int, *, drop_last: bool = False, shrink: Shrink = "epoch", even: bool = False
    ) -> PlanBatchSampler:  # fmt: skip
        """See :meth:`Pruner.batch_sampler`."""
        return self.pruner.batch_sampler(batch_size, drop_last=drop_last, shrink=shrink, even=even)

    @property
    def epoch(self) -> int:
        """See :attr:`Pruner.epoch`."""
        return self.pruner.epoch

    @property
    def plan(self) -> Plan:
        """See :attr:`Pruner.plan`."""
        return self.pruner.plan

    @property
    def progress(self) -> Progress:
        """See :attr:`Pruner.progress`."""
        return self.pruner.progress

    @property
    def last_loss(self) -> torch.Tensor:
        """See :attr:`Pruner.last_loss`."""
        return self.pruner.last_loss

    def virtual_step(self, steps_per_epoch: int) -> int:
        """See :meth:`Pruner.virtual_step`."""
        return self.pruner.virtual_step(steps_per_epoch)

    @property
    def scores(self) -> torch.Tensor:
        """See :attr:`Pruner.scores`."""
        return self.pruner.scores

    @scores.setter
    def scores(self, scores: object) -> None:
        raise AttributeError(
            "InfoBatch.scores cannot be set: it is a copy of what training has recorded. Pass "
            "InfoBatch(…, initial_scores=…) to start from known scores, or update(losses, scores=…) "
            "to rank by something other than the loss."
        )

    @property
    def weights(self) -> torch.Tensor:
        """Each sample's weight in the running epoch; 0 if left out or in another rank's shard."""
        plan = self.pruner.plan
        weights = torch.zeros(len(self.dataset), dtype=torch.float32)
        return weights.scatter_(0, plan.order, plan.weights.float())

    @property
    def num_epochs(self) -> int:
        """How many epochs training takes in total."""
        return self.pruner.num_epochs

    @property
    def delta(self) -> float:
        """The share of the epochs that are pruned."""
        return self.pruner.delta

    @property
    def keep_ratio(self) -> float:
        """1 − ``prune_ratio``, for rules that have one, unless a budget is set."""
        return self.pruner._course.planner.keep_ratio

    @property
    def savings(self) -> Savings:
        """See :attr:`Pruner.savings`."""
        return self.pruner.savings

    def update(
        self,
        losses: torch.Tensor | PerSample,
        scores: torch.Tensor | None = None,
        *,
        index: torch.Tensor | None = None,
        extras: Mapping[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """See :meth:`Pruner.update`."""
        return self.pruner.update(losses, scores=scores, index=index, extras=extras)

    def reweight(
        self, losses: torch.Tensor | PerSample, *, index: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See :meth:`Pruner.reweight`."""
        return self.pruner.reweight(losses, index=index)

    def skip(self, count: int | None = None, *, index: torch.Tensor | None = None) -> None:
        """See :meth:`Pruner.skip`."""
        self.pruner.skip(count, index=index)

    @property
    def left_out(self) -> torch.Tensor:
        """See :attr:`Pruner.left_out`."""
        return self.pruner.left_out

    def refresh(
        self,
        losses: torch.Tensor | PerSample,
        index: torch.Tensor,
        *,
        scores: torch.Tensor | None = None,
        extras: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """See :meth:`Pruner.refresh`."""
        self.pruner.refresh(losses, index, scores=scores, extras=extras)

    def set_epoch(self, epoch: int) -> None:
        """See :meth:`Pruner.set_epoch`."""
        self.pruner.set_epoch(epoch)

    def get_saved_ratio(self) -> float:
        """The share of full-data training's sample passes saved so far."""
        return self.pruner.savings.fraction

    def get_pruned_count(self) -> int:
        """Sample passes saved so far, under the name that existing scripts use."""
        return self.pruner.savings.saved

    def export_scores(self, path: str | PathLike[str]) -> None:
        """See :meth:`Pruner.export_scores`."""
        self.pruner.export_scores(path)

    def state_dict(self, *, gather: bool = True) -> dict[str, Any]:
        """See :meth:`Pruner.state_dict`."""
        if get_worker_info() is not None:  # a stateful loader also asks its workers' copies
            return {}
        return self.pruner.state_dict(gather=gather)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :meth:`Pruner.load_state_dict`."""
        if get_worker_info() is None:
            self.pruner.load_state_dict(state)


def _can_train(pruner: Pruner | None) -> bool:
    """Whether another process could train with it: before any update, without a process group."""
    return pruner is not None and pruner._course.is_fresh and pruner._place.process_group is None
