"""The loader for trainers that ask for a batch size, or for a reset."""

import pytest
import torch
from torch.utils.data import DataLoader

import infobatch
from numbered import Numbered, loss_of, run_epoch


@pytest.mark.parametrize(
    "options", [{}, {"shrink": "batch"}, {"even": True}, {"drop_last": True}], ids=str
)
def test_it_is_the_loader_of_the_batch_sampler(options):
    ours, plain = (infobatch.InfoBatch(Numbered(50), 3, delta=1.0) for _ in range(2))
    loader = infobatch.PrunedLoader(ours, 8, **options)
    expected = DataLoader(plain, batch_sampler=plain.batch_sampler(8, **options))
    assert loader.batch_size == 8
    for epoch in range(3):
        assert len(loader) == len(expected)
        assert run_epoch(ours, loader, epoch) == run_epoch(plain, expected, epoch)
    assert ours.savings == plain.savings
    assert ours.savings.saved > 0


class Scaled(Numbered):
    factor = 1.0

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return self.factor * x, y


def test_after_a_reset_persistent_workers_see_the_changed_data():
    train_data = infobatch.InfoBatch(Scaled(40), 4, policy="none")
    loader = infobatch.PrunedLoader(train_data, 8, num_workers=1, persistent_workers=True)

    def largest(epoch):
        seen = []
        for x, _ in loader:
            train_data.update(loss_of(x, epoch))
            seen.append(x.max())
        return torch.stack(seen).max().item()

    assert largest(0) == 39
    train_data.factor = 2.0
    assert largest(1) == 39, "its workers have a copy of the data"
    loader.reset()
    assert largest(2) == 78
    assert train_data.epoch == 2


def test_something_else_than_pruned_data():
    with pytest.raises(
        TypeError,
        match=r"^PrunedLoader\(train_data\) got list, expected an InfoBatch\. For a Pruner, use "
        r"DataLoader\(Indexed\(data\), batch_sampler=pruner\.batch_sampler\(…\), "
        r"collate_fn=with_index\(…\)\)\.$",
    ):
        infobatch.PrunedLoader([1, 2], 8)
