"""Ignite's page, with the real package."""

import pytest
import torch

from document_examples import examples, surroundings

(SOURCE,) = examples("docs/ignite.md")
BUILD, RUN = SOURCE.split("first_epoch = ")
RUN = "first_epoch = " + RUN
# Importing Ignite imports a part of torch that is compiled by torch.jit.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.* is deprecated:DeprecationWarning")


def page(tmp_path, **names):
    return surroundings(tmp_path) | {"num_epochs": 8} | names


def execute(source, names):
    exec(compile(source, "ignite.md", "exec"), names)
    return names


def test_page(tmp_path, capsys):
    names = execute(SOURCE, page(tmp_path))
    state, savings = names["trainer"].state, names["train_data"].savings
    assert len(savings.epochs) == state.epoch == 8
    assert state.iteration == sum(-(-epoch.made // 64) for epoch in savings.epochs) < 8 * 7
    assert names["scheduler"].last_epoch == 8 * 7
    assert names["train_data"].scores.isfinite().all()
    assert capsys.readouterr().out == f"{savings}\n"


def test_the_forecast(tmp_path):
    followed = SOURCE.replace(
        "num_epochs)", 'num_epochs, policy="none", shadow=("mean", "auto"))', 1
    )
    train_data = execute(followed, page(tmp_path))["train_data"]
    assert train_data.savings.saved == 0
    rules = train_data.forecast().rules
    assert [len(rule.epochs) for rule in rules.values()] == [8, 8]
    assert rules["mean"].left_out > 0.1
    assert "infobatch/forecast/auto/realised_noise" in train_data.savings.as_dict()


def test_without_the_handlers_an_engine_s_epochs_are_not_ours(tmp_path):
    """Why the page has them."""
    run = RUN.partition("@trainer.on")[0] + "trainer.run(loader, max_epochs=num_epochs)"
    with pytest.warns(UserWarning, match="Epoch 8 is being trained, but num_epochs=8"):
        names = execute(BUILD + run, page(tmp_path))
    assert names["trainer"].state.iteration == 8 * 7
    assert len(names["train_data"].savings.epochs) > 8


def test_with_short_epochs_to_the_end_every_epoch_is_run(tmp_path):
    """An engine compares the number of iterations with the epochs times the last one's length."""
    short = BUILD.replace("InfoBatch(data, num_epochs)", "InfoBatch(data, num_epochs, 0.9, 1.0)")
    names = execute(short + RUN, page(tmp_path))
    assert len(names["train_data"].savings.epochs) == names["trainer"].state.epoch == 8
    second = RUN.index("@trainer.on(Events.EPOCH_COMPLETED)")
    without = RUN[:second] + RUN[RUN.index("trainer.run") :]
    names = execute(short + without, page(tmp_path))
    assert names["trainer"].state.epoch < 8


def test_resuming_gives_the_same_bits(tmp_path):
    from ignite.engine import Events  # noqa: PLC0415 - where the warning is expected
    from ignite.handlers import Checkpoint, DiskSaver  # noqa: PLC0415

    straight = execute(SOURCE, page(tmp_path))
    first = execute(BUILD, page(tmp_path))
    parts = ("model", "optimizer", "scheduler", "train_data")
    checkpoint = Checkpoint({name: first[name] for name in parts}, DiskSaver(tmp_path))
    first["trainer"].add_event_handler(Events.EPOCH_COMPLETED(once=3), checkpoint)
    first["trainer"].add_event_handler(
        Events.EPOCH_COMPLETED(once=3), lambda engine: engine.terminate()
    )
    execute(RUN, first)
    assert len(first["train_data"].savings.epochs) < 8
    second = execute(BUILD, page(tmp_path))
    saved = torch.load(next(tmp_path.glob("*.pt")), weights_only=True)
    Checkpoint.load_objects({name: second[name] for name in parts}, saved)
    assert second["train_data"].epoch == 3
    execute(RUN, second)
    assert second["train_data"].savings == straight["train_data"].savings
    assert torch.equal(second["model"].weight, straight["model"].weight)


# The page "Write an integration".

CLASS, TRAINING = examples("docs/write-an-integration.md")


def test_the_integration_of_the_page(tmp_path):
    names = execute(CLASS + TRAINING, page(tmp_path))
    state, savings = names["trainer"].state, names["train_data"].savings
    assert len(savings.epochs) == state.epoch == 8
    assert state.iteration == sum(-(-epoch.made // 64) for epoch in savings.epochs) < 8 * 7
    assert names["scheduler"].last_epoch == 8 * 7
    assert state.metrics["infobatch/samples_saved"] == savings.saved > 0


@pytest.mark.parametrize("workers", [0, 2])
def test_an_engine_that_leaves_an_epoch(tmp_path, workers):
    """With workers the loader has read to the end; the batches that were not taken are not missing."""
    source = TRAINING.replace("batch_size=64,", f"batch_size=64, num_workers={workers},")
    source = source.replace("trainer.run", "trainer.add_event_handler(HALF, leave)\ntrainer.run")
    names = execute(CLASS, page(tmp_path))
    names["HALF"] = names["Events"].ITERATION_COMPLETED(event_filter=lambda engine, i: i == 4)
    names["leave"] = lambda engine: engine.terminate_epoch()
    execute(source, names)
    epochs = names["train_data"].savings.epochs
    assert names["trainer"].state.epoch == len(epochs) == 8
    assert [epoch.made for epoch in epochs] == [4 * 64] + [epoch.made for epoch in epochs[1:]]
    assert all(epoch.unscored == 0 for epoch in epochs)


def test_the_integration_names_a_foreign_loader(tmp_path):
    names = execute(CLASS, page(tmp_path))
    with pytest.raises(TypeError, match="a loader without the sampler of an InfoBatch"):
        names["PrunedEpochs"](torch.utils.data.DataLoader(names["data"], 64))
