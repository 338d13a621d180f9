"""The Hugging Face Trainer with pruned epochs: its loss, schedule, epochs and checkpoints stay right."""

import inspect
import math
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
import torch
import transformers
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset
from transformers import (
    DataCollatorWithFlattening,
    Trainer,
    TrainerCallback,
    default_data_collator,
    get_linear_schedule_with_warmup,
)

import infobatch
from document_examples import examples
from infobatch import Indexed, Pruner, with_index
from infobatch.integrations.transformers import InfoBatchConfig, InfoBatchMixin, InfoBatchTrainer
from infobatch.integrations.transformers.losses import from_outputs
from infobatch.integrations.transformers.support import check_interface
from infobatch.per_sample import PerSample
from infobatch.policies import KakurenboPrune
from tiny_models import (
    TASKS,
    Watched,
    arguments,
    bert,
    classified,
    labelled_tokens,
    llama,
    same_bits,
    trainer,
    weights,
)

ALWAYS = InfoBatchConfig(delta=1.0)
NEVER = InfoBatchConfig(delta=0.0)


class InGivenOrder(Trainer):
    """The plain Trainer, visiting the samples in given orders, one per epoch."""

    orders = None

    def _get_train_sampler(self, train_dataset=None):
        return _Orders(self.orders)


class _Orders(torch.utils.data.Sampler):
    def __init__(self, orders):
        self.orders, self.epoch = orders, 0

    def __iter__(self):
        return iter(self.orders[self.epoch].tolist())

    def __len__(self):
        return len(self.orders[0])

    def set_epoch(self, epoch):
        self.epoch = epoch


def plain_with(orders, folder, task, *, compute_loss_func=None, **options):
    model, data = TASKS[task]
    plain = InGivenOrder(
        model=model(),
        args=arguments(folder, **options),
        train_dataset=data(48),
        compute_loss_func=compute_loss_func,
    )
    plain.orders = orders
    return plain


# The loss: the Trainer's own, rescaled.


@pytest.mark.parametrize(
    ("task", "accumulate"), [*((task, 4) for task in TASKS), ("causal language model", 1)]
)
def test_whole_epochs_train_exactly_as_the_plain_trainer(task, accumulate, tmp_path):
    options = {"num_train_epochs": 2, "gradient_accumulation_steps": accumulate}
    ours = trainer(tmp_path, task, infobatch=NEVER, **options)
    ours.train()
    plain = plain_with([ours.plans[0], ours.plans[1]], tmp_path, task, **options)
    plain.train()
    assert same_bits(weights(ours.model), weights(plain.model))


@pytest.mark.parametrize("task", ["sequence classification", "causal language model"])
def test_label_smoothing_is_the_trainer_s(task, tmp_path):
    options = {"label_smoothing_factor": 0.2, "gradient_accumulation_steps": 2}
    ours = trainer(tmp_path, task, infobatch=NEVER, num_train_epochs=1, **options)
    ours.train()
    plain = plain_with([ours.plans[0]], tmp_path, task, num_train_epochs=1, **options)
    plain.train()
    assert same_bits(weights(ours.model), weights(plain.model))


class Checked(Watched):
    """Works out each step's loss once more, from the plain Trainer's losses of single samples."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        model.eval()  # without dropout, so that it can be computed twice
        plan = self.pruner.plan
        weight_of = dict(zip(plan.order.tolist(), plan.weights.tolist(), strict=True))
        weights = [weight_of[index] for index in self._batch.tolist()]

        def plain(start, stop):
            rows = {key: value[start:stop] for key, value in inputs.items()}
            loss = Trainer.compute_loss(self, model, rows, num_items_in_batch=num_items_in_batch)
            return loss.item()

        single = [plain(row, row + 1) for row in range(len(weights))]
        whole_batch = plain(0, len(weights))
        parts = torch.tensor(single)
        if whole_batch != pytest.approx(sum(single), rel=1e-4):  # a mean over this batch's items
            items = inputs["labels"].reshape(len(weights), -1).ne(-100).sum(1)
            parts = parts * items / items.sum()
        assert whole_batch == pytest.approx(parts.sum().item(), rel=1e-4)
        expected = (parts * torch.tensor(weights)).sum().item()
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        assert loss.item() == pytest.approx(expected, rel=1e-4)
        if len(set(weights)) > 1:
            assert loss.item() != pytest.approx(whole_batch, rel=1e-4)
            self.rescaled = True
        return loss


@pytest.mark.parametrize(
    ("task", "smoothing"), [*((task, 0.0) for task in TASKS), ("causal language model", 0.2)]
)
def test_pruned_epochs_train_on_the_weighted_loss(task, smoothing, tmp_path):
    options = {"num_train_epochs": 2, "gradient_accumulation_steps": 4}
    ours = trainer(tmp_path, task, kind=Checked, label_smoothing_factor=smoothing, **options)
    ours.train()
    assert ours.rescaled
    assert ours.pruner.savings.saved > 5


def tokens_loss_by_hand(model, batch, plan, scores, items):
    """Sum of weight × loss over the tokens of each sample, a loop; the scores on the way."""
    weight_of = dict(zip(plan.order.tolist(), plan.weights.tolist(), strict=True))
    total = 0.0
    for index, row in batch:
        logits = model(
            input_ids=row["input_ids"][None], attention_mask=row["attention_mask"][None]
        ).logits[0]
        loss = functional.cross_entropy(logits[:-1], row["labels"][1:], reduction="sum")
        scores[index] = loss.item() / int((row["labels"][1:] != -100).sum())
        total = total + weight_of[index] * loss / items
    return total


def test_causal_language_model_against_a_plain_loop(tmp_path):
    """Token-weighted over an accumulated batch, weights by sample, score a sequence's own mean."""
    data, epochs, batch, accumulate = labelled_tokens(48), 3, 8, 2
    options = {"gradient_accumulation_steps": accumulate, "max_grad_norm": 0.0}
    model = llama(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = get_linear_schedule_with_warmup(optimizer, 2, 3 * epochs)
    ours = trainer(
        tmp_path, "causal language model", model=model, optimizers=(optimizer, schedule), **options
    )
    ours.train()

    model = llama().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    pruner = Pruner(48, epochs, delta=1.0)
    schedule = infobatch.paced(
        get_linear_schedule_with_warmup(optimizer, 2, 3 * epochs), pruner, steps_per_epoch=3
    )
    scores, rates = torch.full((48,), math.nan), []
    for epoch in range(epochs):
        plan = pruner.plan
        assert torch.equal(plan.order, ours.plans[epoch])
        for start in range(0, len(plan), batch * accumulate):
            group = plan.order[start : start + batch * accumulate].tolist()
            items = sum(int((data[index]["labels"][1:] != -100).sum()) for index in group)
            rates += [optimizer.param_groups[0]["lr"]]
            pairs = [(index, data[index]) for index in group]
            tokens_loss_by_hand(model, pairs, plan, scores, items).backward()
            pruner.update(scores[group], index=torch.tensor(group))
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        pruner.set_epoch(epoch + 1)
    assert torch.allclose(ours.pruner.scores, scores, atol=1e-5)
    assert [rate for _, rate in sorted(set(ours.rates))] == rates
    assert str(ours.pruner.savings) == str(pruner.savings)
    assert pruner.savings.saved > 5
    for name, value in ours.model.state_dict().items():
        assert torch.allclose(value, model.state_dict()[name], atol=1e-5), name


class Logged(Watched):
    """Notes what is logged of each step, and the plain mean of its losses."""

    def training_step(self, *args, **kwargs):
        logged = super().training_step(*args, **kwargs)
        self.losses = [*getattr(self, "losses", []), (logged.item(), self.pruner.last_loss.item())]
        return logged


def test_the_logged_loss_is_that_without_weights(tmp_path):
    """With weights it would jump where pruning begins."""
    ours = trainer(tmp_path, kind=Logged, num_train_epochs=3)
    ours.train()
    assert ours.pruner.savings.saved > 0
    for logged, plain in ours.losses:
        assert logged == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize("policy", [None, "quantile"])
def test_same_plans_scores_and_savings_as_the_plain_pytorch_loop(policy, tmp_path):
    data, epochs = classified(48), 4
    options = {"max_grad_norm": 0.0, "num_train_epochs": epochs, "lr_scheduler_type": "cosine"}
    model = bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    first = weights(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    config = InfoBatchConfig(delta=0.75, seed=3, policy=policy)
    ours = trainer(tmp_path, model=model, optimizers=(optimizer, None), infobatch=config, **options)
    ours.train()

    model = bert()
    model.load_state_dict(first)
    model.eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    pruner = Pruner(48, epochs, delta=0.75, seed=3, policy=policy)

    def collate(rows):
        return default_data_collator([{k: v for k, v in r.items() if k != "unused"} for r in rows])

    loader = DataLoader(Indexed(data), 8, sampler=pruner.sampler, collate_fn=with_index(collate))
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, 0, epochs * len(loader))
    schedule = infobatch.paced(schedule, pruner)
    rates = []
    for epoch in range(epochs):
        pruner.set_epoch(epoch)
        assert torch.equal(pruner.plan.order, ours.plans[epoch])
        for index, batch in loader:
            labels = batch.pop("labels")
            losses = functional.cross_entropy(model(**batch).logits, labels, reduction="none")
            pruner.update(losses, index=index).backward()
            rates.append(schedule.get_last_lr()[0])
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    assert [rate for _, rate in ours.rates] == pytest.approx(rates, abs=1e-12)
    assert torch.allclose(ours.pruner.scores, pruner.scores, atol=1e-5)
    assert str(ours.pruner.savings) == str(pruner.savings)
    assert pruner.savings.saved > 10
    for name, value in ours.model.state_dict().items():
        assert torch.allclose(value, model.state_dict()[name], atol=1e-5), name


def test_compute_loss_func_with_a_loss_a_sample(tmp_path):
    def by_sample(outputs, labels, num_items_in_batch=None):
        return functional.cross_entropy(outputs.logits, labels, reduction="none")

    def reduced(outputs, labels, num_items_in_batch=None):
        return by_sample(outputs, labels).sum() / num_items_in_batch

    options = {"gradient_accumulation_steps": 4, "num_train_epochs": 1}
    task = "sequence classification"
    ours = trainer(tmp_path, infobatch=NEVER, compute_loss_func=by_sample, **options)
    ours.train()
    plain = plain_with([ours.plans[0]], tmp_path, task, compute_loss_func=reduced, **options)
    plain.train()
    for name, value in weights(ours.model).items():
        assert torch.allclose(value, plain.model.state_dict()[name], atol=1e-6), name
    assert ours.compute_loss_func is by_sample

    def with_scores(outputs, labels, num_items_in_batch=None):
        losses = by_sample(outputs, labels)
        return PerSample(losses, torch.arange(float(len(labels))))

    scored = trainer(tmp_path, compute_loss_func=with_scores)
    scored.train()
    assert scored.pruner.savings.saved > 0
    assert set(scored.pruner.scores.tolist()) <= set(map(float, range(8)))


@pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
@pytest.mark.filterwarnings(r"ignore:refresh\(\) was not called")
def test_extras_of_compute_loss_func_reach_the_policy(tmp_path):
    def with_extras(outputs, labels, num_items_in_batch=None):
        losses = functional.cross_entropy(outputs.logits, labels, reduction="none")
        sure = {"confidence": torch.ones(len(labels)), "correct": torch.ones(len(labels))}
        return PerSample(losses, losses.detach(), sure)

    config = InfoBatchConfig(policy=KakurenboPrune(extras=True), delta=1.0)
    extended = trainer(tmp_path, infobatch=config, compute_loss_func=with_extras)
    extended.train()
    assert extended.pruner.savings.saved > 0


def test_compute_loss_func_with_a_scalar_raises(tmp_path):
    def scalar(outputs, labels, num_items_in_batch=None):
        return functional.cross_entropy(outputs.logits, labels)

    with pytest.raises(
        TypeError, match=r"compute_loss_func returned a scalar, expected one loss per sample"
    ):
        trainer(tmp_path, compute_loss_func=scalar).train()


class Penalised(torch.nn.Module):
    """A model whose loss has a part that belongs to no sample."""

    def __init__(self, penalty):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(24, 2)
        self.penalty = penalty

    def forward(self, input_ids, labels):
        logits = self.embed(input_ids).mean(1)
        loss = functional.cross_entropy(logits, labels)
        return {"loss": loss + self.penalty * self.embed.weight.square().sum(), "logits": logits}


def test_a_loss_that_is_not_its_samples_mean_is_noticed_and_a_hook_helps(tmp_path):
    trainer(tmp_path, model=Penalised(0.0)).train()
    with pytest.raises(
        RuntimeError,
        match=r"(?s)compute_loss\(\) got a loss of .* first batch, but.*"
        r"Override per_sample_losses",
    ):
        trainer(tmp_path, model=Penalised(0.1)).train()

    class Own(Watched):
        def per_sample_losses(self, model, inputs, outputs):
            return functional.cross_entropy(outputs["logits"], inputs["labels"], reduction="none")

    ours = trainer(tmp_path, model=Penalised(0.1), kind=Own)
    ours.train()
    assert ours.pruner.savings.saved > 0


def test_outputs_without_logits_raise(tmp_path):
    class LossAlone(Penalised):
        def forward(self, input_ids, labels):
            return {"loss": super().forward(input_ids, labels)["loss"]}

    with pytest.raises(TypeError, match=r"cannot tell the losses of single samples .* LossAlone"):
        trainer(tmp_path, model=LossAlone(0.0)).train()


def test_a_second_forward_of_a_batch_is_weighted_and_not_counted(tmp_path):
    class Twice(Watched):
        def compute_loss(self, model, inputs, **options):
            first = super().compute_loss(model, dict(inputs), **options)
            second = super().compute_loss(model, dict(inputs), **options)
            assert torch.allclose(first, second)
            return (first + second) / 2

    model = bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ours = trainer(tmp_path, model=model, kind=Twice)
    ours.train()
    model = bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    once = trainer(tmp_path, model=model)
    once.train()
    assert ours.pruner.savings == once.pruner.savings
    assert torch.allclose(ours.pruner.scores, once.pruner.scores, atol=1e-4)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # torch's own, when flags are set
def test_bfloat16_autocast(tmp_path):
    ours = trainer(tmp_path, "causal language model", bf16=True)
    with torch.backends.mkldnn.flags(enabled=False):  # dies on some virtual machines
        ours.train()
    assert ours.pruner.savings.saved > 0
    assert ours.pruner.scores.isfinite().all()


# The batch and the loader.


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["list", "datasets"])
def test_the_batch_is_the_collator_s_and_the_index(kind, workers, tmp_path):
    rows = classified(20)
    data = (
        rows
        if kind == "list"
        else datasets.Dataset.from_list(
            [{k: torch.as_tensor(v).tolist() for k, v in row.items()} for row in rows]
        )
    )
    ours = InfoBatchTrainer(
        model=bert(), args=arguments(tmp_path, dataloader_num_workers=workers), train_dataset=data
    )
    seen = []
    for batch in ours.get_train_dataloader():
        index = batch.pop("infobatch_index").tolist()
        seen += index
        expected = default_data_collator(
            [{k: v for k, v in rows[i].items() if k != "unused"} for i in index]
        )
        assert batch.keys() == expected.keys()
        assert all(torch.equal(batch[key], expected[key]) for key in batch)
    assert sorted(seen) == list(range(20))


def test_scores_are_right_with_workers_and_datasets(tmp_path):
    rows = [{k: torch.as_tensor(v).tolist() for k, v in row.items()} for row in classified(48)]
    by_workers = []
    for data, workers in [(rows, 0), (datasets.Dataset.from_list(rows), 2)]:
        ours = Watched(
            model=bert(),
            args=arguments(tmp_path, dataloader_num_workers=workers),
            train_dataset=data,
            infobatch=ALWAYS,
        )
        ours.train()
        assert ours.pruner.savings.saved > 0
        assert all(ours.visits[e] == ours.plans[e].tolist() for e in ours.plans)
        by_workers.append(ours.pruner.scores)
    assert torch.equal(*by_workers)


@pytest.mark.parametrize("size", [48, 45])
def test_incomplete_batches_are_dropped_where_asked(size, tmp_path):
    ours = trainer(tmp_path, size=size, dataloader_drop_last=True, gradient_accumulation_steps=2)
    ours.train()
    for epoch, visited in ours.visits.items():
        assert len(visited) == len(ours.plans[epoch]) // 8 * 8
    assert ours.state.epoch == 3
    assert set(ours.lr_scheduler.get_last_lr()) == {0.0}


def test_evaluation_and_prediction_see_plain_batches(tmp_path):
    ours = trainer(tmp_path, eval_dataset=classified(16), eval_strategy="epoch")
    plain = Trainer(model=ours.model, args=ours.args, eval_dataset=classified(16))
    ours.train()
    assert "infobatch_index" not in next(iter(ours.get_eval_dataloader()))
    assert ours.evaluate()["eval_loss"] == plain.evaluate()["eval_loss"]
    predicted, expected = ours.predict(classified(16)), plain.predict(classified(16))
    assert (predicted.predictions == expected.predictions).all()


# The run: schedule, epochs, strategies.


class Watch(TrainerCallback):
    """Notes what fires when."""

    def __init__(self):
        self.epochs, self.evaluated, self.saved, self.leaks = [], [], [], 0

    def on_epoch_begin(self, args, state, control, model, **kwargs):
        self.leaks += any(p.grad is not None and p.grad.any() for p in model.parameters())

    def on_epoch_end(self, args, state, control, **kwargs):
        self.epochs.append(state.epoch)

    def on_evaluate(self, args, state, control, **kwargs):
        self.evaluated.append((state.global_step, state.epoch))

    def on_save(self, args, state, control, **kwargs):
        self.saved.append((state.global_step, state.epoch))


@pytest.mark.parametrize("name", ["linear", "cosine", "constant_with_warmup"])
def test_schedules_advance_by_a_full_epoch_each_epoch_and_end_at_their_end(name, tmp_path):
    steps, epochs = 6, 4
    reference = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-2)
    expected = transformers.get_scheduler(name, reference, 3, steps * epochs)
    rates = []
    for _ in range(steps * epochs):
        rates.append(expected.get_last_lr()[0])
        reference.step()
        expected.step()
    ours = trainer(tmp_path, lr_scheduler_type=name, warmup_steps=3, num_train_epochs=epochs)
    ours.train()
    assert ours.pruner.savings.saved > 8
    assert len(ours.rates) < len(rates)
    made = 0
    for epoch in range(epochs):
        assert ours.rates[made][1] == pytest.approx(rates[epoch * steps], abs=1e-12)
        made += math.ceil(len(ours.plans[epoch]) / 8)
    assert set(ours.lr_scheduler.get_last_lr()) == set(expected.get_last_lr())


def test_a_scheduler_of_the_user_s_own_is_paced_too(tmp_path):
    model = bert()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4 * 6 + 1)
    ours = trainer(tmp_path, model=model, optimizers=(optimizer, schedule), num_train_epochs=4)
    ours.train()
    assert schedule.last_epoch == 24
    assert ours.pruner.savings.saved > 0


def test_a_plateau_scheduler_is_left_alone(tmp_path):
    ours = trainer(
        tmp_path,
        lr_scheduler_type="reduce_lr_on_plateau",
        eval_dataset=classified(8),
        eval_strategy="epoch",
        metric_for_best_model="eval_loss",
    )
    ours.train()
    assert isinstance(ours.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_epochs_are_whole_and_strategies_fire_once_an_epoch(accumulate, tmp_path):
    watch = Watch()
    ours = trainer(
        tmp_path,
        size=45,
        callbacks=[watch],
        eval_dataset=classified(8),
        eval_strategy="epoch",
        save_strategy="epoch",
        gradient_accumulation_steps=accumulate,
    )
    ours.train()
    assert ours.pruner.savings.saved > 0
    assert watch.epochs == [1.0, 2.0, 3.0]
    assert [epoch for _, epoch in watch.evaluated] == [1.0, 2.0, 3.0]
    assert [epoch for _, epoch in watch.saved] == [1.0, 2.0, 3.0]
    assert watch.leaks == 0
    steps = sum(math.ceil(math.ceil(len(plan) / 8) / accumulate) for plan in ours.plans.values())
    assert ours.state.global_step == ours.state.max_steps == steps
    assert ours.pruner.epoch == 3
    assert len(ours.pruner.savings.epochs) == 3


def test_strategies_by_steps_fire_at_their_steps_and_at_the_end(tmp_path):
    watch = Watch()
    ours = trainer(
        tmp_path,
        callbacks=[watch],
        eval_dataset=classified(8),
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=4,
        save_total_limit=2,
    )
    ours.train()
    last = ours.state.global_step
    expected = [*range(4, last, 4), last]
    assert [step for step, _ in watch.evaluated] == expected
    assert [step for step, _ in watch.saved] == expected
    assert watch.evaluated[-1][1] == 3.0
    kept = {path.name for path in tmp_path.glob("checkpoint-*")}
    assert kept == {f"checkpoint-{step}" for step in expected[-2:]}


def test_broken_epochs_and_max_steps_count_in_full_data_steps(tmp_path):
    half = trainer(tmp_path, num_train_epochs=2.5)
    assert half.pruner.num_epochs == 3
    half.train()
    steps = [math.ceil(len(plan) / 8) for plan in half.plans.values()]
    assert (
        half.state.global_step == half.state.max_steps == sum(steps[:2]) + math.ceil(steps[2] / 2)
    )
    assert 2.4 < half.state.epoch < 2.7
    assert set(half.lr_scheduler.get_last_lr()) == {0.0}

    limited = trainer(tmp_path, max_steps=15)
    assert limited.pruner.num_epochs == 3
    limited.train()
    assert limited.state.global_step == half.state.global_step < 15
    assert same_bits(weights(limited.model), weights(half.model))
    short = trainer(tmp_path, max_steps=4)
    short.train()
    assert short.state.global_step == 4
    assert short.pruner.savings.made == 32


def test_training_twice_begins_anew(tmp_path):
    ours = trainer(tmp_path)
    ours.train()
    first = ours.pruner
    ours.train()
    assert ours.pruner is not first
    assert ours.state.epoch == 3
    assert set(ours.lr_scheduler.get_last_lr()) == {0.0}
    assert ours.pruner.savings.epochs[0].planned == 48
    ours.train_dataset = classified(32)
    ours.train()
    assert ours.pruner.num_samples == 32


def test_the_batch_size_that_fits_is_found(tmp_path):
    class TooLarge(Watched):
        def compute_loss(self, model, inputs, **options):
            if len(inputs["labels"]) > 4:
                raise RuntimeError("CUDA out of memory.")
            return super().compute_loss(model, inputs, **options)

    ours = trainer(tmp_path, kind=TooLarge, auto_find_batch_size=True)
    ours.train()
    assert ours._train_batch_size < 8
    assert ours.state.epoch == 3
    assert ours.pruner.savings.epochs[0].made == 48
    assert ours.pruner.savings.saved > 0


# What is reported.


def test_the_forecast_is_logged_and_printed(tmp_path, capsys):
    followed = InfoBatchConfig(policy="none", shadow=("auto", "mean"))
    ours = trainer(tmp_path, infobatch=followed, num_train_epochs=6)
    ours.train()
    logs = [r for r in ours.state.log_history if "infobatch/forecast/auto/left_out" in r]
    assert [record["epoch"] for record in logs] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    saving = ours.pruner.forecast().rules["mean"].saving
    assert logs[-1]["infobatch/forecast/mean/saving"] == pytest.approx(saving)
    assert str(ours.pruner.forecast()) in capsys.readouterr().out


def test_logs_progress_bar_and_the_savings_line(tmp_path, capsys):
    totals = []

    class Totals(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            bars = [getattr(c, "training_bar", None) for c in ours.callback_handler.callbacks]
            totals.append(next(bar for bar in bars if bar is not None).total)

    options = {"logging_strategy": "epoch", "disable_tqdm": False}
    ours = trainer(tmp_path, callbacks=[Totals()], num_train_epochs=4, **options)
    ours.train()
    logs = [record for record in ours.state.log_history if "infobatch/kept_fraction" in record]
    assert [record["epoch"] for record in logs] == [1.0, 2.0, 3.0, 4.0]
    assert all("infobatch/threshold" in record for record in logs[1:])
    assert logs[-1]["infobatch/samples_saved"] == ours.pruner.savings.saved > 0
    assert [r["epoch"] for r in ours.state.log_history if "loss" in r] == [1.0, 2.0, 3.0, 4.0]
    assert totals[0] == 24
    assert totals[-1] == ours.state.global_step < 24
    assert totals == sorted(totals, reverse=True)
    assert capsys.readouterr().out.splitlines()[-1] == str(ours.pruner.savings)
    output = [record for record in ours.state.log_history if "train_samples_per_second" in record]
    made = output[0]["train_samples_per_second"] * output[0]["train_runtime"]
    assert made == pytest.approx(ours.pruner.savings.made, rel=0.05)


def test_tensorboard_gets_curves(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "runs"))
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    ours = trainer(tmp_path, report_to=["tensorboard"])
    ours.train()
    written = events.EventAccumulator(str(tmp_path / "runs"))
    written.Reload()
    curve = written.Scalars("train/infobatch/kept_fraction")
    assert [point.value for point in curve] == pytest.approx(
        [epoch.kept_fraction for epoch in ours.pruner.savings.epochs]
    )
    assert {"train/infobatch/threshold", "train/infobatch/samples_saved"} <= set(
        written.Tags()["scalars"]
    )


def test_wandb_gets_curves(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    wandb.teardown()  # it reads the environment once per process, and another test may have used it
    ours = trainer(tmp_path, report_to=["wandb"])
    ours.train()
    summary = dict(wandb.run.summary)
    assert Path(wandb.run.dir).is_relative_to(tmp_path), "and not in the repository"
    wandb.finish()
    assert summary["train/infobatch/samples_saved"] == ours.pruner.savings.saved


# Checkpoints.


def everything(ours):
    """All that must agree between a run with and one without an interruption."""
    state = ours.pruner.state_dict()
    return {
        **weights(ours.model),
        "scores": state["columns"]["score"],
        "history": torch.tensor(
            [[row["epoch"], row["planned"], row["made"]] for row in state["history"]]
        ),
        "plan": ours.pruner.plan.order,
        "rate": torch.tensor(ours.lr_scheduler.get_last_lr()),
        "steps": torch.tensor([ours.state.global_step, ours.state.max_steps]),
        "epoch": torch.tensor(ours.state.epoch, dtype=torch.float64),
    }


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("sequence classification", {"dataloader_drop_last": True}),
        (
            "causal language model",
            {"gradient_accumulation_steps": 2, "lr_scheduler_type": "cosine"},
        ),
    ],
)
def test_resuming_gives_the_same_bits(task, options, tmp_path):
    # BERT and the small Llama have dropout: the random state must be right too.
    options = {"save_strategy": "steps", "save_steps": 1, "size": 45, **options}
    whole = trainer(tmp_path / "whole", task, **options)
    whole.train()
    expected = everything(whole)
    assert whole.pruner.savings.saved > 0
    last, first_epoch = (
        whole.state.global_step,
        math.ceil(45 / 8 / whole.args.gradient_accumulation_steps),
    )
    if whole.args.dataloader_drop_last:
        first_epoch = 5
    for step in (2, first_epoch, first_epoch + 1, last - 1, last):
        resumed = trainer(tmp_path / "whole", task, **{**options, "save_strategy": "no"})
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        assert same_bits(everything(resumed), expected), step
        made = {(s, rate) for s, rate in whole.rates if s >= step}
        assert set(resumed.rates) == made
        for epoch, visited in resumed.visits.items():
            assert visited == whole.visits[epoch][-len(visited) :]


def test_resuming_at_a_single_batch_does_not_mistake_how_the_model_divides(tmp_path):
    """Five batches, two to a step: in the third step, means over the batch and the step agree."""
    options = {"size": 40, "gradient_accumulation_steps": 2}
    whole = trainer(tmp_path, "regression", save_strategy="steps", save_steps=1, **options)
    whole.train()
    assert whole.pruner.savings.saved > 0
    resumed = trainer(tmp_path, "regression", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same_bits(everything(resumed), everything(whole))


def test_the_last_checkpoint_is_found_and_the_best_model_loaded(tmp_path):
    options = {
        "eval_dataset": classified(16),
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "save_total_limit": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss",
    }
    whole = trainer(tmp_path / "whole", **options)
    whole.train()

    class Stop(TrainerCallback):
        def on_epoch_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.epoch == 2

    trainer(tmp_path / "stopped", callbacks=[Stop()], **options).train()
    resumed = trainer(tmp_path / "stopped", **options)
    resumed.train(resume_from_checkpoint=True)
    assert same_bits(everything(resumed), everything(whole))
    state = torch.load(next(tmp_path.glob("whole/*/infobatch.pt")), weights_only=True)
    assert state["pruner"]["num_samples"] == 48
    assert not list(tmp_path.glob("**/*.tmp"))


def test_a_checkpoint_without_scores_raises(tmp_path):
    options = {"num_train_epochs": 1, "save_strategy": "epoch"}
    trainer(tmp_path, **options).train()
    checkpoint = tmp_path / "checkpoint-6"
    (checkpoint / "infobatch.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"checkpoint-6, which has no infobatch.pt"):
        trainer(tmp_path, **options).train(resume_from_checkpoint=True)


def test_a_budget_is_met(tmp_path):
    config = InfoBatchConfig(save=0.3, delta=1.0, warmup=2)
    ours = trainer(tmp_path, size=200, infobatch=config, num_train_epochs=6)
    ours.train()
    savings = ours.pruner.savings
    assert [epoch.made for epoch in savings.epochs[:2]] == [200, 200]
    assert savings.fraction == pytest.approx(0.3, abs=0.01)


@pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
def test_a_rules_own_delta_is_kept_unless_another_is_asked_for():
    assert InfoBatchConfig(policy="ucb").pruner_for(8, 4).delta == 1.0
    assert InfoBatchConfig(policy="ucb", delta=0.5).pruner_for(8, 4).delta == 0.5
    assert InfoBatchConfig().pruner_for(8, 4).delta == 0.875


# What raises.


def test_the_constructor_raises_for_what_it_cannot_do(tmp_path):
    for option, value in [
        ("train_sampling_strategy", "group_by_length"),
        ("train_sampling_strategy", "sequential"),
        ("ignore_data_skip", True),
    ]:
        with pytest.raises(ValueError, match=rf"InfoBatchTrainer got {option}=.*, expected"):
            trainer(tmp_path, **{option: value})
    with pytest.raises(
        TypeError, match=r"Watched\(infobatch=…\) got float, expected an InfoBatchConfig"
    ):
        trainer(tmp_path, infobatch=0.5)
    with pytest.raises(ValueError, match=r"prune_ratio=…\) got 1.5"):
        InfoBatchConfig(prune_ratio=1.5)
    with pytest.raises(ValueError, match=r"delta got 2, expected a share"):
        InfoBatchConfig(delta=2)
    with pytest.raises(ValueError, match=r"max_noise"):
        InfoBatchConfig(max_noise=-1.0, save=0.3)
    with pytest.raises(ValueError, match=r"labels"):
        trainer(tmp_path, infobatch=InfoBatchConfig(protect_classes=0.5)).train()

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(classified(4))

    with pytest.raises(
        TypeError, match=r"train_dataset=…\) got Stream, expected a data set with a len"
    ):
        InfoBatchTrainer(
            model=bert(), args=arguments(tmp_path, max_steps=2), train_dataset=Stream()
        )
    alone = InfoBatchTrainer(model=bert(), args=arguments(tmp_path))
    assert alone.infobatch == InfoBatchConfig()
    with pytest.raises(RuntimeError, match=r"InfoBatchTrainer.pruner has no data to prune"):
        _ = alone.pruner


def test_classes_that_leave_the_mixin_out_are_told(tmp_path):
    class OwnLoss(Watched):
        def compute_loss(self, model, inputs, **options):
            return model(**inputs).loss

    with pytest.raises(RuntimeError, match=r"finished without the mixin's compute_loss\(\)"):
        trainer(tmp_path, kind=OwnLoss).train()

    class OwnLoader(InfoBatchTrainer):
        def get_train_dataloader(self):
            return DataLoader(
                classified(8),
                4,
                collate_fn=self._get_collator_with_removed_columns(default_data_collator),
            )

    with pytest.raises(RuntimeError, match=r"got a batch without its samples' indices"):
        trainer(tmp_path, kind=OwnLoader, size=8).train()


def test_collators_that_hide_the_samples_raise(tmp_path):
    with pytest.raises(TypeError, match=r"got a batch of type list from the data collator"):
        trainer(tmp_path, data_collator=lambda rows: [rows]).train()
    rows = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]} for _ in range(16)]
    flat = InfoBatchTrainer(
        model=llama(),
        args=arguments(tmp_path),
        train_dataset=rows,
        data_collator=DataCollatorWithFlattening(),
    )
    with pytest.raises(RuntimeError, match=r"got 1 losses for a batch of 8 samples"):
        flat.train()


def test_the_mixin_goes_before_a_class_of_one_s_own(tmp_path):
    class Own(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            assert "infobatch_index" not in inputs
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    class Pruned(InfoBatchMixin, Own):
        pass

    ours = trainer(tmp_path, kind=Pruned)
    ours.train()
    assert ours.pruner.savings.saved > 0


# What we build on.

INTERFACES = {
    "_get_train_sampler": "train_dataset",
    "_get_dataloader": "dataset description batch_size sampler_fn is_training dataloader_key",
    "_remove_unused_columns": "dataset description",
    "_get_collator_with_removed_columns": "data_collator description",
    "training_step": "model inputs num_items_in_batch",
    "compute_loss": "model inputs return_outputs num_items_in_batch",
    "set_initial_training_values": "args dataloader",
    "create_scheduler": "num_training_steps optimizer",
    "_run_epoch": (
        "model epoch train_dataloader steps_in_epoch num_update_steps_per_epoch trial "
        "ignore_keys_for_eval start_time resume_from_checkpoint epochs_trained "
        "steps_trained_in_current_epoch"
    ),
    "_finalize_training": "trial num_train_samples start_time",
    "_save_optimizer_and_scheduler": "output_dir",
    "_init_training_state": (
        "max_steps num_update_steps_per_epoch num_train_epochs resume_from_checkpoint trial"
    ),
    "_get_learning_rate": "",
}


@pytest.mark.parametrize("name", INTERFACES)
def test_the_trainer_s_methods_are_those_that_the_mixin_was_written_for(name):
    parameters = list(inspect.signature(getattr(Trainer, name)).parameters)[1:]
    assert parameters == INTERFACES[name].split(), f"transformers has changed Trainer.{name}"
    ours = list(inspect.signature(getattr(InfoBatchTrainer, name)).parameters)[1:]
    assert ours == parameters


def test_a_trainer_that_has_changed_raises():
    class Changed(Trainer):
        def _run_epoch(self, model, epoch, something_new):
            pass

    with pytest.raises(
        ImportError, match=r"whose Changed._run_epoch is not the one it was written"
    ):
        check_interface(Changed, InfoBatchMixin)


def test_the_trainer_s_loop_is_the_one_that_the_mixin_was_written_for():
    loop = inspect.getsource(Trainer._inner_training_loop)
    order = ["get_train_dataloader", "set_initial_training_values", "_init_training_state"]
    order += ["_prepare_for_training", "on_train_begin", "_run_epoch(", "_finalize_training"]
    places = [loop.index(step) for step in order]
    assert places == sorted(places)
    values = inspect.getsource(Trainer.set_initial_training_values)
    returned = values[values.rindex("return (") :]
    assert returned.split() == [
        "return",
        "(",
        "num_train_epochs,",
        "num_update_steps_per_epoch,",
        "num_examples,",
        "num_train_samples,",
        "total_train_batch_size,",
        "steps_in_epoch,",
        "max_steps,",
        ")",
    ]
    for attribute in (
        "_loss_shifts_labels",
        "_train_batch_size",
        "current_gradient_accumulation_steps",
    ):
        assert f"self.{attribute}" in inspect.getsource(Trainer)
    epoch = inspect.getsource(Trainer._run_epoch)
    assert epoch.index("on_epoch_end") < epoch.rindex("_maybe_log_save_evaluate")
    assert "skip_first_batches(train_dataloader, steps_trained_in_current_epoch)" in epoch
    assert "self.state.epoch = epoch + (step + 1) / steps_in_epoch" in epoch


def test_page(tmp_path):
    """The blocks of docs/transformers.md, up to TRL's."""
    *blocks, _ = examples("docs/transformers.md")
    assert len(blocks) == 4
    names = {
        "model": bert(),
        "args": arguments(tmp_path),
        "train_dataset": classified(48),
        "MyTrainer": Trainer,
        "torch": torch,
    }
    for block in blocks:
        exec(compile(block, "transformers.md", "exec"), names)
    assert names["trainer"].pruner.savings.saved > 0
    options = {key: names[key] for key in ("model", "args", "train_dataset")}
    names["PrunedTrainer"](**options).train()
    names["MyTrainer"](**options).train()
    InfoBatchTrainer(**options, compute_loss_func=names["compute_loss_func"]).train()


@pytest.mark.parametrize("package", ["transformers", "trl"])
def test_other_versions_raise(package):
    code = (
        "from importlib import metadata; known = metadata.version;"
        f"metadata.version = lambda name: '0.9' if name == {package!r} else known(name);"
        f"import infobatch.integrations.{package}"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"found {package} 0.9, expected {package}>=" in run.stderr


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_sizes_of_gradients_are_reported(smoothing):
    """The labels' parts of the gradients, within √2 of the whole where the probabilities are far from the targets."""
    torch.manual_seed(0)
    logits = torch.randn(6, 5, 9, requires_grad=True)
    labels = torch.randint(9, (6, 5))
    labels[0] = -100
    labels[1, 2:] = -100
    samples = from_outputs(
        {"logits": logits},
        {"labels": labels},
        problem_type=None,
        shift=False,
        label_smoothing=smoothing,
    )
    sizes = samples.extras["gradient"]
    assert sizes.isnan().tolist() == [True] + [False] * 5
    true = torch.stack(
        [torch.autograd.grad(loss, logits, retain_graph=True)[0].norm() for loss in samples.losses]
    )
    factors = (sizes / true)[1:]
    assert factors.max() / factors.min() < 1.42
