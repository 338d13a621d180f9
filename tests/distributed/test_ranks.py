"""Several ranks by arguments alone, a thread each: same plans, equal shares, nothing lost."""

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from math import sqrt

import numpy as np
import pytest
import torch

import infobatch
from infobatch.distributed import Communicator, Ranks
from numbered import loss_of


class Exchange:
    """What a process group is to processes, for threads."""

    def __init__(self, world_size):
        self.rows = [None] * world_size
        self.barrier = threading.Barrier(world_size, timeout=60)
        self.bytes_received = 0

    def gather(self, rank, row):
        self.rows[rank] = row.clone()
        self.barrier.wait()
        rows = torch.stack(self.rows)
        self.barrier.wait()
        if rank == 0:
            self.bytes_received += row.nbytes * (len(self.rows) - 1)
        return rows


@dataclasses.dataclass(frozen=True)
class Threads(Communicator):
    """Ranks that are threads of this process."""

    rank: int = 0
    exchange: Exchange | None = None
    connected = True

    def _all_gather(self, row, rows=None):
        return self.exchange.gather(self.rank, row)

    def _device(self, known):
        return torch.device("cpu")

    def _all_to_all(self, rows):
        return self._all_gather(rows)[:, self.rank]

    def maximum(self, values):
        return self._all_gather(values).amax(0)

    def meet(self, call):
        self.exchange.barrier.wait()


def thread(rank, world_size, exchange, *, sharded=False, global_order=False):
    """What one thread knows of the others."""
    threads = Threads(world_size, rank=rank, exchange=exchange)
    return Ranks(rank, world_size, sharded, global_order and world_size > 1, threads)


def on_ranks(world_size, work, *args, **options):
    """Run ``work(pruner)`` on every rank; return the results in order of rank."""
    exchange = Exchange(world_size)

    def one(rank):
        pruner = infobatch.Pruner(*args, **options, rank=rank, world_size=world_size)
        options_of_ranks = {
            "sharded": options.get("sharded", False),
            "global_order": bool(options.get("global_order")),
        }
        ranks = thread(rank, world_size, exchange, **options_of_ranks)
        pruner._course.find_ranks = pruner._ranks = lambda: ranks
        try:
            return work(pruner)
        except BaseException:
            exchange.barrier.abort()
            raise

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(one, range(world_size))), exchange


def train(pruner, epochs=5, batch=4):
    """Train on losses that depend only on the sample and the epoch; return what happened."""
    history = []
    for epoch in range(epochs):
        pruner.set_epoch(epoch)
        length = len(pruner.sampler)
        walk = iter(pruner.sampler)
        visited, means = [], []
        for start in range(0, length, batch):
            index = [next(walk) for _ in range(min(batch, length - start))]
            means.append(pruner.update(loss_of(torch.tensor(index).float(), epoch)).item())
            visited += index
        assert next(walk, None) is None
        history.append((pruner.plan, visited, means))
    pruner.set_epoch(epochs)
    return history, pruner.scores, pruner.savings


OPTIONS = {"delta": 1.0}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_plans_shares_and_scores_do_not_depend_on_the_number_of_ranks(world_size):
    (alone, scores, savings), *_ = on_ranks(1, train, 103, 5, **OPTIONS)[0]
    results, _ = on_ranks(world_size, train, 103, 5, **OPTIONS)
    for epoch, (plan, _, _) in enumerate(alone):
        order = plan.order.tolist()
        visits = []
        for rank, (history, _, _) in enumerate(results):
            assert np.array_equal(history[epoch][0].codes, plan.codes)
            visited = history[epoch][1]
            share = order[rank::world_size]
            assert visited[: len(share)] == share, "rank k of W visits order[k::W]"
            visits.append(visited)
        assert len({len(visited) for visited in visits}) == 1, "equal steps"
        assert 0 <= sum(map(len, visits)) - len(order) < world_size, "fewer than W repeats"
    for _, own_scores, own_savings in results:
        assert torch.equal(own_scores, scores)
        assert own_savings == savings
    assert savings.saved > 0


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("sharded", [False, True])
def test_averaging_over_ranks_gives_the_global_batch_s_weighted_mean(world_size, sharded):
    """As DDP averages, repeats in the last steps included."""
    results, _ = on_ranks(world_size, train, 103, 5, **OPTIONS, sharded=sharded)
    for epoch in range(5):
        averaged = np.mean([history[epoch][2] for history, _, _ in results], axis=0)
        by_step = [[] for _ in averaged]
        for history, _, _ in results:
            plan, visited, _ = history[epoch]
            weights = dict(zip(plan.order.tolist(), plan.weights.tolist(), strict=True))
            seen = set()
            for position, sample in enumerate(visited):
                if sample not in seen:  # a repeat counts for nothing
                    by_step[position // 4].append(weights[sample] * loss_of(sample, epoch))
                seen.add(sample)
        assert averaged == pytest.approx([np.mean(values) for values in by_step], rel=1e-5)


def test_one_exchange_an_epoch_and_its_size():
    """At most 6 MB received per rank and epoch at N = 1,281,167 and 4 ranks: float32, no indices."""
    size = 40_000
    _, exchange = on_ranks(4, lambda pruner: train(pruner, epochs=1, batch=5000), size, 5)
    assert exchange.bytes_received <= 4 * size + 64
    assert exchange.bytes_received * 1_281_167 / size < 6e6


@pytest.mark.parametrize("sharded", [False, True])
def test_ranks_that_skip_break_off_or_see_nan_do_not_stop_the_others(sharded):
    def work(pruner):
        rank = pruner._course.find_ranks().rank
        for epoch in range(3):
            length = len(pruner.sampler)
            for position, index in enumerate(pruner.sampler):
                if rank == 1 and position == length // 2:
                    break
                if rank == 2:
                    pruner.skip(1)
                    continue
                loss = float("nan") if rank == 3 else loss_of(index, epoch)
                pruner.update(torch.tensor([loss]))
            pruner.set_epoch(epoch + 1)
        return pruner.plan, pruner.scores, pruner.savings

    results, _ = on_ranks(4, work, 200, 5, sharded=sharded)
    assert len({savings.unscored for _, _, savings in results}) == 1
    if not sharded:
        assert len({tuple(plan.codes.tolist()) for plan, _, _ in results}) == 1
        assert all(
            torch.equal(scores.nan_to_num(), results[0][1].nan_to_num()) for _, scores, _ in results
        )


def test_index_form_with_samples_of_other_ranks():
    """As under Accelerate, where the loader decides who gets which batch; one rank gets none."""

    def work(pruner):
        rank = pruner._course.find_ranks().rank
        for epoch in range(3):
            pruner.set_epoch(epoch)
            next(iter(pruner.sampler))
            order = pruner.plan.order
            mine = order[order % 2 == rank] if rank < 2 else order[:0]
            for index in mine.split(7):
                if len(index):
                    pruner.update(loss_of(index.float(), epoch), index=index)
        pruner.set_epoch(3)
        return pruner.scores, pruner.savings

    results, _ = on_ranks(3, work, 103, 5, **OPTIONS)
    straight, _ = on_ranks(1, lambda p: train(p, epochs=3), 103, 5, **OPTIONS)
    for scores, savings in results:
        assert torch.equal(scores, straight[0][1])
        assert savings == straight[0][2]


def test_forms_that_differ_between_ranks_are_noticed():
    def work(pruner):
        order = list(pruner.sampler)
        next(iter(pruner.sampler))  # not all of it: the epoch ends with set_epoch
        index = torch.tensor(order[:1]) if pruner._course.find_ranks().rank else None
        pruner.update(torch.ones(1), index=index)
        with pytest.raises(RuntimeError, match=r"Some ranks call update\(\) with index="):
            pruner.set_epoch(1)

    on_ranks(2, work, 40, 5)


def test_the_group_may_come_after_len_and_after_a_state():
    """Asked for before the process group exists, the epoch is still shared once it does."""
    first = infobatch.Pruner(40, 3)
    walk = iter(first.sampler)
    index = [next(walk) for _ in range(8)]
    first.update(torch.tensor(index).float())
    for state in (None, first.state_dict()):
        for sharded in (False, True) if state is None else (False,):
            pruner = infobatch.Pruner(40, 3, sharded=sharded)
            if state is not None:
                pruner.load_state_dict(state)
            assert len(pruner.sampler) == (40 if state is None else 32)
            exchange = Exchange(
                1
            )  # a thread alone stands for rank 1 of 2: nothing is exchanged yet
            exchange.gather = lambda rank, row: torch.stack([row, row])
            ranks = thread(1, 2, exchange, sharded=sharded)
            pruner._course.find_ranks = lambda ranks=ranks: ranks
            assert len(list(pruner.sampler)) == (20 if state is None else 16)


def test_a_checkpoint_in_mid_epoch_leaves_no_trace():
    def work(pruner):
        for epoch in range(3):
            for position, index in enumerate(pruner.sampler):
                pruner.update(torch.tensor([loss_of(index, epoch)]))
                if position == 5:
                    pruner.state_dict()
            share = pruner.plan.order[pruner._course.find_ranks().rank :: 2]
            assert not pruner.scores[share].isnan().any()
            assert pruner.savings.epochs[-1].made == pruner.savings.epochs[-1].planned
            assert len(pruner.sampler) == -(-len(pruner.plan) // 2)
        return pruner.scores, pruner.epoch

    results, _ = on_ranks(2, work, 103, 5, **OPTIONS)
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == 2


def test_different_plans_are_noticed():
    def work(pruner):
        pruner._course.seed += pruner._course.find_ranks().rank
        last = torch.tensor(list(pruner.sampler))
        walk = iter(pruner.sampler)
        assert len([next(walk) for _ in last]) == 20
        with pytest.raises(RuntimeError, match=r"ranks have drawn different plans .* same seed"):
            pruner.update(last.float())

    on_ranks(2, work, 40, 5)


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


def seven_steps(pruner, by_index=False, gather=True):
    """An epoch, and seven samples of the next; return them and the state."""
    train(pruner, epochs=1)
    walk = iter(pruner.sampler)
    index = torch.tensor([next(walk) for _ in range(7)])
    pruner.update(loss_of(index.float(), 1), index=index if by_index else None)
    return index.tolist(), pruner.state_dict(gather=gather), pruner.plan


@pytest.mark.parametrize("ranks_after", [1, 2, 5])
@pytest.mark.parametrize("by_index", [False, True])
def test_a_state_of_four_ranks_goes_on_with_another_number(ranks_after, by_index):
    """Taken in mid-epoch: no sample of the epoch is visited twice, none lost, the same scores."""
    results, _ = on_ranks(4, lambda p: seven_steps(p, by_index), 103, 3, **OPTIONS)
    visited = [sample for index, _, _ in results for sample in index]
    plan = results[0][2]
    assert len(set(visited)) == 28

    def go_on(pruner):
        pruner.load_state_dict(results[2][1])
        assert pruner.plan.order.tolist() == plan.order.tolist()
        rest = list(pruner.sampler)
        walk = iter(pruner.sampler)
        index = torch.tensor([next(walk) for _ in rest])
        pruner.update(loss_of(index.float(), 1), index=index if by_index else None)
        pruner.set_epoch(2)
        return rest, pruner.scores, pruner.savings

    after, _ = on_ranks(ranks_after, go_on, 103, 3, **OPTIONS)
    rest = [sample for share, _, _ in after for sample in share]
    left = [sample for sample in plan.order.tolist() if sample not in visited]
    assert set(rest) == set(left)
    assert len(rest) - len(left) < ranks_after
    straight, _ = on_ranks(1, lambda p: train(p, epochs=2), 103, 3, **OPTIONS)
    for _, scores, savings in after:
        assert torch.equal(scores, straight[0][1])
        assert savings == straight[0][2]


@pytest.mark.parametrize("complete", [False, True])
def test_a_state_taken_on_one_rank_alone(complete):
    """No exchange: in mid-epoch what the others saw is missing, after it nothing is."""

    def work(pruner):
        if complete:
            for index in pruner.sampler:
                pruner.update(torch.tensor([loss_of(index, 0)]))
        else:
            walk = iter(pruner.sampler)
            for _ in range(7):
                pruner.update(torch.tensor([loss_of(next(walk), 0)]))
        rank = pruner._course.find_ranks().rank
        return (pruner.state_dict(gather=False) if rank == 1 else None), pruner.plan

    results, exchange = on_ranks(4, work, 101, 3, **OPTIONS)
    assert complete or exchange.bytes_received == 0
    pruner = infobatch.Pruner(101, 3, **OPTIONS)
    pruner.load_state_dict(results[1][0])
    order = results[0][1].order.tolist()
    share = order if complete else order[1:28:4]  # the epoch's last update exchanges the losses
    assert (~pruner.scores.isnan()).nonzero().flatten().tolist() == sorted(share)
    assert pruner.epoch == (1 if complete else 0)
    assert pruner.savings.made == (101 if complete else 28)
    if not complete:
        assert list(pruner.sampler) == order[28:]


# Sharded scores.


@pytest.mark.parametrize("policy", ["mean", "quantile", "random", "none"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_sharded(policy, world_size):
    """Own samples only, equal steps, unbiased weights, thresholds of all the scores."""
    size = 1001
    results, exchange = on_ranks(world_size, train, size, 5, **OPTIONS, policy=policy, sharded=True)
    whole, _ = on_ranks(1, train, size, 5, **OPTIONS, policy=policy)
    for epoch in range(5):
        plans = [history[epoch][0] for history, _, _ in results]
        visits = [history[epoch][1] for history, _, _ in results]
        for rank, visited in enumerate(visits):
            assert all(sample % world_size == rank for sample in visited)
        assert len({len(visited) for visited in visits}) == 1, "equal steps"
        assert sum(plan.weights.sum().item() for plan in plans) == pytest.approx(size)
        assert len({plan.thresholds for plan in plans}) == 1
        if epoch == 1:  # later epochs have other draws, so other scores
            assert plans[0].thresholds == pytest.approx(whole[0][0][1][0].thresholds, rel=1e-6)
    assert len({savings for _, _, savings in results}) == 1
    savings = results[0][2]
    assert savings.epochs[0].made == size
    if policy != "none":
        assert savings.fraction == pytest.approx(whole[0][2].fraction, abs=0.02)
    assert sum(len(scores) for _, scores, _ in results) == size, "memory falls as 1/W"
    assert exchange.bytes_received < 60_000, "a few scalars an epoch"


def test_sharded_expected_sum_by_z_test():
    """Over 200 epochs with frozen scores, the weighted sum over both shares is the full sum."""
    scores = np.random.default_rng(0).exponential(size=400).astype(np.float32)

    def work(pruner):
        share = scores[pruner._course.find_ranks().rank :: 2]
        sums = []
        for epoch in range(200):
            pruner.set_epoch(epoch)
            pruner._course.current_memory().columns["score"] = share.copy()
            plan = pruner.plan
            sums.append(float((plan.weights.numpy() * scores[plan.order.numpy()] ** 2).sum()))
        return sums

    results, _ = on_ranks(2, work, 400, 200, **OPTIONS, sharded=True)
    sums = np.sum(results, axis=0)
    z = (sums.mean() - (scores.astype(np.float64) ** 2).sum()) / (sums.std() / sqrt(len(sums)))
    assert abs(z) < 4


def test_a_sharded_state_at_an_epoch_s_end_counts_all_ranks_unscored():
    def work(pruner):
        length = len(pruner.sampler)
        walk = iter(pruner.sampler)
        for position in range(length):
            next(walk)
            pruner.update(torch.tensor([float("nan") if position == 1 else 1.0]))
        state = pruner.state_dict()
        pruner.set_epoch(1)
        return state["history"], pruner.state_dict()["history"]

    results, _ = on_ranks(2, work, 40, 3, sharded=True)
    for at_the_end, moved_on in results:
        assert at_the_end == moved_on
        assert at_the_end[0]["unscored"] == 2


def test_sharded_state():
    straight, _ = on_ranks(2, lambda p: train(p, epochs=2), 103, 3, **OPTIONS, sharded=True)
    stopped, _ = on_ranks(2, seven_steps, 103, 3, **OPTIONS, sharded=True)

    def go_on(pruner):
        pruner.load_state_dict(stopped[pruner._course.find_ranks().rank][1])
        for index in pruner.sampler:
            pruner.update(torch.tensor([loss_of(index, 1)]))
        pruner.set_epoch(2)
        return pruner.scores, pruner.savings

    after, _ = on_ranks(2, go_on, 103, 3, **OPTIONS, sharded=True)
    for (scores, savings), (_, expected, expected_savings) in zip(after, straight, strict=True):
        assert torch.allclose(scores, expected)
        assert savings == expected_savings
    with pytest.raises(ValueError, match=r"samples 1, 3, 5, …, but this rank keeps those of all"):
        infobatch.Pruner(103, 3).load_state_dict(stopped[1][1])


def test_sharded_raises_for_what_it_cannot_do():
    class Mine(infobatch.Policy):
        def strata(self, samples):
            raise AssertionError

    with pytest.raises(TypeError, match=r"not known to work on a shard .* shardable = True"):
        infobatch.Pruner(10, 3, policy=Mine(), sharded=True)
    with pytest.raises(ValueError, match=r"3 samples for 4 ranks"):
        len(infobatch.Pruner(3, 3, rank=0, world_size=4, sharded=True).sampler)
    with pytest.raises(RuntimeError, match=r"update\(index=…\) got a pruner with sharded=True"):
        infobatch.Pruner(3, 3, sharded=True).update(torch.ones(1), index=torch.tensor([0]))


def test_quantiles_by_counting_are_the_sorted_ones():
    rng = np.random.default_rng(0)
    for scores in (
        rng.normal(size=999).astype(np.float32),
        np.float32([0.0, -0.0, 1.0, -1.0, 5.0, 5.0, 5.0, 1e-40, -1e38, 3e38]),
    ):
        expected = infobatch.QuantilePrune().strata(infobatch.Samples(scores))
        by_counts = infobatch.Samples(scores, sum=lambda values: values)
        counted = infobatch.QuantilePrune().strata(by_counts)
        assert counted.thresholds == expected.thresholds
        assert np.array_equal(counted.labels, expected.labels)


def deal(pruner, epoch, batch=4, *, walks=True, skip=False):
    """An epoch of a loader that shards the batches itself: this rank's part of each round."""
    ranks = pruner._course.find_ranks()
    order = list(pruner.sampler) if walks else pruner.plan.order.tolist()
    for start in range(0, len(order), batch * ranks.world_size):
        mine = order[start + ranks.rank * batch :][:batch]
        if mine and not skip:
            index = torch.tensor(mine)
            pruner.update(loss_of(index.float(), epoch), index=index)


@pytest.mark.parametrize("only_one_walks", [False, True])
def test_batches_that_the_loader_deals_out(only_one_walks):
    def work(pruner):
        reckoned = []
        for epoch in range(4):
            pruner.set_epoch(epoch)
            deal(pruner, epoch, walks=not only_one_walks or pruner._course.find_ranks().rank == 0)
            reckoned.append(pruner.savings.made)
        pruner.set_epoch(4)
        return pruner.scores, pruner.savings, reckoned

    (scores, savings, _), *_ = on_ranks(1, work, 96, 4, **OPTIONS)[0]
    assert savings.saved > 0
    for own_scores, own_savings, reckoned in on_ranks(3, work, 96, 4, global_order=True, **OPTIONS)[
        0
    ]:
        assert torch.equal(own_scores, scores)
        assert own_savings == savings
        assert reckoned[0] == 96  # of all ranks, before anything was exchanged


def test_a_rank_that_was_dealt_nothing_still_takes_part():
    def work(pruner):
        deal(pruner, 0, skip=pruner._course.find_ranks().rank == 1)
        state = pruner.state_dict()
        pruner.set_epoch(1)
        return state["losses"], pruner.scores, pruner.savings.made

    first, second = on_ranks(2, work, 40, 4, global_order=True, **OPTIONS)[0]
    assert torch.equal(first[0], second[0])
    assert first[1].isfinite().sum() == second[1].isfinite().sum() == first[2] == second[2] == 20
