"""TRL's GRPOTrainer with pruned prompts: unbiased, fewer generations, everything else as upstream."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig
from trl import GRPOTrainer

import grpo_cases
from document_examples import examples
from grpo_cases import arguments, fixed_rollout, gradients, questions, right, trainer, weights
from infobatch.integrations.trl import InfoBatchConfig, InfoBatchGRPOTrainer, SpreadPrune
from infobatch.plan import draw_plan
from infobatch.policies import RandomPrune
from infobatch.policies.base import Samples
from tiny_words import llama, tokenizer

CASES = Path(grpo_cases.__file__)
WHOLE = InfoBatchConfig(delta=0.0)
EPOCHS = 50  # of the z-test


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("CI", "1")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


# The rule.


def samples(scores, last_visit, epoch):
    columns = {"last_visit": np.array(last_visit, np.int32)}
    return Samples(np.array(scores, np.float32), epoch=epoch, num_epochs=9, columns=columns)


def test_the_keep_probability_grows_with_age_up_to_one():
    scores = [1.0] * 100 + [0.0] * 500
    last_visit = [4] * 100 + [4] * 100 + [3] * 100 + [2] * 100 + [1] * 100 + [-1] * 100
    strata = SpreadPrune(ratio=0.75).strata(samples(scores, last_visit, 5))
    shares = [1.0, *strata.keep]
    assert [shares[label] for label in strata.labels[::100]] == [1.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    plan = draw_plan(strata, seed=0, epoch=5)
    assert len(plan) == 100 + 25 + 50 + 75 + 200
    assert float(plan.weights.sum()) == pytest.approx(600)
    assert float(plan.weights.max()) == 4


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_what_is_kept_fills_whole_batches(batch):
    rng = np.random.default_rng(0)
    scores, last_visit = rng.random(1000) < 0.4, rng.integers(0, 5, 1000)
    strata = SpreadPrune(ratio=0.8, batch=batch).strata(samples(scores, last_visit, 5))
    plan = draw_plan(strata, seed=0, epoch=5)
    assert len(plan) % batch == 0
    assert float(plan.weights.sum()) == pytest.approx(1000)
    assert len(plan) < 800


def test_too_few_prompts_for_two_batches_are_all_kept():
    strata = SpreadPrune(batch=8).strata(samples([1.0] + [0.0] * 8, [0] * 9, 1))
    assert len(draw_plan(strata, seed=0, epoch=1)) == 8
    strata = SpreadPrune(batch=16).strata(samples([1.0] + [0.0] * 8, [0] * 9, 1))
    assert len(draw_plan(strata, seed=0, epoch=1)) == 9


def test_every_prompt_is_visited_within_the_time_that_the_ratio_gives(tmp_path):
    ours = trainer(
        tmp_path,
        rollout_func=fixed_rollout,
        num_train_epochs=13,
        infobatch=InfoBatchConfig(prune_ratio=0.75, delta=1.0),
        data=questions(40),
    )
    ours.train()
    visits = [set(np.ravel(ours.generated[epoch])) for epoch in range(13)]
    assert len(visits[1]) < 40
    for epoch in range(10):
        assert set.union(*visits[epoch : epoch + 4]) == set(range(40))


# What a step is.


def gradients_by_prompt(folder, **options):
    """Each prompt's own gradient: that of a step with this prompt alone."""
    one_prompt = {"per_device_train_batch_size": 4, "num_train_epochs": 1}
    single, steps = gradients(folder, infobatch=WHOLE, **one_prompt, **options)
    gradient_of = {rows[0]: step for rows, step in zip(single.generated[0], steps, strict=True)}
    assert len(gradient_of) == 12
    return gradient_of


LOSSES = [
    *(
        {"loss_type": name}
        for name in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo")
    ),
    {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    {"beta": 0.1},
    {"entropy_coef": 0.05, "loss_type": "grpo"},
    {"scale_rewards": "none", "loss_type": "dr_grpo"},
    {"off_policy_mask_threshold": 0.5},
    {"delta": 2.0},
]


@pytest.mark.parametrize("options", LOSSES, ids=str)
def test_the_gradient_of_a_step_is_the_weighted_mean_of_its_prompts_own(options, tmp_path):
    """Every loss, with its penalties; each prompt's own gradient is that of plain TRL with one prompt."""
    gradient_of = gradients_by_prompt(tmp_path, **options)
    ours, steps = gradients(tmp_path, num_train_epochs=2, **options)
    prompts = [rows[::4] for epoch in (0, 1) for rows in ours.generated[epoch]]
    weights_of = dict(zip(ours.plans[1].tolist(), ours.weights[1].tolist(), strict=True))
    assert len(weights_of) < 12
    assert max(weights_of.values()) > 1.5
    for number, (chosen, step) in enumerate(zip(prompts, steps, strict=True)):
        factor = [1.0 if number < 3 else weights_of[prompt] for prompt in chosen]
        expected = (
            sum(w * gradient_of[prompt] for w, prompt in zip(factor, chosen, strict=True)) / 4
        )
        assert torch.allclose(step, expected, atol=2e-6), (number, options)
    assert steps[-1].abs().max() > 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {"num_iterations": 2},
        {"steps_per_generation": 2, "per_device_train_batch_size": 8},
        {"steps_per_generation": 2, "per_device_train_batch_size": 8, "num_iterations": 2},
        {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 8},
    ],
    ids=str,
)
def test_the_weights_stay_with_their_completions(options, tmp_path):
    """TRL shuffles a generation, splits it over steps and repeats them: the mean of these is as before."""
    gradient_of = gradients_by_prompt(tmp_path, loss_type="grpo")
    ours, steps = gradients(tmp_path, num_train_epochs=2, loss_type="grpo", **options)
    pruned = [rows[::4] for rows in ours.generated[1]]
    weights_of = dict(zip(ours.plans[1].tolist(), ours.weights[1].tolist(), strict=True))
    assert max(weights_of.values()) > 1.5
    count = len(steps) // (3 + len(pruned))
    assert count == options.get("num_iterations", 1) * options.get("steps_per_generation", 1)
    by_generation = torch.stack(steps).view(-1, count, steps[0].numel()).mean(1)
    for chosen, step in zip(pruned, by_generation[3:], strict=True):
        expected = sum(weights_of[prompt] * gradient_of[prompt] for prompt in chosen) / 4
        assert torch.allclose(step, expected, atol=2e-6)


def test_the_expected_gradient_of_a_pruned_epoch_is_that_of_all_prompts(tmp_path):
    """A z-test in each coordinate over many epochs; the completions are sampled by the model."""
    options = {"loss_type": "dr_grpo", "scale_rewards": "none", "num_train_epochs": EPOCHS}
    options |= {"rollout_func": None, "reward_funcs": says_a_digit, "max_completion_length": 1}
    options |= {"per_device_train_batch_size": 8, "data": questions(8)}
    epochs = {}
    for name, config in [
        ("whole", WHOLE),
        ("pruned", InfoBatchConfig(delta=1.0, prune_ratio=0.75)),
    ]:
        ours, steps = gradients(tmp_path, infobatch=config, **options)
        counts = [len(ours.generated[epoch]) for epoch in range(EPOCHS)]
        sums = [part.sum(0) for part in torch.stack(steps).split(counts)]
        epochs[name] = torch.stack(sums[1:])[:, -2000:]  # the first epoch is whole anyway
    assert len(ours.pruner.savings.epochs) == EPOCHS
    assert ours.pruner.savings.fraction > 0.1
    whole, pruned = epochs["whole"], epochs["pruned"]
    error = ((whole.var(0) + pruned.var(0)) / len(whole)).sqrt()
    used = error > 0
    z = ((pruned.mean(0) - whole.mean(0)) / error)[used]
    assert used.sum() > 500
    assert z.abs().max() < 4.5
    assert 0.7 < z.std() < 1.3
    assert (whole.mean(0) / error)[used].abs().max() > 5  # there is something to be wrong about


def says_a_digit(completions, **kwargs):
    """The reward of a word that is a digit: about half of the vocabulary."""
    return [float(text.strip() in grpo_cases.DIGITS) for text in completions]


# What upstream has, it keeps.


class InGivenOrder(GRPOTrainer):
    """The plain trainer, with prompts in an order that is given."""

    orders = ()

    def _get_train_sampler(self, dataset=None):
        sampler = super()._get_train_sampler(dataset)
        rows = [
            index for batch in self.orders for _ in range(sampler.repeat_count) for index in batch
        ]

        class Given(torch.utils.data.Sampler):
            def __iter__(self):
                return iter(rows)

            def __len__(self):
                return len(rows)

        return Given()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_iterations": 2, "steps_per_generation": 2, "per_device_train_batch_size": 8},
        {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 8},
        {"scale_rewards": "batch"},
        {"multi_objective_aggregation": "normalize_then_sum"},
        {"mask_truncated_completions": True, "top_entropy_quantile": 0.5},
        {"use_adaptive_entropy": True, "entropy_coef": 0.01, "loss_type": "grpo"},
        {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1},
        {"beta": 0.1, "use_bias_correction_kl": True},
        {"importance_sampling_level": "sequence", "epsilon_high": 0.3, "num_iterations": 2},
        {"generation_batch_size": 32, "per_device_train_batch_size": 8},
    ],
    ids=str,
)
def test_whole_epochs_train_exactly_as_the_plain_trainer(options, tmp_path):
    ours = trainer(tmp_path, infobatch=WHOLE, num_train_epochs=1, **options)
    ours.train()
    InGivenOrder.orders = ours.generated[0]
    plain = trainer(tmp_path, InGivenOrder, num_train_epochs=1, **options)
    plain.train()
    assert plain.state.global_step == ours.state.global_step
    theirs = weights(plain)
    assert all(torch.equal(value, theirs[name]) for name, value in weights(ours).items())


@pytest.mark.parametrize("iterations", [1, 2])
@pytest.mark.parametrize("per_generation", [1, 2])
def test_generations_per_step(iterations, per_generation, tmp_path):
    """As many completions in a generation as without pruning, for full batches of prompts; fewer generations."""
    ours = trainer(
        tmp_path,
        rollout_func=fixed_rollout,
        num_iterations=iterations,
        steps_per_generation=per_generation,
        per_device_train_batch_size=16 // per_generation,
        num_train_epochs=3,
        learning_rate=0.0,
        infobatch=InfoBatchConfig(prune_ratio=0.75, delta=1.0),
        data=questions(40),
    )
    ours.train()
    for epoch, generations in ours.generated.items():
        assert all(len(rows) == 16 and len(set(rows)) == 4 for rows in generations)
        assert all(
            rows == [prompt for prompt in rows[::4] for _ in range(4)] for rows in generations
        )
        assert sorted(np.ravel(generations)[::4]) == sorted(ours.plans[epoch].tolist())
    counts = [len(ours.generated[epoch]) for epoch in range(3)]
    assert counts[0] == 10
    assert max(counts[1:]) < 10
    assert ours.state.global_step == sum(counts) * per_generation * iterations
    assert ours.state.epoch == 3.0
    assert ours.lr_scheduler.scheduler.last_epoch == 30 * per_generation * iterations


def test_max_steps_count_in_full_data_steps(tmp_path):
    ours = trainer(tmp_path, rollout_func=fixed_rollout, max_steps=9, num_train_epochs=-1)
    assert ours.pruner.num_epochs == 3
    ours.train()
    assert ours.state.global_step == sum(len(g) for g in ours.generated.values()) < 9
    assert ours.lr_scheduler.scheduler.last_epoch == 9


def test_logs(tmp_path, capsys):
    ours = trainer(
        tmp_path,
        rollout_func=fixed_rollout,
        logging_strategy="steps",
        logging_steps=1,
        learning_rate=0.0,
    )
    ours.train()
    steps = [record for record in ours.state.log_history if "reward" in record]
    zero = [record["infobatch/zero_spread_fraction"] for record in steps]
    assert zero == [record["frac_reward_zero_std"] for record in steps]
    effective = [record["infobatch/effective_prompts"] for record in steps]
    assert effective[:3] == [pytest.approx(4 * (1 - share)) for share in zero[:3]]
    assert all(
        number <= 4 * (1 - share) + 1e-6 for number, share in zip(effective, zero, strict=True)
    )
    saved = [record["infobatch/generations_saved"] for record in steps]
    assert saved == sorted(saved)
    assert saved[-1] == 4 * ours.pruner.savings.saved > 0
    assert "Saved" in capsys.readouterr().out


class NotingAdvantages(grpo_cases.Watched):
    """Keeps the largest advantage."""

    largest = 0.0

    def _record(self, rows, advantages):
        self.largest = max(self.largest, advantages.abs().max().item())
        super()._record(rows, advantages)


def test_equal_rewards_have_no_spread_whatever_rounding_leaves(tmp_path):
    """The mean of eight times 0.3 is not 0.3, and the rest is divided by a standard deviation of 0 + 1e-4."""
    ours = trainer(
        tmp_path,
        NotingAdvantages,
        reward_funcs=lambda completions, **kwargs: [0.3] * len(completions),
        rollout_func=fixed_rollout,
        num_generations=8,
        num_train_epochs=1,
        learning_rate=0.0,
        logging_strategy="steps",
        logging_steps=1,
    )
    ours.train()
    assert 1e-5 < ours.largest < 1e-2
    assert ours.pruner.scores.tolist() == [0.0] * 12
    steps = [record for record in ours.state.log_history if "reward" in record]
    assert [record["infobatch/zero_spread_fraction"] for record in steps] == [1.0] * 6
    assert [record["infobatch/effective_prompts"] for record in steps] == [0.0] * 6


@pytest.mark.parametrize("options", [{}, {"num_iterations": 2}, {"beta": 0.05}], ids=str)
def test_resuming_gives_the_same_bits(options, tmp_path):
    options = {"save_strategy": "steps", "save_steps": 2, **options}
    whole = trainer(tmp_path, **options)
    whole.train()
    resumed = trainer(tmp_path, **{**options, "save_strategy": "no"})
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    theirs = weights(whole)
    assert all(torch.equal(value, theirs[name]) for name, value in weights(resumed).items())
    assert torch.equal(resumed.pruner.scores, whole.pruner.scores)
    assert str(resumed.pruner.savings) == str(whole.pruner.savings)
    assert resumed.state.global_step == whole.state.global_step


@pytest.mark.parametrize(
    "options",
    [{"num_iterations": 2}, {"steps_per_generation": 2, "per_device_train_batch_size": 8}],
    ids=str,
)
def test_resuming_amid_a_generation_repeats_it(options, tmp_path):
    """TRL has not saved its completions, and generates for the same prompts again."""
    options = options | {
        "num_train_epochs": 2,
        "infobatch": InfoBatchConfig(prune_ratio=0.5, delta=1.0),
    }
    whole = trainer(tmp_path, save_strategy="steps", save_steps=7, **options)
    whole.train()
    assert len(whole.generated[1]) > 1, "the checkpoint is amid the first of several generations"
    resumed = trainer(tmp_path, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-7"))
    assert resumed.generated[1] == whole.generated[1]
    assert str(resumed.pruner.savings) == str(whole.pruner.savings)
    assert resumed.state.global_step == whole.state.global_step


def test_other_sizes_continue_between_epochs_and_raise_in_the_middle_of_one(tmp_path):
    """Three generations of four prompts make an epoch, or six of two."""
    saved = {"save_strategy": "steps", "save_steps": 1, "num_train_epochs": 3}
    trainer(tmp_path, **saved).train()
    smaller = {"num_train_epochs": 3, "per_device_train_batch_size": 8}
    resumed = trainer(tmp_path, **smaller)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    for epoch in (1, 2):
        prompts = [prompt for rows in resumed.generated[epoch] for prompt in rows[::4]]
        assert prompts == resumed.plans[epoch].tolist()
    assert set(resumed.lr_scheduler.get_last_lr()) == {0.0}
    assert resumed.state.global_step == resumed.state.max_steps
    assert resumed.state.epoch == 3.0
    with pytest.raises(
        ValueError,
        match=r"from the middle of an epoch, and generation batches of 8 completions where the "
        r"checkpoint has 16.*Expected the same sizes, or a checkpoint from the end of an epoch",
    ):
        trainer(tmp_path, **smaller).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_warm_scores_prune_the_first_epoch(tmp_path):
    first = trainer(tmp_path, rollout_func=fixed_rollout, num_train_epochs=1)
    first.train()
    first.pruner.export_scores(tmp_path / "spreads.csv")
    warm = InfoBatchConfig(prune_ratio=0.75, delta=1.0, initial_scores=tmp_path / "spreads.csv")
    second = trainer(tmp_path, rollout_func=fixed_rollout, num_train_epochs=1, infobatch=warm)
    second.train()
    assert second.pruner.savings.made == 8
    assert second.lr_scheduler.get_last_lr()[0] == 0.0


def test_policies_adapters_evaluation_and_two_rewards(tmp_path):
    ours = trainer(
        tmp_path,
        infobatch=InfoBatchConfig(policy=RandomPrune(0.4), delta=1.0),
        peft_config=LoraConfig(r=2, target_modules=["q_proj"]),
        reward_funcs=[right, says_a_digit],
        eval_dataset=questions(4),
        eval_strategy="epoch",
        per_device_eval_batch_size=16,
    )
    ours.train()
    # Seven of twelve are kept: one batch of four prompts, and an incomplete one that TRL drops.
    assert [len(ours.generated[epoch]) for epoch in range(4)] == [3, 1, 1, 1]
    assert len([record for record in ours.state.log_history if "eval_reward" in record]) == 4


def test_what_raises(tmp_path):
    with pytest.raises(TypeError, match=r"InfoBatchTrainer\(train_dataset=…\) got IterableDataset"):
        trainer(tmp_path, data=questions().to_iterable_dataset(), max_steps=4)
    with pytest.raises(ValueError, match=r"prune_ratio=…\) got 1.5, expected a share"):
        trainer(tmp_path, infobatch=InfoBatchConfig(prune_ratio=1.5))
    with pytest.raises(ValueError, match=r"got shuffle_dataset=False, expected True: the pruner"):
        trainer(tmp_path, shuffle_dataset=False)
    with pytest.raises(
        ValueError, match=r"shadow=\('auto',\)\), expected none: scores are spreads"
    ):
        trainer(tmp_path, infobatch=InfoBatchConfig(policy="none", shadow="auto"))
    ours = trainer(tmp_path)
    with pytest.raises(RuntimeError, match=r"generated for prompts without their indices"):
        ours._generate_and_score_completions([dict(row) for row in questions(4)] * 4)


def test_the_trainer_s_methods_are_those_that_the_mixin_was_written_for():
    """All that a step's loss knows of the model goes through this method."""
    assert "self._get_per_token_logps_and_entropies(" in _source(GRPOTrainer._compute_loss)
    assert "identity" in _source(GRPOTrainer.__init__)
    assert issubclass(InfoBatchGRPOTrainer, GRPOTrainer)


def _source(function):
    return inspect.getsource(function)


def test_page(tmp_path):
    block, _ = examples("docs/grpo.md")
    names = {
        "model": llama(),
        "args": arguments(tmp_path),
        "train_dataset": questions(),
        "tokenizer": tokenizer(),
        "reward": right,
    }
    exec(compile(block, "grpo.md", "exec"), names)
    assert names["trainer"].pruner.savings.epochs[0].made == 12
    assert names["trainer"].pruner.policy == SpreadPrune(0.75, batch=4)


# Two processes.


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    out = tmp_path_factory.mktemp("grpo")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    run = subprocess.run(
        [*command, "2", str(CASES), str(out)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CI": "1"},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return [torch.load(out / f"rank-{rank}.pt", weights_only=True) for rank in range(2)]


def test_two_ranks_share_the_groups(ranks):
    first, second = (results["whole"] for results in ranks)
    assert first["savings"] == second["savings"]
    assert first["steps"] == second["steps"]
    assert torch.equal(first["scores"], second["scores"])
    assert first["scores"].isfinite().all()
    assert all(
        torch.equal(value, second["weights"][name]) for name, value in first["weights"].items()
    )
    for epoch, plan in first["plans"].items():
        assert torch.equal(plan, second["plans"][epoch])
        pairs = zip(first["generated"][epoch], second["generated"][epoch], strict=True)
        both = [half + other for half, other in pairs]
        assert all(len(rows) == 8 and len(set(rows)) == 2 for rows in both)
        assert sorted(np.ravel(both)[::4]) == sorted(plan.tolist())
    assert any(len(plan) < 12 for plan in first["plans"].values())


def test_two_ranks_resume(ranks):
    for results in ranks:
        resumed, whole = results["resumed"], results["whole"]
        assert resumed["savings"] == whole["savings"]
        assert torch.equal(resumed["scores"], whole["scores"])
        same = (
            torch.equal(value, whole["weights"][name]) for name, value in resumed["weights"].items()
        )
        assert all(same)


@pytest.mark.parametrize("name", ["dr_grpo", "dapo"])
def test_the_gradient_of_two_ranks_is_the_weighted_mean_of_their_prompts_own(name, ranks, tmp_path):
    """Three prompts at once, with half of the second group on each rank."""
    gradient_of = gradients_by_prompt(tmp_path, loss_type=name)
    first, second = (results[name] for results in ranks)
    assert torch.equal(first["gradients"], second["gradients"])
    weights_of = dict(zip(first["order"].tolist(), first["row_weights"].tolist(), strict=True))
    assert len(weights_of) < 12
    assert max(weights_of.values()) > 1.5
    steps = first["gradients"][4:]
    generated = zip(first["generated"], second["generated"], strict=True)
    for (half, other), step in zip(generated, steps, strict=True):
        assert set(half) & set(other) == {half[-1]}
        prompts = set(half + other)
        assert len(prompts) == 3
        expected = sum(weights_of[prompt] * gradient_of[prompt] for prompt in prompts) / 3
        assert torch.allclose(step, expected, atol=2e-6)
