"""InfoBatch: the three-line form. A thin data set in front of a pruner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from infobatch.batch import fetch
from infobatch.ledger import Progress
from infobatch.per_sample import PerSample
from infobatch.plan import Plan
from infobatch.policies import Policy, resolve_policy
from infobatch.policies.ratio import check_ratio
from infobatch.pruner import Pruner
from infobatch.sampler import PlanBatchSampler, PlanSampler
from infobatch.savings import Savings

_DEFAULT_RATIO = 0.5


class InfoBatch(Dataset[Any]):
    """A data set that prunes its own epochs.

    Batches look exactly as they did. Pass ``sampler=train_data.sampler`` to the loader and each
    batch's per-sample losses, in order, to ``train_data.update``. Attributes of the inner data set
    stay reachable. For loaders that reorder, prefetch on their own, filter or shard batches use
    :class:`~infobatch.Pruner` with :class:`~infobatch.Indexed`.

    Args:
        dataset: anything with ``__len__`` and ``__getitem__``.
        num_epochs: how many epochs training takes in all.
        prune_ratio: the share of the below-mean samples that an epoch leaves out (the paper's r).
        delta: pruning stops from epoch ``delta * num_epochs`` on.
        policy: a name or an object of :mod:`infobatch.policies`, instead of the mean rule.
        seed: of the draws; the global random generators are never touched.
        rank, world_size, process_group: this process's place in a distributed job; by default
            torch.distributed is asked, if it is initialised when the first epoch begins.
        sharded: each rank keeps the scores of a fixed share of the samples only.
    """

    def __init__(
        self,
        dataset: Any,
        num_epochs: int,
        prune_ratio: float = _DEFAULT_RATIO,
        delta: float = 0.875,
        *,
        policy: Policy | str | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        process_group: dist.ProcessGroup | None = None,
        sharded: bool = False,
    ) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise TypeError(
                f"InfoBatch(dataset) got {type(dataset).__name__}, expected a data set that is read "
                "by index: pruning chooses which samples to read. Load the stream into a list or a "
                "memory-mapped data set first."
            )
        if not hasattr(dataset, "__len__"):
            raise TypeError(
                f"InfoBatch(dataset) got {type(dataset).__name__}, which has no length. Expected a "
                "data set with __len__: a score is kept for each sample. Give it one, or wrap it in "
                "torch.utils.data.Subset(dataset, range(n))."
            )
        check_ratio("InfoBatch(prune_ratio=…)", prune_ratio)
        ratio = prune_ratio if policy is None or prune_ratio != _DEFAULT_RATIO else None
        self.dataset = dataset
        self.pruner = Pruner(
            len(dataset),
            num_epochs,
            policy=resolve_policy(policy, ratio=ratio),
            delta=delta,
            seed=seed,
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
        # Only called for what is not found here. Special methods are the language's, not the inner
        # data set's to answer, and "dataset" is missing while pickle or copy builds the object.
        if name == "pruner" and "dataset" in self.__dict__:
            # Not an AttributeError: Python would take that for "ask the inner data set".
            raise RuntimeError(
                "This InfoBatch is a loader worker's copy, which only reads samples. Use update(), "
                "scores and the like in the process that trains."
            )
        if name.startswith("__") or "dataset" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.dataset, name)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        # To a loader's worker, which only reads samples, the scores do not go along. (To a process
        # that will train, a data set goes before any training.)
        pruner = state.get("pruner")
        is_for_training = pruner is not None and pruner.is_fresh and pruner.can_be_sent
        if get_spawning_popen() is not None and not is_for_training:
            state.pop("pruner", None)
        return state

    @property
    def sampler(self) -> PlanSampler:
        """See :attr:`Pruner.sampler`."""
        return self.pruner.sampler

    def batch_sampler(self, batch_size: int, *, drop_last: bool = False) -> PlanBatchSampler:
        """See :meth:`Pruner.batch_sampler`."""
        return self.pruner.batch_sampler(batch_size, drop_last=drop_last)

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
    def scores(self) -> torch.Tensor:
        """See :attr:`Pruner.scores`."""
        return self.pruner.scores

    @property
    def savings(self) -> Savings:
        """See :attr:`Pruner.savings`."""
        return self.pruner.savings

    def update(
        self,
        losses: torch.Tensor | PerSample,
        *,
        scores: torch.Tensor | None = None,
        index: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See :meth:`Pruner.update`."""
        return self.pruner.update(losses, scores=scores, index=index)

    def reweight(
        self, losses: torch.Tensor | PerSample, *, index: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See :meth:`Pruner.reweight`."""
        return self.pruner.reweight(losses, index=index)

    def skip(self, count: int | None = None, *, index: torch.Tensor | None = None) -> None:
        """See :meth:`Pruner.skip`."""
        self.pruner.skip(count, index=index)

    def set_epoch(self, epoch: int) -> None:
        """See :meth:`Pruner.set_epoch`."""
        self.pruner.set_epoch(epoch)

    def get_pruned_count(self) -> int:
        """See :meth:`Pruner.get_pruned_count`."""
        return self.pruner.get_pruned_count()

    def state_dict(self, *, gather: bool = True) -> dict[str, Any]:
        """See :meth:`Pruner.state_dict`."""
        if (
            get_worker_info() is not None
        ):  # a stateful loader asks its workers' copies at each batch
            return {}
        return self.pruner.state_dict(gather=gather)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :meth:`Pruner.load_state_dict`."""
        if get_worker_info() is None:
            self.pruner.load_state_dict(state)
