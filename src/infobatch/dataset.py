"""InfoBatch, the three-line form: a pruner that is also the data set that it prunes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import get_worker_info

from infobatch import checks
from infobatch.policies.options import Arguments, Options
from infobatch.pruner import Pruner, split_arguments
from infobatch.wrapper import Wrapper, fetch

if TYPE_CHECKING:
    from typing_extensions import Unpack


class InfoBatch(Wrapper, Pruner):
    """A data set that prunes its own epochs.

    Batches look exactly as before. Pass ``sampler=train_data.sampler`` to the loader and each
    batch's per-sample losses, in order, to ``train_data.update``. Other attributes are those of the
    inner data set. For loaders that reorder, prefetch in their own way, filter or shard batches, use
    :class:`~infobatch.Pruner` with :class:`~infobatch.Indexed`.

    Args:
        dataset: anything with ``__len__`` and ``__getitem__``.
        num_epochs: how many epochs training takes in total.
        prune_ratio: the share of the below-mean samples that an epoch leaves out, 0.5 by default
            (the paper's r).
        delta: pruning stops from epoch ``delta * num_epochs`` on; 0.875 by default, for most rules.
        options: what else may be asked of pruning, by name: ``policy``, ``seed``, ``save`` and others, see
            :class:`infobatch.Options`; and the arguments about ranks of
            :class:`~infobatch.Pruner`.

    Raises:
        TypeError: if the data set has no length or is not read by index.
        ValueError: if another argument is not what is expected.

    >>> data = torch.utils.data.TensorDataset(torch.arange(8.0))
    >>> train_data = InfoBatch(data, num_epochs=2, policy="auto")
    >>> loader = torch.utils.data.DataLoader(train_data, 4, sampler=train_data.sampler)
    >>> for epoch in range(2):
    ...     for (x,) in loader:
    ...         loss = train_data.update(x)  # one loss per sample in, their weighted mean out
    >>> train_data.savings.saved > 0
    True
    """

    def __init__(
        self,
        dataset: Any,
        num_epochs: int,
        prune_ratio: float | None = None,
        delta: float | None = None,
        **options: Unpack[Arguments],
    ) -> None:
        checks.check_dataset("InfoBatch(dataset)", dataset)
        if isinstance(dataset, InfoBatch):
            raise TypeError(
                "InfoBatch(dataset) got an InfoBatch, expected the data set itself: each would prune by "
                "itself, and only one of them would get losses. Pass train_data.dataset."
            )
        place, pruning = split_arguments(options)
        wanted = Options(prune_ratio=prune_ratio, delta=delta, **pruning)
        self.dataset = dataset
        self._start(len(dataset), num_epochs, wanted.of_dataset(dataset), place)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return fetch(self.dataset, indices)

    def __getattr__(self, name: str) -> Any:
        if name == "_course" and "dataset" in vars(self):
            # Not an AttributeError: Python would take that for "ask the inner data set".
            raise RuntimeError(
                "This InfoBatch is a loader worker's copy, which only reads samples. Use update(), "
                "scores and so on in the process that trains."
            )
        return super().__getattr__(name)

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
        # A loader's worker only reads samples, so it does not get the scores. (A process that will
        # train receives its data set before any training.)
        if get_spawning_popen() is not None and not self._can_train_elsewhere():
            return {"attributes": self._subclass_attributes()}
        return super().__getstate__()

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        if "start" in state:
            super().__setstate__(state)
        else:
            vars(self).update(state["attributes"])

    def _can_train_elsewhere(self) -> bool:
        """Whether another process could train with it: before any update, without a process group."""
        is_whole = "_course" in vars(self)
        return is_whole and self._course.is_fresh and self._place.has_no_group

    @property
    def pruner(self) -> InfoBatch:
        """The pruner: this object itself."""
        return self

    @property
    def weights(self) -> torch.Tensor:
        """Each sample's weight in the running epoch; 0 if left out or in another rank's shard.

        The epoch's plan is drawn now if it has not been drawn yet; with ``sharded=True`` that is done
        together: read them on all ranks, or on none.
        """
        plan = self.plan
        weights = torch.zeros(len(self.dataset), dtype=torch.float32)
        return weights.scatter_(0, plan.order, plan.weights.float())

    @property
    def keep_ratio(self) -> float:
        """1 − ``prune_ratio``, for rules that have one, unless a budget is set."""
        return self._course.planner.keep_ratio

    def get_saved_ratio(self) -> float:
        """Return the share of the sample passes that was saved so far.

        Returns:
            ``savings.fraction``, under the name that existing scripts use.
        """
        return self.savings.fraction

    def get_pruned_count(self) -> int:
        """Return the number of sample passes that were saved so far.

        Returns:
            ``savings.saved``, under the name that existing scripts use.
        """
        return self.savings.saved

    def state_dict(self, *, gather: bool = True) -> dict[str, Any]:
        """Return everything needed to continue from here, as :meth:`Pruner.state_dict` does.

        Args:
            gather: whether to fetch what the other ranks recorded in the running epoch.

        Returns:
            The state; empty in a loader's worker, whose copy only reads samples.
        """
        if get_worker_info() is not None:  # a stateful loader also asks its workers' copies
            return {}
        return super().state_dict(gather=gather)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, as :meth:`Pruner.load_state_dict` does.

        Args:
            state: what :meth:`state_dict` returned; ignored in a loader's worker.

        Raises:
            TypeError, ValueError: if it is not such a state, or not one of this number of samples.
        """
        if get_worker_info() is None:
            super().load_state_dict(state)
