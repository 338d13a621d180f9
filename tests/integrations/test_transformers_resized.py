"""Resuming with another batch size or gradient accumulation: same samples, same learning rates."""

import math

import pytest
import torch
from transformers import get_linear_schedule_with_warmup

from tiny_models import bert, same_bits, trainer, weights
from trainer_cases import Positioned, StopAfter, check_continuation

SIZE, EPOCHS = 45, 3
SAVED = {"save_strategy": "steps", "save_steps": 1}


def sizes(batch, accumulated):
    return {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulated}


def run(folder, *, stop=None, resume=None, **options):
    callbacks = [] if stop is None else [StopAfter(stop)]
    options = {"size": SIZE, "num_train_epochs": EPOCHS, "warmup_steps": 4, **options}
    ours = trainer(folder, kind=Positioned, callbacks=callbacks, **options)
    ours.train(resume_from_checkpoint=resume)
    return ours


@pytest.mark.parametrize("stop", ["in a whole epoch", "between epochs", "in a pruned epoch"])
@pytest.mark.parametrize(
    ("before", "after"),
    [((8, 1), (16, 1)), ((16, 1), (8, 1)), ((8, 1), (8, 2)), ((4, 3), (8, 1)), ((5, 1), (7, 2))],
)
def test_every_sample_once_at_the_learning_rate_of_its_place(before, after, stop, tmp_path):
    steps_per_epoch = math.ceil(math.ceil(SIZE / before[0]) / before[1])
    stops = {"in a whole epoch": 2, "between epochs": steps_per_epoch}
    step = stops.get(stop, steps_per_epoch + 1)
    stopped = run(tmp_path, stop=step, **SAVED, **sizes(*before))
    resumed = run(tmp_path, resume=True, **sizes(*after))
    check_continuation(
        stopped.position(), [resumed.position()], steps_per_epoch, EPOCHS, warmup_steps=4
    )
    left = [sum(epoch == e for e, *_ in resumed.places) for epoch in range(EPOCHS)]
    assert resumed.state.global_step == step + sum(math.ceil(n / after[1]) for n in left)


def test_a_second_change_continues_too(tmp_path):
    run(tmp_path, stop=2, **SAVED, **sizes(8, 1))
    between = run(tmp_path, stop=3, resume=True, **SAVED, **sizes(4, 2))
    assert between.state.epoch == pytest.approx(24 / 45)
    last = run(tmp_path, resume=True, **SAVED, **sizes(16, 1))
    first = between.position()
    first["visits"][0] = last.plans[0].tolist()[:24]
    check_continuation(first, [last.position()], 6, EPOCHS, warmup_steps=4)


def test_the_epoch_is_logged_by_samples(tmp_path):
    logs = {"logging_strategy": "steps", "logging_steps": 1}
    run(tmp_path, stop=3, **SAVED, **logs, **sizes(8, 1))
    resumed = run(tmp_path, resume=True, **logs, **sizes(16, 1))
    logged = [record["epoch"] for record in resumed.state.log_history if "loss" in record]
    assert logged[:5] == pytest.approx([8 / 45, 16 / 45, 24 / 45, 40 / 45, 1.0], abs=1e-4)
    assert logged == sorted(logged)
    assert logged[-1] == 3.0


def test_an_incomplete_batch_is_dropped_from_what_is_left(tmp_path):
    options = {"dataloader_drop_last": True}
    stopped = run(tmp_path, stop=2, **SAVED, **sizes(8, 1), **options)
    resumed = run(tmp_path, resume=True, **sizes(12, 1), **options)
    # Of the 29 samples that are left, 24 fill whole batches.
    assert len(resumed.visits[0]) == 24
    assert not set(resumed.visits[0]) & set(stopped.visits[0])
    assert set(resumed.lr_scheduler.get_last_lr()) == {0.0}
    assert resumed.state.epoch == 3.0


def test_a_broken_off_epoch_ends_where_it_would_have(tmp_path):
    stopped = run(tmp_path, stop=7, num_train_epochs=1.75, **SAVED, **sizes(8, 1))
    resumed = run(tmp_path, resume=True, num_train_epochs=1.75, **sizes(16, 1))
    total = len(resumed.plans[1])
    done = len(stopped.visits[1]) + len(resumed.visits[1])
    assert 11 / 12 * total - 16 < done - 16 < 11 / 12 * total <= done  # ceil(1.75 × 6) = 11 steps
    assert set(resumed.lr_scheduler.get_last_lr()) == {0.0}
    assert resumed.state.global_step == resumed.state.max_steps


def test_a_finished_run_is_not_trained_further(tmp_path):
    whole = run(tmp_path, num_train_epochs=1.5, **SAVED, **sizes(8, 1))
    for size in (8, 16):
        again = run(tmp_path, num_train_epochs=1.5, resume=True, **sizes(size, 1))
        assert again.state.global_step == whole.state.global_step
        assert same_bits(weights(again.model), weights(whole.model))


def test_max_steps_of_another_size_raise_with_the_number_that_is_meant(tmp_path):
    run(tmp_path, stop=7, max_steps=15, **SAVED, **sizes(8, 1))
    with pytest.raises(
        ValueError,
        match=r"got max_steps=15, which takes 5 epochs of 3 steps, where the checkpoint's run takes 3 "
        r"epochs of 6 steps\. Expected a run of the same length: pass max_steps=8, or num_train_epochs",
    ):
        run(tmp_path, resume=True, max_steps=15, **sizes(16, 1))
    resumed = run(tmp_path, resume=True, max_steps=8, **sizes(16, 1))
    assert set(resumed.lr_scheduler.get_last_lr()) == {0.0}
    assert 2.4 < resumed.state.epoch < 3


def test_a_scheduler_of_the_user_s_own_cannot_follow(tmp_path):
    def own(steps):
        model = bert()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = get_linear_schedule_with_warmup(optimizer, 0, steps)
        return {"model": model, "optimizers": (optimizer, schedule)}

    run(tmp_path, stop=7, **own(18), **SAVED, **sizes(8, 1))
    with pytest.raises(
        ValueError,
        match=r"got a LambdaLR in optimizers=, and 3 steps per epoch where the checkpoint has 6: it is not "
        r"known for which of the two that scheduler was built\. Expected the batch size, gradient "
        r"accumulation and number of processes",
    ):
        run(tmp_path, resume=True, **own(9), **sizes(16, 1))
    same = run(tmp_path, resume=True, **own(18), **sizes(4, 2))
    assert set(same.lr_scheduler.get_last_lr()) == {0.0}
