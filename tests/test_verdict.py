"""The verdict: intervals checked by hand, the error rate by simulation, and every odd input."""

import json
import math

import numpy as np
import pytest

from infobatch.lab.summary import summarise
from infobatch.lab.verdict import decimals, judge, more_seeds


def record(arm, seed, metric, **costs):
    every = [
        "samples_forwarded",
        "samples_backpropagated",
        "optimizer_steps",
        "seconds",
        "overhead_seconds",
        "peak_memory_mb",
    ]
    return {
        "arm": arm,
        "seed": seed,
        "metric": metric,
        "saved_fraction": 0.25,
        "costs": dict.fromkeys(every, 1.0) | costs,
    }


def runs_of(**metrics):
    return [
        record(arm, seed, value)
        for arm, values in metrics.items()
        for seed, value in enumerate(values)
    ]


def verdict_of(arm="infobatch", margin=0.5, higher_is_better=True, **metrics):
    arms = list(metrics)
    verdicts = judge(
        runs_of(**metrics),
        metric="accuracy",
        margin=margin,
        higher_is_better=higher_is_better,
        arms=arms,
    )
    return next(verdict for verdict in verdicts if verdict.arm == arm)


def test_interval_by_hand():
    # Differences -0.1, 0.1, 0.3: mean 0.1, sd 0.2, t(0.975, 2) = 4.302653, half 0.496828.
    verdict = verdict_of(full=[90.0, 91.0, 92.0], infobatch=[89.9, 91.1, 92.3])
    to_full = verdict.difference_to("full")
    assert to_full.mean == pytest.approx(0.1)
    assert to_full.sd == pytest.approx(0.2)
    assert to_full.low == pytest.approx(-0.396828, abs=1e-6)
    assert to_full.high == pytest.approx(0.596828, abs=1e-6)
    assert verdict.text == "Lossless"
    assert verdict.decision == "lossless"
    assert verdict.more_seeds is None


def test_pairing_by_seed_takes_out_what_seeds_do():
    verdict = verdict_of(full=[80.0, 90.0, 100.0], infobatch=[80.1, 90.0, 99.9])
    assert verdict.text == "Lossless", "seeds differ by ten, arms by a tenth"


def test_worse():
    # Differences -1, -2, -3, -2: mean -2, sd 0.816497, t(0.975, 3) = 3.182446, half 1.299228.
    verdict = verdict_of(full=[90.0] * 4, infobatch=[89.0, 88.0, 87.0, 88.0])
    assert verdict.text == "worse by 2.00 (95% interval 0.70 to 3.30)"
    assert verdict.difference_to("full").low == pytest.approx(-3.299228, abs=1e-6)
    assert verdict.decision == "worse"


def test_worse_by_less_than_the_margin_is_lossless_and_says_so():
    verdict = verdict_of(full=[90.0] * 4, infobatch=[89.8, 89.81, 89.8, 89.79])
    assert verdict.text == "Lossless"
    assert "a little worse, by less than the margin" in verdict.explanation


def test_not_enough_seeds():
    # Differences -1, 1: mean 0, sd 1.414214. Lossless needs t(0.975, n-1) * sd / sqrt(n) < 0.5:
    # n = 33 gives 0.50146, n = 34 gives 0.49344.
    verdict = verdict_of(full=[90.0, 90.0], infobatch=[89.0, 91.0])
    assert verdict.text == "not enough seeds to tell: about 32 more"
    assert verdict.more_seeds == 32
    assert verdict.decision == "undecided"


def test_more_seeds_is_the_fewest_and_is_rounded_where_large():
    assert more_seeds(0.0, math.sqrt(2), margin=0.5, count=2) == 32
    assert more_seeds(0.0, math.sqrt(2), margin=0.5, count=33) == 1
    # (1.96 * 10 / 0.1)^2 = 38415; with the mean at the worst place, half the margin, four times.
    assert more_seeds(0.0, 10.0, margin=0.1, count=3) == 39_000
    assert more_seeds(-0.05, 10.0, margin=0.1, count=3) == 160_000


def test_one_seed_and_none():
    verdict = verdict_of(full=[90.0], infobatch=[95.0])
    assert verdict.text == "not enough seeds to tell: about 4 more"
    assert "One seed" in verdict.explanation
    missing = verdict_of(full=[90.0, 91.0], infobatch=[])
    assert missing.text == "not enough seeds to tell: about 5 more"
    assert missing.difference_to("full").mean is None


def test_without_full_there_is_nothing_to_decide():
    verdict = verdict_of(short=[90.0, 90.2], infobatch=[90.5, 90.6])
    assert verdict.decision == "undecided"
    assert "run the arm full" in verdict.explanation
    assert verdict.difference_to("short").mean == pytest.approx(0.45)


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        (90.0, "Lossless"),
        (89.75, "Lossless"),
        (89.5, "worse by 0.50 (95% interval 0.50 to 0.50)"),
        (88.0, "worse by 2.00 (95% interval 2.00 to 2.00)"),
        (93.0, "Lossless"),
    ],
)
def test_no_variance_at_all(metric, text):
    assert verdict_of(full=[90.0] * 3, infobatch=[metric] * 3).text == text


def test_lower_is_better():
    # A loss that rises by 2 is worse by 2.
    verdict = verdict_of(higher_is_better=False, full=[1.0] * 3, infobatch=[2.9, 3.0, 3.1])
    assert verdict.text.startswith("worse by 2.00 ")
    assert verdict.difference_to("full").mean == pytest.approx(-2)
    better = verdict_of(higher_is_better=False, full=[1.0] * 3, infobatch=[0.5, 0.51, 0.49])
    assert better.text == "Lossless"
    assert better.difference_to("full").mean == pytest.approx(0.5)


def test_differences_to_short_and_random():
    verdicts = judge(
        runs_of(full=[90, 91], short=[88, 90], random=[89, 90], infobatch=[90, 92]),
        metric="accuracy",
        margin=0.5,
        higher_is_better=True,
        arms=["full", "short", "random", "infobatch"],
    )
    by_arm = {verdict.arm: verdict for verdict in verdicts}
    assert list(by_arm) == ["short", "random", "infobatch"]
    assert [d.to for d in by_arm["infobatch"].differences] == ["full", "short", "random"]
    assert by_arm["infobatch"].difference_to("short").mean == pytest.approx(2)
    assert by_arm["infobatch"].difference_to("random").mean == pytest.approx(1.5)
    assert [d.to for d in by_arm["short"].differences] == ["full", "random"]


def test_only_common_seeds_are_paired():
    runs = [record("full", seed, 90.0 + seed) for seed in (0, 1, 2)]
    runs += [record("infobatch", seed, 90.1 + seed) for seed in (5, 2, 1)]
    (verdict,) = judge(
        runs, metric="accuracy", margin=0.5, higher_is_better=True, arms=["full", "infobatch"]
    )
    assert verdict.difference_to("full").seeds == (1, 2)
    assert verdict.difference_to("full").mean == pytest.approx(0.1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None])
def test_an_arm_that_diverges_is_never_lossless(bad):
    verdict = verdict_of(full=[90.0] * 4, infobatch=[90.0, bad, 90.1, 90.2])
    assert verdict.text == ("worse by more than a number can say: no finite accuracy with seed 1")
    assert verdict.diverged == (1,)
    assert verdict.difference_to("full").seeds == (0, 2, 3)
    assert "diverged" in verdict.explanation
    json.dumps(verdict.as_dict(), allow_nan=False)


def test_where_full_diverges_too_the_seed_tells_nothing_and_is_named():
    nan = math.nan
    verdict = verdict_of(full=[90.0, nan, 90.0, 90.0], infobatch=[90.0, nan, 90.0, 90.1])
    assert verdict.text == "Lossless"
    assert verdict.difference_to("full").seeds == (0, 2, 3)
    told = "Seed 1 is left out: training on all data has no finite accuracy there."
    assert verdict.explanation.endswith(told)
    verdict = verdict_of(full=[nan, nan, nan, 90.0, 90.0], infobatch=[nan, 91.0, nan, 90.0, 90.0])
    assert verdict.text == "not enough seeds to tell: about 1 more"
    assert "Seeds 0, 1, 2 are left out" in verdict.explanation


@pytest.mark.parametrize("metric", [90.0, 80.0])
def test_two_pairs_decide_nothing_however_alike(metric):
    verdict = verdict_of(full=[90.0] * 2, infobatch=[metric] * 2)
    assert verdict.decision == "undecided"
    assert verdict.text == "not enough seeds to tell: about 1 more", "one makes three"
    assert "at least 3 pairs" in verdict.explanation
    assert verdict_of(full=[90.0] * 3, infobatch=[metric] * 3).decision != "undecided"


def test_as_dict_goes_through_json():
    verdict = verdict_of(full=[90.0, 91.0], infobatch=[89.0, 92.0])
    plain = json.loads(json.dumps(verdict.as_dict(), allow_nan=False))
    assert plain == verdict.as_dict()
    assert plain["text"] == verdict.text
    assert plain["differences"][0]["seeds"] == [0, 1]


@pytest.mark.parametrize(
    ("margin", "expected"), [(10, 1), (1.0, 2), (0.5, 2), (0.05, 3), (0.005, 4), (1000, 0)]
)
def test_decimals(margin, expected):
    assert decimals(margin) == expected


def test_false_lossless_rate():
    """An arm that is worse by exactly the margin passes in 2.5% of all comparisons, no more."""
    generator = np.random.default_rng(0)
    comparisons, seeds, margin = 4_000, 5, 0.5
    full = generator.normal(90, 1, (comparisons, seeds))
    pruned = full - margin + generator.normal(0, 0.3, (comparisons, seeds))
    texts = [
        verdict_of(margin=margin, full=a, infobatch=b).text
        for a, b in zip(full, pruned, strict=True)
    ]
    rate = sum(text == "Lossless" for text in texts) / comparisons
    deviation = math.sqrt(0.025 * 0.975 / comparisons)
    assert abs(rate - 0.025) < 4 * deviation


def test_summary():
    runs = [
        record("infobatch", 0, 90.0, seconds=10.0, samples_forwarded=100),
        record("infobatch", 1, 92.0, seconds=14.0, samples_forwarded=104),
        record("infobatch", 2, math.nan, seconds=12.0, samples_forwarded=96),
        record("full", 0, 91.0),
    ]
    full, infobatch, quantile = summarise(runs, arms=["full", "infobatch", "quantile"])
    assert (infobatch.metric.mean, infobatch.diverged) == (91.0, 1)
    assert infobatch.metric.sd == pytest.approx(math.sqrt(2))
    assert (infobatch.seconds, infobatch.samples_forwarded) == (12.0, 100.0)
    assert infobatch.saved_fraction == 0.25
    assert infobatch.seeds == (0, 1, 2)
    assert (full.metric.mean, full.metric.sd) == (91.0, None)
    assert (quantile.seeds, quantile.metric, quantile.seconds) == ((), None, None)
