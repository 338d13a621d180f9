import math

import numpy as np
import pytest
import torch

import infobatch
from infobatch.policies import AfssPrune
from remembered import kept_by, samples_after

pytestmark = pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
SIZE, EPOCH = 600, 20
NEVER = math.nan


def tiers(quality, last_visit, epoch):
    """The rule of the notes, image by image: must be kept, and (pool, how many of it) for the rest."""
    kept, free = set(), {"easy": [], "moderate": []}
    sizes = {"easy": 0, "moderate": 0}
    for image, (q, last) in enumerate(zip(quality, last_visit, strict=True)):
        if q < 0.55:
            kept.add(image)
            continue
        tier, within = ("easy", 10) if q > 0.85 else ("moderate", 3)
        sizes[tier] += 1
        if epoch - last >= within:  # its last chance
            kept.add(image)
        else:
            free[tier].append(image)
    shares = {"easy": 0.02, "moderate": 0.4}
    return kept, [
        (pool, max(shares[tier] * sizes[tier] - (sizes[tier] - len(pool)), 0))
        for tier, pool in free.items()
    ]


def visited(rng, quality, number, recent):
    """Epochs of scores; a share of the images was visited in the last epoch."""
    last = np.where(rng.random(SIZE) < recent, number - 1, rng.integers(0, number, SIZE))
    return [np.where(last >= epoch, quality, NEVER) for epoch in range(number)], last


@pytest.mark.parametrize("recent", [0.5, 0.995])
@pytest.mark.parametrize("seed", range(4))
def test_against_the_notes_about_the_paper(seed, recent):
    """Written by third parties: neither the paper's text nor code was there to compare with."""
    rng = np.random.default_rng(seed)
    quality = rng.choice([0.0, 0.5, 0.55, 0.6, 0.85, 0.9, 1.0], SIZE).astype(np.float32)
    epochs, last = visited(rng, quality, EPOCH, recent)
    policy = AfssPrune()
    strata = policy.strata(samples_after(policy, epochs))
    kept, weights = kept_by(strata, seed)
    certain, pools = tiers(quality.astype(np.float64).round(4), last, EPOCH)
    assert all(pool for pool, _ in pools)
    assert certain <= set(kept)
    for pool, number in pools:
        assert abs(len(set(pool) & set(kept)) - number) <= 1
    assert len(kept) == len(certain) + sum(len(set(pool) & set(kept)) for pool, _ in pools)
    assert set(weights) == {1.0}


@pytest.mark.parametrize("moving", [False, True], ids=["constant", "moving"])
def test_nothing_is_forgotten_in_a_hundred_epochs(moving):
    """Easy images come at least once in ten epochs, moderate ones at least once in three."""
    rng, size = np.random.default_rng(0), 500
    pruner = infobatch.Pruner(size, 100, policy="afss")
    quality, last = np.repeat([1.0, 0.7], size // 2), np.zeros(size)
    kept = []
    for epoch in range(100):
        index = list(pruner.sampler)
        kept.append(len(index) / size)
        pruner.update(torch.ones(len(index)), scores=torch.from_numpy(quality[index]))
        last[index] = epoch
        assert (epoch - last).max() < 10
        if moving:  # measured in its visits only
            quality[index] = rng.choice([0.3, 0.7, 1.0], len(index))
        else:
            assert (epoch - last)[size // 2 :].max() < 3
    if not moving:  # a tenth of the easy ones and 0.4 of the moderate ones, half of the images each
        assert np.mean(kept[1:]) == pytest.approx(0.5 * (0.12 + 0.42), abs=0.03)


def test_more_moderate_images_are_overdue_than_the_share_has_room_for():
    policy = AfssPrune()
    epochs = [np.full(10, 0.7)] + [np.r_[np.full(8, NEVER), 0.7, 0.7]] * 4
    kept, _ = kept_by(policy.strata(samples_after(policy, epochs)))
    assert kept == list(range(8))


def test_quality_among_the_extras_leaves_the_scores_to_the_losses():
    """NaN in a visit keeps the last quality; refreshing the quality alone is no visit."""
    pruner = infobatch.Pruner(100, 30, policy=AfssPrune(extras=True, keep_easy=0.1))
    quality = torch.ones(100)
    for epoch in range(12):
        index = torch.tensor(list(pruner.sampler))
        known = quality[index] if epoch == 0 else torch.full((len(index),), NEVER)
        pruner.update(2 + index.float(), extras={"quality": known})
        if epoch == 5:
            out = pruner.left_out
            pruner.refresh(
                torch.full((len(out),), NEVER), out, extras={"quality": torch.zeros(len(out))}
            )
            assert len(out) == 90
    lengths = [round(passes.kept_fraction * 100) for passes in pruner.savings.epochs]
    assert lengths[:6] == [100, 10, 10, 10, 10, 10]
    assert lengths[6] > 90  # hard ones, and one of the ten that were visited before
    assert torch.equal(pruner.scores, 2 + torch.arange(100.0))
    assert pruner.savings.refreshed == 90


def test_reviews_come_back_although_they_were_measured_meanwhile():
    pruner, seen = infobatch.Pruner(50, 12, policy=AfssPrune(extras=True, keep_moderate=0.1)), []
    for _ in range(6):
        index = torch.tensor(list(pruner.sampler))
        seen.append(set(index.tolist()))
        pruner.update(torch.ones(len(index)), extras={"quality": torch.full((len(index),), 0.7)})
        out = pruner.left_out
        same = torch.full((len(out),), 0.7)
        pruner.refresh(torch.full((len(out),), NEVER), out, extras={"quality": same})
    assert [len(epoch) for epoch in seen[:3]] == [50, 5, 5]
    assert seen[3] == set(range(50)) - seen[1] - seen[2]


def test_errors():
    for setting, text in (
        ({"easy": -1}, r"AfssPrune\(easy=…\) got -1, expected a number >= 0"),
        ({"hard": 0.9}, r"AfssPrune\(hard=…\) got 0\.9, expected a number >= 0 and <= 0\.85"),
        ({"keep_easy": 2}, r"AfssPrune\(keep_easy=…\) got 2, expected a number >= 0 and <= 1"),
        ({"review_moderate": 0}, r"AfssPrune\(review_moderate=…\) got 0, expected a number >= 1"),
    ):
        with pytest.raises(ValueError, match=text):
            AfssPrune(**setting)
    with pytest.raises(ValueError, match=r"save=0.4 was given with AfssPrune.*no share to adapt"):
        infobatch.Pruner(10, 20, policy="afss", save=0.4)
