"""The hash of a key, and the draw: by enumeration for a few keys, by z-tests for many."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

from infobatch.keyed.chance import class_weights, draw, hash_key, hash_keys, is_kept, random_bits
from infobatch.plan import Strata
from infobatch.plan.draw import DROPPED

MANY = 200_000


def test_a_key_has_the_same_hash_however_it_is_passed():
    names = ["a", "shard-000/img", "ü", "\udcff", ""]
    assert hash_keys(names).tolist() == [hash_key(name) for name in names]
    assert hash_key("ü") == hash_key("ü".encode())
    numbers = [0, 1, -1, 2**63 - 1, -(2**63), 12345678901234]
    hashes = [hash_key(number) for number in numbers]
    for keys in (numbers, torch.tensor(numbers), np.array(numbers), list(np.array(numbers))):
        assert hash_keys(keys).tolist() == hashes
    assert hash_keys(np.array([2**64 - 1], np.uint64))[0] == hash_key(2**64 - 1) == hash_key(-1)
    assert hash_keys(np.array([3], np.int8))[0] == hash_key(3) == hash_key(torch.tensor(3))
    assert hash_keys(np.array(["a", "b"])).tolist() == hash_keys(["a", "b"]).tolist()


def test_hashes_stay_the_same():
    """Checkpoints hold them: another function would lose every score."""
    assert hash_key("000017/img_4") == 0xBDB17388CBBFF86F
    assert hash_key(17) == 0x808475F02EE37363
    assert random_bits(hash_keys([17]), seed=3, epoch=5)[0] == 0xEA24A2B77DCFB81F


def test_integers_never_collide():
    around = np.concatenate([np.arange(-MANY, MANY), np.int64(1 << 40) + np.arange(MANY)])
    assert len(np.unique(hash_keys(around))) == 3 * MANY


@pytest.mark.parametrize("key", [1.5, None, ("a", 1), ["a"]])
def test_other_types_raise(key):
    with pytest.raises(TypeError):
        hash_key(key)


def test_unbiased_by_enumeration():
    """Over all outcomes of three keys' random bits, replaced by three bits each, to the digit."""
    eighths, gradients = (1, 3, 7), (5, -2, 11)
    keep = np.array(eighths) / 8
    weights = [Fraction(8, eighth) for eighth in eighths]
    total, sums_of_weights = Fraction(0), Fraction(0)
    for outcome in product(range(8), repeat=3):
        bits = np.array(outcome, np.uint64) << np.uint64(61)
        kept = is_kept(bits, keep)
        total += sum(w * g for w, g, k in zip(weights, gradients, kept, strict=True) if k)
        sums_of_weights += sum(w for w, k in zip(weights, kept, strict=True) if k)
    assert total / 8**3 == sum(gradients)
    assert sums_of_weights / 8**3 == 3


def test_the_edges_of_a_probability():
    """The highest number is below 1, so that p = 1 keeps always; p = 0 never keeps."""
    bits = np.array([0, 2**64 - 1], np.uint64)
    assert is_kept(bits, np.ones(2)).all()
    assert not is_kept(bits, np.zeros(2)).any()
    assert is_kept(bits, np.full(2, 2.0**-53)).tolist() == [True, False]


def test_unbiased_by_a_z_test():
    """The weighted sum over many keys, in many epochs; strings as well as integers."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 20_000).astype(np.uint8)
    strata = Strata(labels, (0.1, 0.5, 0.9))
    weights, keep = class_weights(strata), np.array([1, *strata.keep])
    gradients = rng.normal(1, 2, len(labels))
    variance = (gradients**2 * (1 / keep[labels] - 1)).sum()
    for keys in (np.arange(20_000), [f"{n // 100:05d}/{n:07d}" for n in range(20_000)]):
        hashes = hash_keys(keys)
        z = []
        for epoch in range(200):
            drawn = draw(strata, hashes, seed=0, epoch=epoch)
            kept = drawn != DROPPED
            assert (drawn[kept] == labels[kept]).all()
            error = (weights[labels] * gradients)[kept].sum() - gradients.sum()
            z.append(error / np.sqrt(variance))
        # The mean of 200 standard normal numbers, and their variance.
        assert abs(np.mean(z)) < 4 / np.sqrt(200)
        assert abs(np.var(z) - 1) < 4 * np.sqrt(2 / 200)


def test_decisions_of_epochs_seeds_and_keys_are_independent():
    hashes = hash_keys(np.arange(MANY))
    drawn = {
        (seed, epoch): random_bits(hashes, seed=seed, epoch=epoch) >> np.uint64(63)
        for seed, epoch in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    }
    error = 4 * np.sqrt(MANY) / 2
    for bits in drawn.values():
        assert abs(bits.sum() - MANY / 2) < error
        assert abs((bits[1:] ^ bits[:-1]).sum() - MANY / 2) < error  # neighbouring keys
    names = list(drawn)
    for first in names:
        for second in names[names.index(first) + 1 :]:
            assert abs((drawn[first] ^ drawn[second]).sum() - MANY / 2) < error


def test_a_decision_depends_on_nothing_else():
    """Not on the order, nor on which other keys there are: any rank can decide alone."""
    hashes = hash_keys(np.arange(1000))
    labels = np.ones(1000, np.uint8)
    all_drawn = draw(Strata(labels, (0.5,)), hashes, seed=1, epoch=2)
    some = np.random.default_rng(0).permutation(1000)[:300]
    drawn = draw(Strata(labels[some], (0.5,)), hashes[some], seed=1, epoch=2)
    assert (drawn == all_drawn[some]).all()
    # With a larger probability, whoever was kept is still kept.
    more = draw(Strata(labels, (0.8,)), hashes, seed=1, epoch=2)
    assert (more[all_drawn != DROPPED] != DROPPED).all()


def test_weights():
    labels = np.array([0, 1, 2], np.uint8)
    assert class_weights(Strata(labels, (0.5, 0.25))).tolist() == [1, 2, 4]
    assert class_weights(Strata(labels, (0.5, 0.25), "ones")).tolist() == [1, 1, 1]
    assert class_weights(Strata(labels, (0.5, 0.25), (3.0, 0.5))).tolist() == [1, 3, 0.5]


def test_the_sum_of_weights_strays_as_documented():
    """Independent draws: the sum is N on average, with variance Σ (1/p − 1)."""
    labels = (np.arange(10_000) % 2).astype(np.uint8)
    strata, hashes = Strata(labels, (0.5,)), hash_keys(np.arange(10_000))
    weights = class_weights(strata)
    sums = [
        weights[drawn[drawn != DROPPED]].sum()
        for epoch in range(300)
        for drawn in [draw(strata, hashes, seed=0, epoch=epoch)]
    ]
    expected = np.sqrt(5_000 * (1 / 0.5 - 1))
    assert abs(np.mean(sums) - 10_000) < 4 * expected / np.sqrt(300)
    assert abs(np.std(sums) / expected - 1) < 4 / np.sqrt(2 * 300)
