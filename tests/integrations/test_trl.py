"""TRL's SFTTrainer with LoRA: completion-only scores, its own loss, packing raises."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from torch.nn import functional
from trl import SFTConfig, SFTTrainer

from document_examples import examples
from infobatch.integrations.transformers import InfoBatchMixin
from infobatch.integrations.trl import InfoBatchConfig, InfoBatchSFTTrainer
from tiny_words import DIGITS, llama, tokenizer


@pytest.fixture(autouse=True)
def no_telemetry(monkeypatch):
    monkeypatch.setenv("CI", "1")


def sums(size=40):
    """Questions and answers; half of the answers are always the same, and so soon easy."""
    rows = []
    for number in range(size):
        first, second = number % 5, number // 5 % 5
        prompt = f"what is {DIGITS[first]} plus {DIGITS[second]}" + " tell me" * (number % 3)
        answer = DIGITS[first + second] if number % 2 else "a b c d e"
        rows.append({"prompt": prompt, "completion": f" {answer}"})
    return Dataset.from_list(rows)


def arguments(folder, **options):
    quiet = {
        "per_device_train_batch_size": 8,
        "num_train_epochs": 3,
        "learning_rate": 1e-2,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "log_level": "error",
        "max_length": 32,
    }
    return SFTConfig(str(folder), **(quiet | options))


def trainer(folder, kind=InfoBatchSFTTrainer, *, lora=True, data=None, infobatch=None, **options):
    pruned = {} if infobatch is None else {"infobatch": infobatch}
    peft = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0) if lora else None
    return kind(
        model=llama(),
        args=arguments(folder, **options),
        train_dataset=sums() if data is None else data,
        processing_class=tokenizer(),
        peft_config=peft,
        **pruned,
    )


def scores_by_hand(model, data, *, completion_only):
    """The mean loss of a row's tokens, or of its completion's, one row at a time."""
    words, scores = tokenizer(), []
    for row in data:
        prompt = words(row["prompt"])["input_ids"]
        ids = prompt + words(row["completion"])["input_ids"] + [words.eos_token_id]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0]
        losses = functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")
        scores.append(losses[len(prompt) - 1 if completion_only else 0 :].mean().item())
    return torch.tensor(scores)


@pytest.mark.parametrize("completion_only", [True, False])
def test_scores_are_means_over_the_trained_tokens(completion_only, tmp_path):
    ours = trainer(
        tmp_path,
        learning_rate=0.0,
        completion_only_loss=completion_only,
        infobatch=InfoBatchConfig(delta=1.0),
    )
    ours.train()
    expected = scores_by_hand(llama().eval(), sums(), completion_only=completion_only)
    assert torch.allclose(ours.pruner.scores, expected, atol=1e-5)
    mean = expected.mean()
    below = int((expected < mean).sum())
    kept = 40 - below + round(below / 2)
    assert [epoch.planned for epoch in ours.pruner.savings.epochs] == [40, kept, kept]


@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}])
def test_lora_trains_and_saves_passes(options, tmp_path):
    ours = trainer(
        tmp_path, gradient_accumulation_steps=2, infobatch=InfoBatchConfig(delta=1.0), **options
    )
    before = ours.model.state_dict()
    before = {name: value.clone() for name, value in before.items()}
    ours.train()
    changed = {
        n for n, value in ours.model.state_dict().items() if not torch.equal(value, before[n])
    }
    assert changed == {name for name in before if "lora_" in name}
    assert ours.pruner.savings.saved > 8
    assert ours.state.epoch == 3.0
    assert ours.lr_scheduler.get_last_lr()[0] == 0.0
    history = [record for record in ours.state.log_history if "infobatch/kept_fraction" in record]
    assert len(history) == 3


class _Orders(torch.utils.data.Sampler):
    def __init__(self, orders):
        self.orders, self.epoch = orders, 0

    def __iter__(self):
        return iter(self.orders[self.epoch])

    def __len__(self):
        return len(self.orders[0])

    def set_epoch(self, epoch):
        self.epoch = epoch


class Noting(InfoBatchSFTTrainer):
    """Notes the order of each epoch."""

    def training_step(self, model, inputs, *rest):
        self.__dict__.setdefault("orders", {}).setdefault(self.pruner.epoch, []).extend(
            inputs["infobatch_index"].tolist()
        )
        return super().training_step(model, inputs, *rest)


def test_the_forecast_is_logged_and_printed(tmp_path, capsys):
    followed = InfoBatchConfig(policy="none", shadow=("mean", "auto"))
    ours = trainer(tmp_path, infobatch=followed, num_train_epochs=6)
    ours.train()
    logged = [row for row in ours.state.log_history if "infobatch/forecast/mean/left_out" in row]
    assert len(logged) == 6
    rule = ours.pruner.forecast().rules["mean"]
    assert logged[-1]["infobatch/forecast/mean/saving"] == pytest.approx(rule.saving)
    assert rule.left_out > 0.1
    assert str(ours.pruner.forecast()) in capsys.readouterr().out


def test_whole_epochs_train_exactly_as_the_plain_sft_trainer(tmp_path):
    options = {"gradient_accumulation_steps": 2, "num_train_epochs": 2}
    ours = trainer(tmp_path, Noting, infobatch=InfoBatchConfig(delta=0.0), **options)
    ours.train()

    class InGivenOrder(SFTTrainer):
        def _get_train_sampler(self, train_dataset=None):
            return _Orders(ours.orders)

    plain = trainer(tmp_path, InGivenOrder, **options)
    plain.train()
    theirs = plain.model.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.model.state_dict().items())


def test_pruned_steps_are_the_weighted_loss_of_the_trained_tokens(tmp_path):
    """One SGD step in a pruned epoch, against the same by hand."""
    ours = trainer(
        tmp_path,
        lora=False,
        per_device_train_batch_size=64,
        num_train_epochs=2,
        max_grad_norm=0.0,
        optim="sgd",
        learning_rate=0.5,
        lr_scheduler_type="constant",
        infobatch=InfoBatchConfig(delta=1.0),
    )
    plans = []
    step = ours.training_step

    def noting(*args):
        plans.append(ours.pruner.plan)
        return step(*args)

    ours.training_step = noting
    ours.train()

    model, data, words = llama(), sums(), tokenizer()
    for plan in plans:
        total, count = 0.0, 0
        for index, weight in zip(plan.order.tolist(), plan.weights.tolist(), strict=True):
            prompt = words(data[index]["prompt"])["input_ids"]
            answer = [*words(data[index]["completion"])["input_ids"], words.eos_token_id]
            logits = model(input_ids=torch.tensor([prompt + answer])).logits[0]
            losses = functional.cross_entropy(
                logits[len(prompt) - 1 : -1], torch.tensor(answer), reduction="sum"
            )
            total, count = total + weight * losses, count + len(answer)
        model.zero_grad()
        (total / count).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.5 * parameter.grad)
    assert len(plans) == 2
    assert len(plans[1]) < 40
    for name, value in model.state_dict().items():
        assert torch.allclose(ours.model.state_dict()[name], value, atol=1e-5), name


def test_rows_that_trl_drops_are_not_counted(tmp_path):
    rows = [*sums(20).to_list(), {"prompt": " ".join(["me"] * 40), "completion": " a"}]
    ours = trainer(tmp_path, data=Dataset.from_list(rows))
    assert ours.pruner.num_samples == len(ours.train_dataset) == 20
    ours.train()
    assert ours.pruner.savings.epochs[0].made == 20


def test_resuming_gives_the_same_bits(tmp_path):
    options = {"infobatch": InfoBatchConfig(delta=1.0), "save_strategy": "steps", "save_steps": 1}
    whole = trainer(tmp_path, **options)
    whole.train()
    resumed = trainer(tmp_path, **{**options, "save_strategy": "no"})
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-7"))
    theirs = whole.model.state_dict()
    assert all(torch.equal(v, theirs[name]) for name, v in resumed.model.state_dict().items())
    assert torch.equal(resumed.pruner.scores, whole.pruner.scores)
    assert str(resumed.pruner.savings) == str(whole.pruner.savings)


@pytest.mark.parametrize("options", [{"packing": True}, {"padding_free": True, "max_length": None}])
def test_several_sequences_in_a_row_raise(options, tmp_path):
    name = next(iter(options))
    with pytest.raises(ValueError, match=rf"got {name}=True, expected False: it puts several"):
        trainer(tmp_path, **options)


def test_a_loss_of_another_kind_is_noticed(tmp_path):
    with pytest.raises(RuntimeError, match=r"Override per_sample_losses"):
        trainer(tmp_path, loss_type="dft").train()


def test_the_mixin_goes_before_sft_trainer(tmp_path):
    class Own(InfoBatchMixin, SFTTrainer):
        pass

    ours = trainer(tmp_path, Own)
    assert ours.pruner.num_samples == 40
    assert ours.pruner.policy.ratio == 0.5


def test_what_trl_s_fused_head_returns_is_what_the_scores_are_made_of(tmp_path):
    """Fails loudly when a release of TRL changes it."""
    ours = trainer(tmp_path)
    batch = next(iter(ours.get_train_dataloader()))
    batch.pop("infobatch_index")
    outputs = ours.model(**batch, fused_lm_head=True)
    assert outputs.log_probs.shape == outputs.label_mask.shape
    assert len(outputs.log_probs) == 8
    assert (outputs.log_probs[~outputs.label_mask] == 0).all()


def test_page(tmp_path):
    """TRL's block of docs/transformers.md."""
    *_, block = examples("docs/transformers.md")
    names = {
        "model": llama(),
        "args": arguments(tmp_path),
        "train_dataset": sums(),
        "tokenizer": tokenizer(),
        "peft_config": LoraConfig(r=4, target_modules=["q_proj"]),
    }
    exec(compile(block, "transformers.md", "exec"), names)
    assert names["trainer"].pruner.savings.saved > 0
