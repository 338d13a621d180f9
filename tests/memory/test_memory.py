"""Columns that a policy declares: through a pruner, both forms, NaN losses, ranks, resuming."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

import infobatch
from infobatch.memory.memory import Memory
from infobatch.tracks import Ema, LastVisit, Visits, Welford, Window
from numbered import loss_of
from rank_threads import on_ranks

SIZE, EPOCHS = 61, 6
TRACKS = (Ema(0.75), Welford(), Visits(), LastVisit(), Window(3))
COLUMNS = {"score", "ema", "count", "mean", "variance", "visits", "last_visit", "window"}


@dataclass(frozen=True)
class Watching(infobatch.Policy):
    """The mean rule, and a record of what it was shown."""

    seen: list = field(default_factory=list, compare=False)
    tracks = TRACKS
    shardable = True

    def strata(self, samples):
        columns = {name: samples[name].copy() for name in COLUMNS}
        self.seen.append((samples.epoch, columns, samples.age.copy()))
        return infobatch.MeanPrune().strata(samples)


def loss(sample, epoch):
    """A loss that is not a number in some visits."""
    return math.nan if (sample + epoch) % 7 == 3 else loss_of(sample, epoch)


def train(pruner, *, until=EPOCHS, by_index=False, stop=None, batch=5):
    """Train; return each epoch's visited samples. With ``stop``, leave after as many batches."""
    visits = []
    for epoch in range(pruner.epoch, until):
        visited = []
        for index in pruner.batch_sampler(batch):
            losses = torch.tensor([loss(sample, epoch) for sample in index])
            pruner.update(losses, index=torch.tensor(index) if by_index else None)
            visited += index
            if stop is not None and (stop := stop - 1) == 0:
                return visits
        visits.append(visited)
    return visits


def slow_memory(visits, size=SIZE):
    """The columns after some epochs, sample by sample."""
    rows = []
    for sample in range(size):
        scores, epochs, ema = [], [], math.nan
        for epoch, visited in enumerate(visits):
            if sample in visited and not math.isnan(loss(sample, epoch)):
                score = loss(sample, epoch)
                scores.append(score)
                epochs.append(epoch)
                ema = score if math.isnan(ema) else 0.75 * ema + 0.25 * score
        last = ([math.nan] * 3 + scores)[-3:]
        mean, variance = (np.mean(scores), np.var(scores)) if scores else (0, 0)
        rows.append(
            {
                "score": last[-1],
                "ema": ema,
                "count": len(scores),
                "mean": mean,
                "variance": variance,
                "visits": len(scores),
                "last_visit": epochs[-1] if epochs else -1,
                "window": last,
            }
        )
    return {name: [row[name] for row in rows] for name in COLUMNS}


def same(columns, expected):
    for name in COLUMNS:
        assert np.allclose(columns[name], expected[name], rtol=1e-4, atol=1e-5, equal_nan=True), (
            name
        )


def equal(one, other):
    """Bit for bit."""
    return all(np.asarray(one[name]).tobytes() == np.asarray(other[name]).tobytes() for name in one)


@pytest.mark.parametrize("by_index", [False, True])
def test_what_a_policy_is_shown(by_index):
    pruner = infobatch.Pruner(SIZE, EPOCHS, policy=Watching(), delta=1.0)
    visits = train(pruner, by_index=by_index)
    shown = pruner.policy.seen
    assert [epoch for epoch, *_ in shown] == list(range(1, EPOCHS)), "the first epoch is whole"
    for epoch, columns, age in shown:
        expected = slow_memory(visits[:epoch])
        same(columns, expected)
        assert age.tolist() == [epoch - last for last in expected["last_visit"]]
        unscored = [s for s in range(SIZE) if math.isnan(expected["score"][s])]
        assert set(unscored) <= set(visits[epoch]), "a sample without a score is visited"
    assert min(map(len, visits[1:])) < SIZE, "it was pruned"


def test_whatever_a_policy_says_of_samples_without_a_score_they_are_kept():
    class Careless(infobatch.Policy):
        def strata(self, samples):
            return infobatch.Strata(np.ones(len(samples), np.uint8), (0.5,))

    known = np.arange(SIZE, dtype=np.float32)
    known[::4] = np.nan
    for seed in range(5):
        pruner = infobatch.Pruner(SIZE, EPOCHS, policy=Careless(), initial_scores=known, seed=seed)
        weights = dict(zip(pruner.plan.order.tolist(), pruner.plan.weights.tolist(), strict=True))
        assert all(weights.get(sample) == 1.0 for sample in range(0, SIZE, 4))
        assert len(weights) < SIZE


def test_columns_cannot_be_written():
    class Writing(infobatch.Policy):
        tracks = (Visits(),)

        def strata(self, samples):
            for column in (samples.scores, samples["visits"], samples["score"]):
                with pytest.raises(ValueError, match="read-only"):
                    column[0] = 1
            return infobatch.NoPrune().strata(samples)

    pruner = infobatch.Pruner(SIZE, EPOCHS, policy=Writing())
    train(pruner, until=2)
    pruner.set_epoch(2)
    assert pruner._course.current_memory().columns["visits"].flags.writeable


@pytest.mark.parametrize("by_index", [False, True])
@pytest.mark.parametrize("stop", [3, 13, 20, 30])
def test_resumed_in_mid_epoch_bit_for_bit(by_index, stop):
    straight = infobatch.Pruner(SIZE, EPOCHS, policy=Watching(), delta=1.0)
    train(straight, by_index=by_index)
    first = infobatch.Pruner(SIZE, EPOCHS, policy=Watching(), delta=1.0)
    train(first, by_index=by_index, stop=stop)
    second = infobatch.Pruner(SIZE, EPOCHS, policy=Watching(), delta=1.0)
    second.load_state_dict(first.state_dict())
    train(second, by_index=by_index)
    assert equal(straight.state_dict()["columns"], second.state_dict()["columns"])
    for batch, expected in zip(
        reversed(straight.policy.seen), reversed(second.policy.seen), strict=False
    ):
        assert batch[0] == expected[0]
        assert equal(batch[1], expected[1])


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_remember_the_same_as_one_process(world_size):
    def work(pruner, rank):
        train(pruner)
        return pruner.state_dict()["columns"]

    options = {"policy": Watching(), "delta": 1.0}
    alone = on_ranks(1, work, SIZE, EPOCHS, **options)[0]
    for columns in on_ranks(world_size, work, SIZE, EPOCHS, **options):
        assert equal(columns, alone)


def test_sharded_columns():
    """Each rank remembers its own samples."""

    def work(pruner, rank):
        visits = train(pruner)
        return visits, pruner.state_dict()["columns"]

    results = on_ranks(2, work, SIZE, EPOCHS, policy=Watching(), delta=1.0, sharded=True)
    for rank, (visits, columns) in enumerate(results):
        assert all(sample % 2 == rank for visited in visits for sample in visited)
        expected = slow_memory([set(visited) for visited in visits])
        same(columns, {name: expected[name][rank::2] for name in COLUMNS})


def test_tracks_of_the_user_beside_the_policy_s():
    """The same track twice is one; what only the user asked for is remembered, too."""

    class Counting(infobatch.Policy):
        tracks = (Visits(),)

        def strata(self, samples):
            assert samples["last_visit"].max() == samples.epoch - 1
            return infobatch.NoPrune().strata(samples)

    train_data = infobatch.Pruner(SIZE, EPOCHS, policy=Counting(), tracks=[Visits(), LastVisit()])
    train(train_data, until=3)
    assert set(train_data.state_dict()["columns"]) == {"score", "visits", "last_visit"}


def test_only_what_is_declared_is_remembered():
    pruner = infobatch.Pruner(SIZE, EPOCHS)
    train(pruner, until=2)
    assert set(pruner.state_dict()["columns"]) == {"score"}


def test_two_tracks_with_one_name():
    with pytest.raises(
        ValueError,
        match=r"Ema\(smoothing=0\.9\) has a column 'ema', which another track has, too\. Expected "
        r"each name once: rename the column, or leave one of them out\.",
    ):
        Memory(np.zeros(3, np.float32), (Ema(0.5), Ema(0.9)))
    pruner = infobatch.Pruner(
        SIZE, EPOCHS, policy=infobatch.MeanPrune(smoothing=0.7), tracks=[Ema(0.9)]
    )
    with pytest.raises(ValueError, match=r"has a column 'ema'"):
        len(pruner.sampler)


def test_a_column_that_nothing_remembers():
    samples = infobatch.Samples(np.zeros(3, np.float32), columns={"score": np.zeros(3)})
    with pytest.raises(
        KeyError,
        match=r"samples\['visits'\] is not remembered\. Known columns: \['score'\]\. Name the track "
        r"that has it in the policy's tracks, for instance tracks = \(Visits\(\),\)",
    ):
        samples["visits"]
    with pytest.raises(KeyError, match=r"samples\['last_visit'\] is not remembered"):
        _ = infobatch.Samples(np.zeros(3, np.float32)).age


# Checkpoints of other settings.


def state_with(*tracks):
    pruner = infobatch.Pruner(SIZE, EPOCHS, tracks=tracks)
    train(pruner, until=2)
    return pruner.state_dict()


def test_a_column_that_is_new_to_a_checkpoint_begins_as_it_is():
    pruner = infobatch.Pruner(SIZE, EPOCHS, tracks=[Visits(), LastVisit()])
    pruner.load_state_dict(state_with(LastVisit()))
    assert pruner._course.current_memory().columns["visits"].tolist() == [0] * SIZE
    assert pruner._course.current_memory().columns["last_visit"].max() == 1
    train(pruner, until=3)
    assert pruner.state_dict()["columns"]["visits"].max() == 1


def test_a_column_that_is_no_longer_declared_is_left_behind():
    pruner = infobatch.Pruner(SIZE, EPOCHS)
    pruner.load_state_dict(state_with(Visits()))
    assert set(pruner.state_dict()["columns"]) == {"score"}


@pytest.mark.parametrize("length", [2, 5])
def test_a_window_of_another_length(length):
    pruner = infobatch.Pruner(SIZE, EPOCHS, tracks=[Window(length)])
    pruner.load_state_dict(state_with(Window(3)))
    train(pruner, until=4)
    window = pruner.state_dict()["columns"]["window"]
    assert window.shape == (SIZE, length)
    known = ~window[:, -1].isnan()
    assert known.any()
    assert torch.equal(window[known, -1], pruner.scores[known])


# Smoothing.


def test_the_mean_rule_ranks_by_the_moving_average():
    """Sample 0 was hard and got easy once; sample 1 the other way round."""
    first = [9.0, 1.0, 1.0, 9.0, 1.0, 1.0, 1.0, 1.0]
    second = [1.0, 9.0, 1.0, 9.0, 1.0, 1.0, 1.0, 1.0]
    pruner = infobatch.Pruner(8, 9, policy=infobatch.MeanPrune(smoothing=0.7), delta=1.0)
    pruner.update(torch.tensor(first), index=torch.arange(8))
    pruner.set_epoch(1)
    plan = pruner.plan
    # Where everything is visited, the averages follow by hand.
    kept = plan.order.sort().values
    pruner.update(torch.tensor(second)[kept], index=kept)
    pruner.set_epoch(2)
    averages = torch.tensor(first)
    averages[kept] = 0.7 * averages[kept] + 0.3 * torch.tensor(second)[kept]
    assert pruner._course.current_memory().columns["ema"] == pytest.approx(
        averages.numpy(), rel=1e-6
    )
    assert {0, 3} <= set(kept.tolist()), "above the mean of the first epoch"
    assert pruner.plan.thresholds == pytest.approx((averages.double().mean().item(),), rel=1e-6)
    assert averages[0] > averages.mean(), "6.6: still hard, though its last loss is 1"
    assert 0 in pruner.plan.order.tolist()
    weights = dict(zip(pruner.plan.order.tolist(), pruner.plan.weights.tolist(), strict=True))
    assert weights[0] == weights[3] == 1.0
    assert pruner.scores[0] == 1.0, "the score is still the last one"


def test_the_quantile_rule_ranks_by_the_moving_average():
    policy = infobatch.QuantilePrune(bands=((0.5, 0.5),), smoothing=0.7)
    averages = np.arange(10, dtype=np.float32)
    last = averages[::-1].copy()
    samples = infobatch.Samples(averages, columns={"score": last, "ema": averages})
    assert policy.strata(samples).labels.tolist() == [1] * 5 + [0] * 5
    pruner = infobatch.Pruner(10, 9, policy=policy, delta=1.0, initial_scores=averages)
    order = torch.tensor(list(pruner.sampler))
    hard = order[order >= 5]
    pruner.update(torch.zeros(5), index=hard)  # once easy: 0.7 × 5 is still above 3
    pruner.set_epoch(1)
    expected = averages.copy()
    expected[5:] *= 0.7
    assert pruner._course.current_memory().columns["ema"] == pytest.approx(expected, rel=1e-6)
    threshold = sorted(expected.tolist())[5]
    assert pruner.plan.thresholds == pytest.approx((threshold,))
    always = [sample for sample in range(10) if expected[sample] >= np.float32(threshold)]
    assert set(always) <= set(pruner.plan.order.tolist())


def test_without_smoothing_the_last_score_ranks():
    pruner = infobatch.Pruner(4, 9, delta=1.0, policy=infobatch.MeanPrune(), tracks=[Ema(0.7)])
    pruner.update(torch.tensor([9.0, 1.0, 1.0, 1.0]), index=torch.arange(4))
    pruner.set_epoch(1)
    assert pruner.plan.thresholds == (3.0,)
    pruner.update(torch.tensor([1.0]), index=torch.tensor([0]))
    pruner.set_epoch(2)
    assert pruner.plan.thresholds == (1.0,)
    assert pruner.plan.whole, "no score is below the mean of equal ones"


@pytest.mark.parametrize("smoothing", [-0.1, 1, 1.5, "0.7", None])
def test_smoothing_outside_its_range(smoothing):
    for rule in (infobatch.MeanPrune, infobatch.QuantilePrune):
        with pytest.raises(ValueError, match=rf"{rule.__name__}\(smoothing=…\) got .* in \[0, 1\)"):
            rule(smoothing=smoothing)
