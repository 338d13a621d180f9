"""What holds for every registered policy; a new one is covered by registering it."""

import copy
import dataclasses
import importlib
import math
import pickle
import random
import re
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import infobatch
from document_examples import ROOT
from infobatch import policies
from infobatch.memory.memory import Memory
from infobatch.policies import POLICIES, BiasedPolicyWarning, resolve_policy
from infobatch.policies.base import tracks_of
from numbered import loss_of
from rank_threads import on_ranks

SIZE, BATCH = 83, 7
LABELS = np.arange(SIZE) % 5
OURS = ("mean", "quantile", "random", "none", "auto", "noise", "importance")  # and the paper's
PAGE = (ROOT / "docs/policies.md").read_text()

every_policy = pytest.mark.parametrize("name", POLICIES)
pytestmark = [
    pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning"),
    pytest.mark.filterwarnings(r"ignore:refresh\(\) was not called"),
]


def epochs_of(rule):
    """Long enough for the rule to prune some epochs."""
    return 6 + resolve_policy(rule).first_epoch


def loss(sample, epoch):
    """A loss that is not a number in some visits, and that some samples have always."""
    if (sample + epoch) % 11 == 3:
        return math.nan
    return 0.01 + sample * 1e-5 if sample % 6 == 5 else loss_of(sample, epoch)


def losses_of(index, epoch):
    return torch.tensor([loss(sample, epoch) for sample in index])


def pruner_of(name, **options):
    options = {"delta": 0.8, "labels": LABELS, **options}
    return infobatch.Pruner(SIZE, epochs_of(name), policy=name, **options)


def train(pruner, *, stop=None, by_index=False, batch=BATCH):
    """Train; return each batch's epoch, samples and loss. With ``stop``, leave after as many."""
    trace = []
    for epoch in range(pruner.epoch, pruner.num_epochs):
        for index in pruner.batch_sampler(batch):
            samples = torch.tensor(index) if by_index else None
            mean = pruner.update(losses_of(index, epoch), index=samples)
            trace.append((epoch, index, mean.item()))
            if len(trace) == stop:
                return trace
    return trace


def same(one, other):
    """Equal, and NaN where the other is."""
    return str(one) == str(other)


def strata_of(name, scores, epoch=2):
    """What a policy says of some scores, in a memory that has what it tracks."""
    policy = resolve_policy(name)
    memory = Memory(scores.copy(), tracks_of(policy))
    samples = infobatch.Samples(
        memory.scores,
        epoch=epoch,
        num_epochs=epochs_of(name),
        columns=memory.columns,
        labels=LABELS,
        seed=5,
    )
    return policy.strata(samples), memory


def scores_with_holes(size=SIZE):
    scores = np.random.default_rng(0).exponential(size=size).astype(np.float32)
    scores[::9] = np.nan
    return scores


# Names.


@every_policy
def test_class_name_and_file_agree(name):
    rule = POLICIES[name]
    module = importlib.import_module(rule.__module__)
    folder = "" if name in OURS else "baselines."
    assert module.__name__ == f"infobatch.policies.{folder}{name}"
    stem = rule.__name__.removesuffix("Prune").lower()
    assert rule.__name__.endswith("Prune")
    assert name.replace("_", "").startswith(stem), "MeanPrune is 'mean', NoPrune is 'none'"
    assert getattr(module, rule.__name__) is rule
    assert getattr(policies, rule.__name__) is rule
    assert rule.__name__ in policies.__all__
    assert rule.__doc__


@every_policy
def test_its_card_says_what_it_remembers_and_whether_it_is_biased(name):
    """The docstring, and the table of the policies' page beside it."""
    rule = POLICIES[name]
    memory = Memory(np.zeros(SIZE, np.float32), tracks_of(rule()))
    remembered = sum(column.nbytes for column in memory.columns.values()) // SIZE
    card = " ".join(rule.__doc__.split())
    assert re.search(rf"\* Remembers [^*]*?: {remembered} bytes per sample", card)
    biased = strata_of(name, scores_with_holes())[0].biased
    assert re.search(r"\* Biased" if biased else r"\* Unbiased", card)
    assert re.search(r"sort|shuffling", card), "what it costs"
    no_paper = name in ("none", "auto", "noise", "importance")
    assert no_paper or re.search(r'et al., ".+" \(.*20\d\d\)', card), "the source"
    assert no_paper or re.search(r"\* Our reading", card)
    row = re.search(rf'^\| \[`"{name}"`\].*\| (.+) \| (\d+) \|$', PAGE, re.MULTILINE)
    assert row is not None
    assert int(row[2]) == remembered
    assert (row[1] != "yes") == biased


def test_no_two_names_for_a_class_and_one_alias():
    assert len(set(POLICIES.values())) == len(POLICIES)
    assert infobatch.SoftPrune is infobatch.MeanPrune is POLICIES["mean"]


@every_policy
def test_a_frozen_dataclass_whose_settings_are_all_of_it(name):
    policy = POLICIES[name]()
    assert dataclasses.is_dataclass(policy)
    assert policy == POLICIES[name]() == resolve_policy(name)
    assert hash(policy) == hash(POLICIES[name]())
    assert pickle.loads(pickle.dumps(policy)) == copy.deepcopy(policy) == policy
    assert eval(repr(policy), {POLICIES[name].__name__: POLICIES[name]}) == policy
    for setting in [field.name for field in dataclasses.fields(policy)] or ["anything"]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(policy, setting, None)


@every_policy
def test_by_name_by_object_and_with_a_ratio(name):
    by_name, by_object = pruner_of(name), pruner_of(POLICIES[name]())
    assert by_name.policy == by_object.policy
    has_ratio = "ratio" in {field.name for field in dataclasses.fields(POLICIES[name])}
    if has_ratio:
        assert (
            infobatch.InfoBatch(
                range(5), 3, 0.25, policy=name, labels=LABELS[:5]
            ).pruner.policy.ratio
            == 0.25
        )
    else:
        with pytest.raises(ValueError, match=r"prune_ratio=0\.25 was given with policy="):
            infobatch.InfoBatch(range(5), 3, 0.25, policy=name, labels=LABELS[:5])
    with pytest.raises(ValueError, match=r"prune_ratio=0\.5 and policy=.* were both given"):
        infobatch.InfoBatch(range(5), 3, 0.5, policy=POLICIES[name]())


@every_policy
def test_biased_rules_say_so_once_and_copies_do_not(name):
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        pruner = pruner_of(name)
        copy.deepcopy(pruner)
        pickle.loads(pickle.dumps(pruner))  # as for a spawned worker of a loader
        assert not raised
        train(pruner)
    messages = [
        str(warning.message) for warning in raised if warning.category is BiasedPolicyWarning
    ]
    biased = name not in OURS
    assert len(messages) == biased
    assert all("the expected gradient is not that of the full data" in text for text in messages)
    assert strata_of(name, scores_with_holes())[0].biased == biased


# A pure function of what is known.


@every_policy
def test_it_writes_nothing_and_says_the_same_twice(name):
    scores = scores_with_holes()
    first, memory = strata_of(name, scores)
    fresh = Memory(scores.copy(), memory.tracks)
    for column, values in fresh.columns.items():
        assert memory.columns[column].tobytes() == values.tobytes(), column
    second, _ = strata_of(name, scores)
    assert np.array_equal(first.labels, second.labels)
    assert (first.keep, first.weights) == (second.keep, second.weights)
    assert len(first.labels) == len(scores)
    assert first.labels.dtype == np.uint8


@every_policy
def test_random_streams_are_left_alone(name):
    states = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002
    train(pruner_of(name))
    assert states == (
        random.getstate(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002
        torch.get_rng_state().tolist(),
    )


@every_policy
@pytest.mark.parametrize("value", [0.0, -3.5, 1e30])
def test_scores_that_are_all_equal(name, value):
    strata, _ = strata_of(name, np.full(SIZE, value, np.float32))
    pruner = pruner_of(name, initial_scores=np.full(SIZE, value, np.float32))
    assert len(strata.labels) == SIZE
    if pruner.policy.gradient is not None and value < 0:
        with pytest.raises(ValueError, match=r"got a score of -3\.5 before epoch 0"):
            _ = pruner.plan
        return
    at_random = pruner.policy.gradient is not None and value > 1
    with pytest.warns(match="practically at random") if at_random else nullcontext():
        assert 0 < len(pruner.plan) <= SIZE


@every_policy
@pytest.mark.parametrize("size", [1, 2, 3])
def test_very_few_samples(name, size):
    for known in (np.full(size, np.nan), np.arange(size), np.r_[np.nan, np.arange(size - 1)]):
        pruner = infobatch.Pruner(
            size, epochs_of(name), policy=name, initial_scores=known, labels=LABELS[:size]
        )
        assert 1 <= len(pruner.plan) <= size


# Smoothing.


@every_policy
def test_a_rule_that_ranks_by_the_last_score_can_smooth(name):
    rule, epochs = POLICIES[name], epochs_of(name)
    _, memory = strata_of(name, np.nan_to_num(scores_with_holes()))

    def labels(scores):
        known = {"columns": memory.columns, "labels": LABELS, "seed": 5}
        return rule().strata(infobatch.Samples(scores, 2, epochs, **known)).labels

    by_last_score = not np.array_equal(labels(memory.scores), labels(np.roll(memory.scores, 9)))
    assert by_last_score == ("smoothing" in {field.name for field in dataclasses.fields(rule)})
    if by_last_score:
        expected = rf"^{rule.__name__}\(smoothing=…\) got 1\.5, expected a number in \[0, 1\)"
        with pytest.raises(ValueError, match=expected):
            rule(smoothing=1.5)
        assert "ema" in pruner_of(rule(smoothing=0.7)).state_dict()["columns"]


# Whole trainings.


@every_policy
def test_determinism(name):
    first, second = pruner_of(name), pruner_of(name)
    assert same(train(first), train(second))
    assert torch.equal(first.scores.nan_to_num(), second.scores.nan_to_num())
    assert first.savings == second.savings
    assert not same(train(pruner_of(name)), train(pruner_of(name, seed=1)))


@every_policy
@pytest.mark.parametrize("by_index", [False, True])
def test_resumed_in_the_middle_of_an_epoch(name, by_index):
    straight, epochs = pruner_of(name), epochs_of(name)
    expected = train(straight, by_index=by_index)
    for stop in range(1, len(expected), 5):
        first, second = pruner_of(name), pruner_of(name)
        trace = train(first, stop=stop, by_index=by_index)
        second.load_state_dict(first.state_dict())
        trace += train(second, by_index=by_index)
        if by_index:  # batches are cut again from what is left
            visits = [
                sorted(i for e, index, _ in t if e == epoch for i in index)
                for t in (trace, expected)
                for epoch in range(epochs)
            ]
            assert visits[:epochs] == visits[epochs:]
        else:
            assert same(trace, expected), f"stopped after step {stop}"
        assert torch.equal(second.scores.nan_to_num(), straight.scores.nan_to_num())
        assert second.savings == straight.savings


@every_policy
@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_draw_the_same_plans_and_learn_the_same_scores(name, world_size):
    def work(pruner, rank):
        plans = []
        for epoch in range(pruner.num_epochs):
            for index in pruner.batch_sampler(BATCH):
                pruner.update(losses_of(index, epoch))
            plans.append((pruner.plan.codes.tobytes(), pruner.plan.class_weights.tobytes()))
        return plans, pruner.state_dict()["columns"], pruner.savings

    options = {"policy": name, "delta": 0.8, "labels": LABELS}
    run = (work, SIZE, epochs_of(name))
    plans, columns, savings = on_ranks(1, *run, **options)[0]
    assert (savings.saved > 0) == (name != "none"), "or there is nothing to compare"
    for own_plans, own_columns, own_savings in on_ranks(world_size, *run, **options):
        assert own_plans == plans
        assert own_savings == savings
        for column, values in columns.items():
            assert own_columns[column].numpy().tobytes() == values.numpy().tobytes(), column


@every_policy
def test_sharded_where_it_says_so(name):
    policy = POLICIES[name]()
    if not policy.shardable:
        with pytest.raises(TypeError, match=r"not known to work on a shard of the scores"):
            pruner_of(name, sharded=True)
        return

    def work(pruner, rank):
        plans = []
        for epoch in range(pruner.num_epochs):
            for index in pruner.batch_sampler(BATCH):
                assert all(sample % 2 == rank for sample in index)
                pruner.update(losses_of(index, epoch))
            plans.append(pruner.plan)
        return plans, pruner.savings

    options = {"policy": name, "delta": 0.8, "sharded": True}
    results = on_ranks(2, work, SIZE, epochs_of(name), **options)
    assert results[0][1] == results[1][1], "the savings are those of all ranks"
    rescales = strata_of(name, scores_with_holes())[0].weights == "inverse"
    for epoch in range(epochs_of(name)):
        both = [plans[epoch] for plans, _ in results]
        assert both[0].thresholds == both[1].thresholds, "thresholds of all scores"
        if rescales:
            assert sum(plan.weights.sum().item() for plan in both) == pytest.approx(SIZE, rel=1e-12)


@every_policy
def test_weights_of_every_epoch_sum_to_the_number_of_samples_where_it_rescales(name):
    pruner, epochs = pruner_of(name), epochs_of(name)
    strata, _ = strata_of(name, scores_with_holes())
    for epoch in range(epochs):
        plan = pruner.plan
        if strata.weights == "inverse":
            assert plan.weights.sum().item() == pytest.approx(SIZE, rel=1e-12)
        order = plan.order.tolist()
        assert len(set(order)) == len(order), "no sample twice"
        if epoch == 0 or epoch >= 0.8 * epochs:
            assert plan.whole, "the first epoch has no scores, the last ones anneal"
        for index in pruner.batch_sampler(BATCH):
            pruner.update(losses_of(index, epoch))
        pruner.set_epoch(epoch + 1)


@every_policy
def test_samples_without_a_score_are_kept_with_weight_1(name):
    scores = scores_with_holes()
    for seed in range(20):
        pruner = pruner_of(name, initial_scores=scores, seed=seed)
        weights = dict(zip(pruner.plan.order.tolist(), pruner.plan.weights.tolist(), strict=True))
        assert all(weights.get(sample) == 1.0 for sample in range(0, SIZE, 9))


@every_policy
def test_expected_weights_are_1_where_it_rescales(name):
    """Over many epochs with the same scores, each sample's weight is 1 on average."""
    scores = scores_with_holes()
    strata, _ = strata_of(name, scores)
    if strata.weights != "inverse":
        pytest.skip("biased on purpose")
    total = np.zeros(SIZE)
    draws = 400
    for seed in range(draws):
        plan = pruner_of(name, initial_scores=scores, seed=seed).plan
        total[plan.order.numpy()] += plan.weights.numpy()
    keep = np.array([1.0, *strata.keep])[strata.labels]
    spread = np.sqrt(np.maximum(1 / keep - 1, 0) / draws)
    assert (np.abs(total / draws - 1) <= 5 * spread + 1e-9).all()
