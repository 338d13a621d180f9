"""TRL's DPOTrainer with pruned pairs: exact weights, TRL's own loss, an error where pairs mix."""

import inspect
import re

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback
from trl import DPOConfig, DPOTrainer

from document_examples import examples
from infobatch.integrations.trl import InfoBatchConfig, InfoBatchDPOTrainer
from tiny_words import DIGITS, llama, tokenizer

SIZE = 16
MORE_LOSSES = (
    "hinge",
    "exo_pair",
    "nca_pair",
    "robust",
    "bco_pair",
    "sppo_hard",
    "apo_zero",
    "apo_down",
    "discopop",
    "sigmoid_norm",
)
WEIGHTS = [0.2, *[0.1] * 9]
MIXING_LOSSES = ("aot", "aot_unpaired", "sft")


@pytest.fixture(autouse=True)
def no_telemetry(monkeypatch):
    monkeypatch.setenv("CI", "1")


def pairs():
    rows = []
    for number in range(SIZE):
        first, second = number % 4, number // 4
        wrong = "a b c" if number % 2 else DIGITS[(first + second + 1) % 10]
        prompt = f"what is {DIGITS[first]} plus {DIGITS[second]}"
        rows.append(
            {"prompt": prompt, "chosen": f" {DIGITS[first + second]}", "rejected": f" {wrong}"}
        )
    return Dataset.from_list(rows)


class Noting(TrainerCallback):
    """Keeps the gradient of each optimizer step."""

    def __init__(self):
        self.gradients = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        used = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        self.gradients.append(torch.cat(used).clone())


class Watched(InfoBatchDPOTrainer):
    """Notes the pairs of each step, and the plans."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.visits, self.epochs, self.plans = [], [], {}

    def training_step(self, model, inputs, *rest):
        self.visits.append(inputs["infobatch_index"].tolist())
        self.epochs.append(self.pruner.epoch)
        self.plans[self.pruner.epoch] = self.pruner.plan
        return super().training_step(model, inputs, *rest)


def reference():
    """A model that differs from the one that is trained, so that the margins do."""
    model = llama()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


def trainer(folder, kind=Watched, *, infobatch=None, peft=False, callbacks=None, **options):
    quiet = {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 3,
        "learning_rate": 1e-2,
        "beta": 2.0,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "log_level": "error",
    }
    adapter = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    pruned = {"infobatch": infobatch or InfoBatchConfig(delta=1.0)}
    return kind(
        model=llama(),
        ref_model=None if peft else reference(),
        args=DPOConfig(str(folder), **(quiet | options)),
        train_dataset=pairs(),
        processing_class=tokenizer(),
        peft_config=adapter if peft else None,
        callbacks=callbacks,
        **(pruned if issubclass(kind, InfoBatchDPOTrainer) else {}),
    )


def gradients(folder, **options):
    noting = Noting()
    frozen = {"learning_rate": 0.0, "max_grad_norm": 0.0}
    torch.manual_seed(0)  # of the adapters
    ours = trainer(folder, callbacks=[noting], **frozen, **options)
    ours.train()
    return ours, noting.gradients


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"peft": True},
        {"loss_type": ["ipo"]},
        {"loss_type": list(MORE_LOSSES), "loss_weights": WEIGHTS, "label_smoothing": 0.1},
        {"f_divergence_type": "js_divergence", "ld_alpha": 0.5},
        {"precompute_ref_log_probs": True},
        {"use_weighting": True},
    ],
    ids=str,
)
def test_the_gradient_of_a_step_is_the_weighted_mean_of_its_pairs_own(options, tmp_path):
    whole = InfoBatchConfig(delta=0.0)
    single = {"per_device_train_batch_size": 1, "num_train_epochs": 1, "infobatch": whole}
    alone, gradients_of_pairs = gradients(tmp_path, **single, **options)
    gradient_of = {
        visit[0]: gradient for visit, gradient in zip(alone.visits, gradients_of_pairs, strict=True)
    }
    ours, steps = gradients(tmp_path, num_train_epochs=3, **options)
    assert [len(plan) < SIZE for plan in ours.plans.values()] == [False, True, True]
    weights = {
        epoch: dict(zip(plan.order.tolist(), plan.weights.tolist(), strict=True))
        for epoch, plan in ours.plans.items()
    }
    assert weights[1] != weights[2]
    for epoch, visit, step in zip(ours.epochs, ours.visits, steps, strict=True):
        expected = sum(weights[epoch][pair] * gradient_of[pair] for pair in visit) / len(visit)
        assert torch.allclose(step, expected, atol=1e-5), epoch
    # The scores are the standard loss, from TRL's own margins.
    assert torch.allclose(ours.pruner.scores, alone.pruner.scores, atol=1e-5)


def test_the_score_is_the_loss_of_a_pair(tmp_path):
    losses = []

    class Logged(Watched):
        def training_step(self, *args):
            losses.append(super().training_step(*args).item())
            return torch.tensor(losses[-1])

    config = InfoBatchConfig(delta=0.0)
    options = {"per_device_train_batch_size": 1, "num_train_epochs": 1, "learning_rate": 0.0}
    ours = trainer(tmp_path, Logged, infobatch=config, **options)
    ours.train()
    order = [visit[0] for visit in ours.visits]
    assert torch.allclose(ours.pruner.scores[order], torch.tensor(losses), atol=1e-5)


def test_the_forecast(tmp_path, capsys):
    followed = InfoBatchConfig(policy="none", shadow=("mean", "auto"))
    ours = trainer(tmp_path, infobatch=followed, num_train_epochs=6)
    ours.train()
    forecast = ours.pruner.forecast()
    assert [len(rule.epochs) for rule in forecast.rules.values()] == [6, 6]
    assert forecast.rules["mean"].left_out > 0.1
    assert str(forecast) in capsys.readouterr().out


def test_whole_epochs_train_exactly_as_the_plain_trainer(tmp_path):
    ours = trainer(tmp_path, infobatch=InfoBatchConfig(delta=0.0), num_train_epochs=1)
    ours.train()
    rows = [pair for visit in ours.visits for pair in visit]

    class InGivenOrder(DPOTrainer):
        def _get_train_sampler(self, *args):
            return rows

    plain = trainer(tmp_path, InGivenOrder, num_train_epochs=1)
    plain.train()
    theirs = plain.model.state_dict()
    assert all(torch.equal(v, theirs[name]) for name, v in ours.model.state_dict().items())


def test_resuming_gives_the_same_bits(tmp_path):
    whole = trainer(tmp_path, save_strategy="steps", save_steps=1)
    whole.train()
    resumed = trainer(tmp_path)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    theirs = whole.model.state_dict()
    assert all(torch.equal(v, theirs[name]) for name, v in resumed.model.state_dict().items())
    assert str(resumed.pruner.savings) == str(whole.pruner.savings)


def test_page(tmp_path):
    """The last block of docs/grpo.md."""
    _, block = examples("docs/grpo.md")
    names = {
        "InfoBatchConfig": InfoBatchConfig,
        "model": llama(),
        "ref_model": reference(),
        "dpo_args": trainer(tmp_path).args,
        "pairs": pairs(),
        "tokenizer": tokenizer(),
    }
    exec(compile(block, "grpo.md", "exec"), names)
    assert names["trainer"].pruner.savings.saved > 0


def test_every_loss_is_either_tested_or_raises():
    """One that TRL adds has to be looked at: does it mix the pairs of a batch?"""
    source = inspect.getsource(DPOTrainer._compute_loss)
    losses = set(re.findall(r'loss_type == "(\w+)"', source))
    assert losses == {"sigmoid", "ipo", *MORE_LOSSES, *MIXING_LOSSES}


def test_rows_of_several_sequences_raise(tmp_path):
    with pytest.raises(ValueError, match=r"InfoBatchTrainer got padding_free=True, expected False"):
        trainer(tmp_path, padding_free=True)


@pytest.mark.parametrize("name", MIXING_LOSSES)
def test_losses_that_mix_pairs_raise(name, tmp_path):
    with pytest.raises(
        ValueError, match=rf"got loss_type='{name}', expected a loss that is a mean"
    ):
        trainer(tmp_path, loss_type=[name])
