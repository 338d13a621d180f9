"""Parts of the Trainer's loader: the index in each batch, and the length of each epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from itertools import chain
from typing import Any

from torch.utils.data import Sampler

from infobatch import Pruner, with_index

INDEX = "infobatch_index"


class CarryIndex:
    """A collate function that adds the samples' indices to the batch, as one more entry."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = with_index(collate)

    def __call__(self, pairs: list[tuple[int, Any]]) -> MutableMapping[str, Any]:
        """Collate the samples of ``(index, sample)`` pairs."""
        index, batch = self._collate(pairs)
        if not isinstance(batch, MutableMapping):
            raise TypeError(
                f"InfoBatchTrainer got a batch of type {type(batch).__name__} from the data collator, "
                "expected a dictionary: the samples' indices travel in it. Return a dictionary of "
                "the model's arguments."
            )
        batch[INDEX] = index
        return batch


class EpochSampler(Sampler[int]):
    """The current pruner's epochs, as the Trainer iterates over them.

    After a resume in the middle of an epoch, the pruner continues with the samples that are left,
    but the Trainer skips batches at the start. ``skipped`` is the number of samples in these, which
    are issued once more. With the batch size of the interrupted run, they are all that were trained
    on, and Accelerate pads the last round of batches with the same samples as without the
    interruption.
    """

    def __init__(self, pruner: Callable[[], Pruner]) -> None:
        self._pruner = pruner
        self.of_all_data = False  # use the length of an epoch over all data
        self.skipped = 0

    @property
    def visited(self) -> int:
        """The samples of the epoch that were trained on before it was resumed."""
        pruner = self._pruner()
        return len(pruner.plan) - len(pruner.sampler)

    def __iter__(self) -> Iterator[int]:
        pruner = self._pruner()
        if not self.skipped:
            return iter(pruner.sampler)
        return chain(pruner.plan.order[: self.skipped].tolist(), iter(pruner.sampler))

    def __len__(self) -> int:
        pruner = self._pruner()
        if self.of_all_data:
            return pruner.num_samples
        return self.skipped + len(pruner.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch; a second call with the same number changes nothing."""
        self._pruner().set_epoch(epoch)
