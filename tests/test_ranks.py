"""Several ranks by arguments alone: the same plan, equal shares, nothing lost, same scores."""

import dataclasses

import numpy as np
import pytest
import torch

import infobatch
from conftest import loss_of
from infobatch import distributed


@dataclasses.dataclass(frozen=True)
class InOneProcess(distributed.Ranks):
    """Ranks whose exchange happens through a shared list instead of a process group."""

    posted: list = dataclasses.field(default_factory=list, compare=False)

    def gather(self, losses):
        return torch.stack([post[self.epoch()] for post in self.posted])

    def epoch(self):
        return len(self.posted[self.rank]) - 1


def train(world_size, size=103, epochs=5, batch=4):
    """Drive all ranks of a job with the same losses; return plans, scores, steps, last rank's savings."""
    pruners = [
        infobatch.Pruner(size, epochs, delta=1.0, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    posted = [[] for _ in range(world_size)]
    for rank, pruner in enumerate(pruners):
        ranks = InOneProcess(rank, world_size, posted=posted)
        pruner._ranks = lambda ranks=ranks: ranks
    history = []
    for epoch in range(epochs):
        plans, visits, means = [], [], []
        for pruner in pruners:
            pruner.set_epoch(epoch)
        for rank, pruner in enumerate(pruners):
            plans.append(pruner.plan)
            share = list(pruner.sampler)
            assert len(share) == len(pruner.sampler)
            walk = iter(pruner.sampler)
            rank_means = []
            for start in range(0, len(share), batch):
                index = [next(walk) for _ in share[start : start + batch]]
                rank_means.append(pruner.update(loss_of(torch.tensor(index).float(), epoch)).item())
            visits.append(share)
            means.append(rank_means)
            posted[rank].append(pruner._ledger._by_position.clone())
        history.append((plans, visits, means))
    for pruner in pruners:
        pruner.set_epoch(epochs)
    return history, pruners


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_plans_shares_and_scores_do_not_depend_on_the_number_of_ranks(world_size):
    alone, (single,) = train(1)
    together, pruners = train(world_size)
    for (plans, visits, means), ((plan,), _, _) in zip(together, alone, strict=True):
        for other in plans:
            assert np.array_equal(other.words, plan.words)
        assert len({len(share) for share in visits}) == 1, "equal steps"
        assert len({len(rank_means) for rank_means in means}) == 1
        order = plan.order.tolist()
        assert [share[: len(order[rank::world_size])] for rank, share in enumerate(visits)] == [
            order[rank::world_size] for rank in range(world_size)
        ], "rank k of W visits order[k::W]"
        repeats = sum(map(len, visits)) - len(order)
        assert 0 <= repeats < world_size
    for pruner in pruners:
        assert torch.equal(pruner.scores, single.scores)
        assert pruner.savings == single.savings
    assert single.savings.saved > 0


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_averaging_over_ranks_gives_the_global_batch_s_weighted_mean(world_size):
    """As DDP averages, repeats in the last step included."""
    together, _ = train(world_size, batch=4)
    alone, _ = train(1, batch=4 * world_size)
    for (_, _, means), (_, _, (global_means,)) in zip(together, alone, strict=True):
        averaged = np.mean(np.array(means), axis=0)
        assert averaged == pytest.approx(np.array(global_means), rel=1e-5)


@pytest.mark.parametrize("world_size", [1, 8, 64, 512])
def test_shares_of_many_ranks(world_size):
    size = 1009
    shares = [
        list(infobatch.Pruner(size, 3, rank=rank, world_size=world_size).sampler)
        for rank in range(world_size)
    ]
    assert len({len(share) for share in shares}) == 1
    flat = [sample for share in shares for sample in share]
    assert set(flat) == set(range(size))
    assert len(flat) - size < world_size


def test_more_ranks_than_samples():
    shares = [list(infobatch.Pruner(3, 2, rank=rank, world_size=8).sampler) for rank in range(8)]
    assert all(len(share) == 1 for share in shares)
    assert {sample for share in shares for sample in share} == {0, 1, 2}


def test_ranks_without_a_process_group_say_what_is_missing():
    pruner = infobatch.Pruner(10, 3, rank=0, world_size=2)
    for index in pruner.sampler:
        pruner.update(torch.tensor([float(index)]))
    with pytest.raises(RuntimeError, match=r"world_size=2 ranks, .* Call init_process_group"):
        pruner.set_epoch(1)


@pytest.mark.parametrize("ranks_after", [1, 2, 5])
def test_a_state_of_four_ranks_goes_on_with_another_number(ranks_after):
    """Taken in mid-epoch: no sample of the epoch is visited twice, none is lost."""
    size = 103
    posted = [[] for _ in range(4)]
    pruners = [infobatch.Pruner(size, 3, rank=rank, world_size=4) for rank in range(4)]
    visited = []
    for rank, pruner in enumerate(pruners):
        ranks = InOneProcess(rank, 4, posted=posted)
        pruner._ranks = lambda ranks=ranks: ranks
        walk = iter(pruner.sampler)
        index = torch.tensor([next(walk) for _ in range(7)])
        pruner.update(loss_of(index.float(), 0))
        visited += index.tolist()
        posted[rank].append(pruner._ledger._by_position.clone())
    state = pruners[2].state_dict()
    rest = []
    for rank in range(ranks_after):
        pruner = infobatch.Pruner(size, 3, rank=rank, world_size=ranks_after)
        pruner.load_state_dict(state)
        rest += list(pruner.sampler)
        assert (~pruner.scores.isnan()).sum() == 28
    assert set(visited) | set(rest) == set(range(size))
    assert not set(visited) & (set(rest) - set(rest[-1:] if ranks_after > 1 else []))
    assert len(visited) + len(rest) - size < ranks_after
