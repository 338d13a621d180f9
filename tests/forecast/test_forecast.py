"""The forecast: its law, its sentence, its table and its numbers."""

import pytest
import torch

import infobatch
from infobatch.forecast import ERROR, Forecast, RuleForecast, epoch_saving
from infobatch.savings import EpochPasses
from infobatch.trainers import summary


def passes(epoch, kept, *, promised=0.2, realised=0.2, **more):
    count = round(1000 * kept)
    if kept == 1:
        promised = realised = 0.0
    return EpochPasses(
        epoch, 1000, count, count, 0, added_noise=promised, realised_noise=realised, **more
    )


def rule_of(kept, *, num_epochs=None, prunes_to_the_end=True, realised=0.2):
    """A rule that has kept these shares so far."""
    epochs = tuple(passes(e, k, realised=realised) for e, k in enumerate(kept))
    total = num_epochs or len(kept)
    return RuleForecast(epochs, (total - len(kept)) * prunes_to_the_end, total)


def test_the_law():
    """One minus the mean of kept × (1 + realised noise), by hand."""
    kept, noise = [1.0, 0.8, 0.6, 0.5], [0.0, 0.1, 0.3, 0.5]
    epochs = tuple(passes(e, kept[e], realised=noise[e]) for e in range(4))
    expected = 1 - (1.0 + 0.8 * 1.1 + 0.6 * 1.3 + 0.5 * 1.5) / 4
    assert RuleForecast(epochs, 0, 4).saving == pytest.approx(expected)
    promised = 1 - (1.0 + (0.8 + 0.6 + 0.5) * 1.2) / 4
    assert RuleForecast(epochs, 0, 4).saving_if(promised=True) == pytest.approx(promised)


def test_costs_and_refreshed_samples_count():
    epoch = passes(1, 0.6, realised=0.5, planned_cost=0.4, refreshed=400, refreshed_cost=0.6)
    assert epoch_saving(epoch) == pytest.approx(1 - 0.4 * 1.5 - 0.6 / 3)


def test_random_pruning_saves_nothing():
    pruner = infobatch.Pruner(
        4000, 8, policy="none", shadow=("random", infobatch.RandomPrune(0.2)), delta=1.0
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(8):
        pruner.update(torch.rand(len(list(pruner.sampler)), generator=generator))
    forecast = pruner.forecast()
    for rule in forecast.rules.values():
        assert rule.left_out > 0.15
        assert rule.saving == pytest.approx(0, abs=0.01)
    assert forecast.sentence.startswith("Do not prune here: the best rule, ")
    assert "train for fewer epochs" in forecast.sentence


def test_epochs_to_come_are_like_the_last_quarter():
    rule = rule_of([1, *[0.6] * 8], num_epochs=20)
    assert rule.saving == pytest.approx((8 + 11) * 0.28 / 20)
    half = RuleForecast(rule.epochs, to_come=5, num_epochs=20)  # the last six are whole
    assert half.saving == pytest.approx((8 + 5) * 0.28 / 20)


def test_it_is_too_early_while_the_saving_still_moves():
    rising = rule_of([1, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7], num_epochs=40)
    assert rising.reason_to_wait.startswith(
        "the spread of the gradients' sizes still rises: an epoch "
    )
    assert "would save 16% now, 10% a little earlier" in rising.reason_to_wait
    falling = rule_of([1, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95], num_epochs=40)
    assert "still falls" in falling.reason_to_wait
    few = rule_of([1, 0.6, 0.6, 0.6], num_epochs=40)
    assert few.reason_to_wait == "3 pruned epochs are too few to see a trend"
    assert rule_of([1, 0.6], num_epochs=9).reason_to_wait.startswith("1 pruned epoch is too few")
    none = Forecast({"auto": rule_of([1], num_epochs=9)})
    assert none.rules["auto"].reason_to_wait == "no epoch so far would have left anything out"
    assert none.table.endswith("–"), "no saving yet"
    assert "infobatch/forecast/auto/saving" not in none.as_dict()
    assert not rule_of([1, *[0.6] * 8], num_epochs=40).reason_to_wait
    assert not rule_of([1, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7]).reason_to_wait, "it is over"
    sentence = Forecast({"auto": rising}).sentence
    assert sentence.startswith("Too early to tell: the spread")
    assert sentence.endswith("later.")


def test_before_the_first_epoch():
    forecast = infobatch.Pruner(100, 8, policy="none", shadow="auto").forecast()
    assert forecast.best is None
    assert forecast.sentence == (
        "Too early to tell: no epoch that could be followed has ended yet. Ask again later."
    )
    assert forecast.as_dict() == {}
    assert "auto" in str(forecast)


def test_the_sentence_says_what_to_use_and_how_sure_that_is():
    forecast = Forecast({"mean": rule_of([0.8] * 8), "auto": rule_of([0.6] * 8)})
    points = f"{100 * ERROR:.0f}"
    assert forecast.best == "auto"
    assert forecast.sentence == (
        'Use policy="auto": it would save about 28% of the sample passes at equal quality '
        f"(± {points} points, more likely less than more)."
    )
    for name in ("noise(tau=0.3)", "MyRule", "infobatch"):  # what policy="…" does not know
        own = Forecast({name: rule_of([0.6] * 8)})
        assert own.sentence.startswith(f"Use {name}: it would save about 28%")
    running = Forecast({"auto": rule_of([0.6] * 8)}, shadows=False)
    assert running.sentence.startswith("This run, pruned by auto, saves about 28% of the sample")


def test_few_epochs_are_not_forecast():
    forecast = Forecast({"auto": rule_of([1, 0.8, 0.8])})
    assert forecast.sentence.startswith(
        "No forecast for 3 epochs: with so few, the number of steps"
    )
    assert "infobatch/forecast/auto/saving" not in forecast.as_dict()
    assert forecast.table.endswith("–")


def test_what_a_trainer_prints():
    plain = infobatch.Pruner(100, 3)
    assert summary(plain) == str(plain.savings)
    followed = infobatch.Pruner(100, 3, policy="none", shadow="auto")
    assert summary(followed) == f"{followed.savings}\n{followed.forecast()}"


def test_it_promises_nothing_within_its_error():
    barely = 1 - ERROR / 1.2
    forecast = Forecast({"auto": rule_of([barely] * 8)})
    assert forecast.sentence.startswith("Do not prune here: the best rule, auto, would save ")
    noisy = rule_of([0.9] * 8)
    assert Forecast({"auto": noisy}).sentence.startswith(
        "Do not prune here: the best rule, auto, would save −8% of the sample passes at equal quality (± "
    )
    assert Forecast({"auto": noisy}).table.endswith(" −8%")
    running = Forecast({"auto": noisy}, shadows=False).sentence
    assert running.startswith(
        "Do not prune here: this run, by auto, saves −8% of the sample passes"
    )
    assert running.endswith("To save compute, train for fewer epochs.")


def test_a_biased_rule_is_not_forecast():
    biased = rule_of([1, *[0.5] * 7], realised=None)
    forecast = Forecast({"ucb": biased, "auto": rule_of([0.6] * 8)})
    assert forecast.best == "auto"
    assert str(forecast).splitlines()[1].endswith("biased")
    assert "infobatch/forecast/ucb/saving" not in forecast.as_dict()
    assert Forecast({"ucb": biased}).best is None
    assert Forecast({"ucb": biased}).sentence == (
        "No forecast for biased rules: a bias is not noise, and what it costs only a comparison shows. "
        "Follow an unbiased rule, such as auto."
    )


def test_the_table_fits_a_terminal():
    long = "importance(ratio=0.35, floor=0.1, smoothing=0.9, delta=0.9)"
    rules = {name: rule_of([0.6] * 8) for name in ("auto", "noise(tau=0.3, delta=0.9)", long)}
    assert str(Forecast(rules)).splitlines()[:5] == [
        "rule                       left out  promised noise  realised noise  saving",
        "auto                          40.0%            0.20            0.20     28%",
        "noise(tau=0.3, delta=0.9)     40.0%            0.20            0.20     28%",
        long,
        "                              40.0%            0.20            0.20     28%",
    ]
    assert max(map(len, str(Forecast(rules)).splitlines())) <= 80


def test_numbers_for_a_logger():
    pruner = infobatch.Pruner(500, 6, policy="none", shadow=("auto", "mean"))
    losses = torch.linspace(0, 2, 500) ** 2
    for _ in range(6):
        pruner.update(losses[list(pruner.sampler)])
    forecast = pruner.forecast()
    numbers = forecast.as_dict()
    names = ("left_out", "promised_noise", "realised_noise", "saving")
    rules = ("auto", "mean")
    assert list(numbers) == [f"infobatch/forecast/{rule}/{n}" for rule in rules for n in names]
    assert numbers["infobatch/forecast/auto/saving"] == forecast.rules["auto"].saving
    logged = pruner.savings.as_dict()
    assert {name: logged[name] for name in numbers} == numbers


def test_a_pruned_run_forecasts_its_own_rule():
    pruner = infobatch.Pruner(500, 12, policy="auto")
    losses = torch.linspace(0, 2, 500) ** 2
    for _ in range(6):
        pruner.update(losses[list(pruner.sampler)])
    forecast = pruner.forecast()
    assert list(forecast.rules) == ["auto"]
    assert forecast.rules["auto"].to_come == 6
    assert forecast.sentence.startswith("This run, pruned by auto, saves about ")
