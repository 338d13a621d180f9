"""The Trainer's settings for pruning."""

from __future__ import annotations

from dataclasses import dataclass

from infobatch import Options, Pruner


@dataclass(frozen=True, kw_only=True, repr=False)
class InfoBatchConfig(Options):
    """How the Trainer's epochs are pruned: the options of :class:`infobatch.InfoBatch`.

    See :class:`infobatch.Options` for all of them.

    Raises:
        TypeError, ValueError: at settings that are wrong for any data; what depends on the data is
            checked when training begins.

    >>> InfoBatchConfig(save=0.3, seed=1)
    InfoBatchConfig(seed=1, save=0.3)
    """

    def pruner_for(self, num_samples: int, num_epochs: int) -> Pruner:
        """Create a pruner for loaders whose batches Accelerate shards among the ranks.

        Args:
            num_samples: the number of samples in the training data.
            num_epochs: how many epochs training takes in total.

        Returns:
            A new pruner with these options.
        """
        return Pruner(num_samples, num_epochs, **self.arguments(), global_order=True)
