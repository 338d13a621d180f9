"""The choice of a learning rate: the best mean, ties, divergence, and what noise does to it."""

import math

import numpy as np
import pytest

from infobatch.lab.stats.rates import summarise_rates


def summaries(metrics, *, usual=0.1, higher_is_better=True):
    rates = summarise_rates(metrics, arm="full", usual=usual, higher_is_better=higher_is_better)
    return {rate.learning_rate: rate for rate in rates}


def chosen(metrics, **options):
    (rate,) = [rate for rate, summary in summaries(metrics, **options).items() if summary.chosen]
    return rate


def test_by_hand():
    # Differences of 0.4 to 0.1: 1.0, 1.2, 1.4; mean 1.2, sd 0.2, standard error 0.2 / sqrt(3).
    rates = summaries({0.4: [91.0, 90.2, 91.4], 0.1: [90.0, 89.0, 90.0]})
    assert list(rates) == [0.1, 0.4], "from the lowest to the highest"
    low, high = rates.values()
    assert (high.mean, high.behind, high.chosen, high.tied) == (
        pytest.approx(272.6 / 3), 0.0, True, True,
    )  # fmt: skip
    assert low.behind == pytest.approx(1.2)
    assert low.standard_error == pytest.approx(0.2 / math.sqrt(3))
    assert low.sd == pytest.approx(np.std([90, 89, 90], ddof=1))
    assert (low.count, low.tied, low.chosen) == (3, False, False)


def test_a_tie_goes_to_the_usual_rate_then_to_the_middle_of_the_grid():
    noisy = {0.1: [90.0, 91.0, 90.0], 0.2: [90.2, 90.5, 90.3], 0.4: [90.6, 90.6, 90.6]}
    rates = summaries(noisy)
    assert [rate.tied for rate in rates.values()] == [True, False, True]
    assert chosen({0.05: [80.0, 80.0, 80.0], **noisy}) == 0.1
    assert chosen(noisy, usual=0.1) == 0.4, "at an end of the grid it breaks no tie"
    assert chosen(noisy, usual=0.3) == 0.4, "both are as far from the middle: the better"
    assert chosen({**noisy, 0.2: [90.6, 90.1, 91.0]}, usual=0.3) == 0.2
    assert chosen(noisy, usual=0.2) == 0.4, "the usual rate is not among the best"


def test_two_seeds_of_which_one_is_alike_are_tied():
    rates = summaries({0.1: [100 / 3, 1600 / 51], 0.2: [100 / 3, 1800 / 51]})
    assert rates[0.1].behind == pytest.approx(rates[0.1].standard_error)
    assert rates[0.1].tied


def test_a_clearly_better_rate_wins_also_at_an_end():
    assert chosen({0.1: [90.0, 90.1], 0.2: [91.0, 91.1], 0.4: [92.0, 92.1]}) == 0.4


def test_one_seed_has_no_standard_error_so_the_best_wins():
    rates = summaries({0.1: [90.0], 0.2: [90.1]})
    assert [rate.chosen for rate in rates.values()] == [False, True]
    assert all(rate.standard_error is None and rate.sd is None for rate in rates.values())
    assert chosen({0.1: [90.0], 0.2: [90.0]}, usual=0.1) == 0.1


def test_lower_is_better():
    metrics = {0.1: [2.0, 2.1, 2.2], 0.2: [1.0, 1.1, 1.2]}
    rates = summaries(metrics, higher_is_better=False)
    assert rates[0.2].chosen
    assert rates[0.2].mean == pytest.approx(1.1)
    assert rates[0.1].behind == pytest.approx(1.0)


def test_a_rate_with_which_one_seed_diverged_is_out():
    rates = summaries({0.1: [80.0, 80.0], 0.4: [91.0, None]})
    assert (rates[0.4].mean, rates[0.4].behind, rates[0.4].tied) == (None, None, False)
    assert rates[0.1].chosen
    assert chosen({0.1: [None], 0.2: [None], 0.4: [None]}, usual=1.0) == 0.2, "all of them did"


def test_three_seeds_and_the_rule_for_ties_choose_alike_where_rates_are_alike():
    """Arms must not differ by what noise chose for them: one seed picks any of three, often."""
    generator = np.random.default_rng(0)
    noise = generator.normal(0, 0.4, (600, 3, 3))
    rates = (0.1, 0.2, 0.4)

    def same(seeds):
        choices = [
            chosen({r: 90 + sample[k, :seeds] for k, r in enumerate(rates)}, usual=0.2)
            for sample in noise
        ]
        return np.mean([rate == 0.2 for rate in choices])

    assert same(1) < 0.4
    assert same(3) > 0.5
