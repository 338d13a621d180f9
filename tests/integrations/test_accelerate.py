"""Accelerate shards the batches, reads ahead and counts epochs itself; what it gets must be right."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard
from accelerate.scheduler import AcceleratedScheduler
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader

import accelerate_cases as cases
import infobatch
from infobatch.loaders import accelerate as prepared
from numbered import Numbered, loss_of

CASES = Path(cases.__file__)


@pytest.fixture(autouse=True)
def no_accelerator_left_behind():
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def torchrun(case, out, ranks=2, limit=400):
    """Run a case on some ranks; return what each left. ``limit`` only ends one that hangs."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), str(CASES), case, str(out)]
    path = os.pathsep.join([str(CASES.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=limit, check=False, env=environment
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return [torch.load(out / f"rank-{rank}.pt", weights_only=True) for rank in range(ranks)]


def plain_loop(*, drop_last):
    """The same training in one process, without Accelerate and without indices in the batch."""
    train_data = infobatch.InfoBatch(Numbered(cases.SIZE), cases.EPOCHS, delta=1.0)
    loader = DataLoader(
        train_data, cases.GLOBAL_BATCH, sampler=train_data.sampler, drop_last=drop_last
    )
    plans = []
    for epoch in range(cases.EPOCHS):
        for x, _ in loader:
            train_data.update(loss_of(x, epoch))
        plans.append(train_data.plan.order)
    train_data.set_epoch(cases.EPOCHS)
    return plans, train_data.scores, train_data.savings


def check_dealing(options, results):
    """Same plans, scores and savings as the plain loop; lengths as announced; a like pace."""
    plans, scores, savings = plain_loop(drop_last=options["drop_last"])
    passes = [(e.planned, e.made, e.unscored) for e in savings.epochs]
    assert savings.saved > 0
    for result in results:
        assert all(torch.equal(*pair) for pair in zip(plans, result["plans"], strict=True))
        assert torch.equal(result["scores"].nan_to_num(-1), scores.nan_to_num(-1))
        assert result["passes"] == passes
        if options["even"] or not options["split"]:  # else Accelerate's own len() is one too many
            assert all(length in (None, steps) for length, steps in result["lengths"])
        assert all(made <= planned for planned, made, _ in result["before_the_end"])
    for plan, *visits in zip(plans, *(result["visits"] for result in results), strict=True):
        deliverable = len(plan) - len(plan) % cases.GLOBAL_BATCH
        delivered = plan[:deliverable] if options["drop_last"] else plan
        visited = [sample for visit in visits for sample in visit]
        assert set(visited) == set(delivered.tolist())
        if options["drop_last"]:
            assert len(visited) == len(delivered)
    if options["even"] or options["drop_last"]:  # all ranks have equally many steps
        assert all(result["progress"] == results[0]["progress"] for result in results)
        assert all(result["before_the_end"] == passes for result in results)


def test_one_process():
    for options, result in zip(cases.DEALINGS, cases.dealings(None), strict=False):
        check_dealing(options, [result])


def test_two_processes(tmp_path):
    rows = list(zip(*torchrun("dealings", tmp_path), strict=True))
    for options, results in zip(cases.DEALINGS, rows, strict=False):
        check_dealing(options, results)
    bar_on_main_only = {"even": True, "drop_last": False}
    for results in rows[len(cases.DEALINGS) :]:
        check_dealing(bar_on_main_only, results)
        assert results[1]["lengths"][0][0] is None


def test_gradients_weights_and_schedule_of_two_processes(tmp_path):
    """Where nothing is padded, the step is that of the global batch; the schedule ends at its end."""
    for options, *results in zip(cases.TRAINED, *torchrun("models", tmp_path), strict=True):
        alone = cases.straight(**options)
        ends = [alone["steps_per_epoch"] * (epoch + 1) for epoch in range(cases.EPOCHS)]
        rates = [rate for _, _, rate in results[0]["steps"]]
        for result in results:
            assert result["epoch_ends"] == ends
            assert result["passes"] == alone["passes"]
            assert torch.equal(result["weights"], results[0]["weights"])
            assert [rate for _, _, rate in result["steps"]] == rates
            if options["drop_last"]:
                for mine, expected in zip(result["gradients"], alone["gradients"], strict=True):
                    assert torch.allclose(mine, expected, rtol=1e-4, atol=1e-5)
        assert alone["epoch_ends"] == ends


def same(outcome, expected):
    for key in ("weights", "scores"):
        assert torch.equal(outcome[key].nan_to_num(-1), expected[key].nan_to_num(-1))
    assert outcome["passes"] == expected["passes"]
    assert outcome["steps"] == expected["steps"]


@pytest.mark.parametrize("says_epoch", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_stop_and_resume_in_one_process(drop_last, says_epoch, tmp_path):
    whole = cases.straight(drop_last=drop_last)
    stops = [*range(1, len(whole["steps"]), 3), *(("end", epoch) for epoch in range(cases.EPOCHS))]
    for at in stops:
        folder = tmp_path / str(at)
        outcome = cases.interrupted(at, folder, says_epoch=says_epoch, drop_last=drop_last)
        same(outcome, whole)


@pytest.mark.parametrize("case", ["resumes", pytest.param("all_resumes", marks=pytest.mark.slow)])
def test_stop_and_resume_with_two_processes(case, tmp_path):
    for result in torchrun(case, tmp_path, limit=1500):
        for whole, interrupted in result:
            for outcome in interrupted:
                same(outcome, whole)


@pytest.mark.parametrize(("accumulate", "stops"), [(1, [4, 9, 14]), (3, [3, 9, 16])])
def test_dropout_continues_bit_for_bit(accumulate, stops, monkeypatch, tmp_path):
    """An iteration of a loader draws a seed: from a generator of its own, not from the global one."""
    monkeypatch.setattr(cases, "DROPOUT", 0.3)
    whole = cases.straight(accumulate=accumulate)
    for at in (*stops, ("end", 1)):  # after a step: accumulated gradients are not saved
        outcome = cases.interrupted(at, tmp_path / str(at), accumulate=accumulate)
        same(outcome, whole)


def check_other_ranks(outcomes):
    for name, (straight, resumed) in outcomes.items():
        assert resumed["epoch_ends"][-1] == cases.EPOCHS * straight["steps_per_epoch"], name
        for epoch, rate in resumed["rates"].items():
            assert rate == pytest.approx(straight["rates"][epoch], rel=1e-6, abs=1e-12), name
        assert len(resumed["passes"]) == cases.EPOCHS
        assert all(made == planned for _, planned, made in resumed["passes"]), name


def test_resuming_with_another_number_of_processes(tmp_path):
    """One to two and two to one, in the middle of an epoch and between epochs."""
    cases.saved_for_others(tmp_path / "one")
    for outcomes in torchrun("other_ranks", tmp_path):
        error = outcomes.pop("error")
        assert "made for another number of steps" in error
        assert "paced(…, steps_per_epoch=…)" in error
        check_other_ranks(outcomes)
    outcomes = cases.continued_from_others(tmp_path / "two")
    outcomes.pop("error")
    check_other_ranks(outcomes)


def test_two_processes_exit_after_an_evaluation(tmp_path):
    """A model that is freed after its process group waits, with Python's lock, for the group's threads.

    They may be waiting for the lock, to free what the last gather left: then neither gets further.
    """
    for result in torchrun("evaluated", tmp_path):
        assert result == {"evaluated": cases.SIZE, "freed": True}


def test_loading_an_earlier_state_in_the_same_process(tmp_path):
    """Accelerate's counter has gone further than the loaded state: it is taken from there."""
    training = cases.Training()
    training.run(range(2))
    training.accelerator.save_state(tmp_path)
    training.run(range(2, 3))
    training.accelerator.load_state(tmp_path)
    assert training.pruner.epoch == 2
    next(iter(training.loader))
    assert training.pruner.epoch == 2
    training.run(range(2, 4))
    assert [e.epoch for e in training.pruner.savings.epochs] == [0, 1, 2, 3]


def test_misuse_is_told_and_epochs_may_break_off(tmp_path):
    expected = cases.broken_off(None)
    assert sorted(set(expected[0]["epochs"])) == [0, 1, 2, 3]
    assert expected[0]["made"][0] == expected[0]["made"][2] == 4 * cases.GLOBAL_BATCH
    for result in torchrun("habits", tmp_path):
        assert result["broken_off"] == expected
        assert len(result["misuse"]["errors"]) == 2
        for error in result["misuse"]["errors"]:
            assert "update() got no index=, but with 2 ranks" in error
        (warning,) = result["misuse"]["warnings"]
        assert "nothing divided them" in warning
        assert "accelerator.prepare(loader)" in warning


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's
def test_a_stateful_loader_would_skip_batches_a_second_time():
    data = infobatch.Indexed(Numbered(40))

    def parts():
        accelerator = Accelerator(
            cpu=True,
            dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True),
        )
        pruner = infobatch.Pruner(40, 3)
        collate = infobatch.with_index()
        loader = DataLoader(data, 8, sampler=pruner.sampler, collate_fn=collate)
        return pruner, accelerator.prepare(loader)

    pruner, loader = parts()
    for step, (index, (x, _)) in enumerate(loader):
        pruner.update(loss_of(x, 0), index=index)
        if step == 1:
            break
    resumed, loader = parts()
    resumed.load_state_dict(pruner.state_dict())
    with pytest.raises(
        RuntimeError,
        match=r"^Epoch 0 continues after 16 samples, and the prepared loader is a StatefulDataLoader, "
        r"which skips batches when its own state is loaded: part of the epoch would be left out\. The "
        r"pruner's state is enough: prepare the loader without "
        r"DataLoaderConfiguration\(use_stateful_dataloader=True\), or resume between epochs\.$",
    ):
        next(iter(loader))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_three_line_form_in_one_process(workers):
    """Batches stay in order, a constant number ahead: counting holds without an index."""
    plans, scores, savings = plain_loop(drop_last=False)
    accelerator = cases.accelerated()
    train_data = infobatch.InfoBatch(Numbered(cases.SIZE), cases.EPOCHS, delta=1.0)
    loader = accelerator.prepare(
        DataLoader(train_data, cases.GLOBAL_BATCH, sampler=train_data.sampler, num_workers=workers)
    )
    for epoch in range(cases.EPOCHS):
        for x, _ in loader:
            train_data.update(loss_of(x, epoch))
        assert torch.equal(train_data.plan.order, plans[epoch])
    assert torch.equal(train_data.scores, scores)
    assert str(train_data.savings) == str(savings)


def test_the_forecast():
    options = {"delta": 1.0, "seed": 3}
    pruner = infobatch.Pruner(cases.SIZE, cases.EPOCHS, policy="none", shadow="mean", **options)
    loader = cases.accelerated().prepare(
        DataLoader(
            infobatch.Indexed(Numbered(cases.SIZE)), cases.GLOBAL_BATCH, sampler=pruner.sampler
        )
    )
    alone = infobatch.Pruner(cases.SIZE, cases.EPOCHS, policy="none", shadow="mean", **options)
    for epoch in range(cases.EPOCHS):
        for index, (x, _) in loader:
            pruner.update(loss_of(x, epoch), index=index)
        order = torch.tensor(list(alone.sampler))
        alone.update(loss_of(order, epoch))
    assert pruner.forecast() == alone.forecast()
    assert pruner.forecast().rules["mean"].left_out > 0.1
    assert "infobatch/forecast/mean/realised_noise" in pruner.savings.as_dict()


def test_whole_batches_from_the_pruner():
    accelerator = cases.accelerated()
    pruner = infobatch.Pruner(cases.SIZE, cases.EPOCHS, delta=1.0)
    loader = accelerator.prepare(
        DataLoader(
            infobatch.Indexed(Numbered(cases.SIZE)),
            batch_sampler=pruner.batch_sampler(cases.GLOBAL_BATCH),
            collate_fn=infobatch.with_index(),
        )
    )
    for epoch in range(cases.EPOCHS):
        steps = len(list(train(pruner, loader, epoch)))
        assert len(loader) == steps
    assert torch.equal(pruner.scores, plain_loop(drop_last=False)[1])


def train(pruner, loader, epoch):
    for index, (x, _) in loader:
        yield pruner.update(loss_of(x, epoch), index=index)


def test_a_paced_schedule_goes_through_prepare_unchanged():
    """A prepared scheduler is stepped once a process; a paced one must go by the samples alone."""
    training = cases.Training()
    assert training.accelerator.prepare(training.scheduler) is training.scheduler
    scheduler = training.accelerator.prepare(training.inner)
    assert isinstance(scheduler, AcceleratedScheduler)
    with pytest.raises(
        TypeError, match=r"Accelerate has prepared, .*Expected the scheduler itself, not prepared"
    ):
        infobatch.paced(scheduler, training.pruner)


def test_a_second_loop_beside_the_first_raises():
    accelerator = cases.accelerated()
    pruner = infobatch.Pruner(cases.SIZE, cases.EPOCHS)
    loader = accelerator.prepare(cases.loader_of(pruner, Numbered(cases.SIZE), accelerator))
    batches = iter(loader)
    index, (x, _) = next(batches)
    pruner.update(loss_of(x, 0), index=index)
    with pytest.raises(RuntimeError, match="A second iterator of this sampler asks for samples"):
        next(iter(loader))


def test_what_is_used_of_accelerate():
    """A release that changes any of this needs infobatch.loaders.accelerate looked at again."""
    accelerator = Accelerator(cpu=True)
    pruner = infobatch.Pruner(8, 2)
    loader = accelerator.prepare(cases.loader_of(pruner, Numbered(8), accelerator))
    assert GradientState().dataloader_references == [None]
    assert loader.iteration == 0
    assert loader.batch_sampler.drop_last is False
    for _ in loader:
        assert prepared.loader_at_work(pruner.sampler) is loader
        assert loader.iteration == 0
    assert prepared.loader_at_work(pruner.sampler) is None
    assert loader.iteration == 1
    for kind in (DataLoaderShard, DataLoaderDispatcher):
        source = inspect.getsource(kind.__iter__)
        order = [source.index(call) for call in ("self.begin()", "self.set_epoch(self.iteration)")]
        order += [
            source.index(call) for call in ("next_batch", "self.iteration += 1", "self.end()")
        ]
        if kind is DataLoaderShard:  # it ends once more, early, where there is nothing to iterate
            order[-1] = source.rindex("self.end()")
        assert order == sorted(order), kind


def test_an_accelerate_that_does_not_show_its_loaders_raises(monkeypatch):
    Accelerator(cpu=True)
    monkeypatch.delattr(GradientState, "dataloader_references")
    with pytest.raises(RuntimeError, match=r"accelerate 1\.\d+\.\d+ does not show .*>=1\.15"):
        infobatch.Pruner(8, 2).set_epoch(1)
