"""Ray Train's TorchTrainer: nothing extra. Two workers, stopped in mid-epoch and resumed."""

import sys

import pytest
import torch

ray = pytest.importorskip("ray")
SIZE, EPOCHS, BATCH, STOP = 103, 4, 8, 9


def train(config):
    """What each worker does; imports are here since Ray sends the function to another process."""
    import tempfile  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    from ray import train as ray_train  # noqa: PLC0415
    from torch.utils.data import DataLoader, TensorDataset  # noqa: PLC0415

    import infobatch  # noqa: PLC0415

    torch.manual_seed(0)
    x = torch.randn(SIZE, 4)
    data = TensorDataset(x, x.sum(1) + torch.randn(SIZE) ** 3)
    train_data = infobatch.InfoBatch(data, EPOCHS, delta=1.0)
    model = ray_train.torch.prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = 0
    if checkpoint := ray_train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), weights_only=True)
        model.module.load_state_dict(state["model"])
        train_data.load_state_dict(state["data"])
        step = state["step"]
    # Not prepare_data_loader: the sampler is sharded already.
    loader = DataLoader(train_data, BATCH, sampler=train_data.sampler)
    for _ in range(train_data.epoch, EPOCHS):
        for inputs, targets in loader:
            loss = train_data.update((model(inputs).squeeze(1) - targets) ** 2)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step == config["stop"]:
                state = {
                    "model": model.module.state_dict(),
                    "data": train_data.state_dict(),
                    "step": step,
                }
                with tempfile.TemporaryDirectory() as folder:
                    torch.save(state, Path(folder, "state.pt"))
                    saved = ray_train.Checkpoint.from_directory(folder)
                    ray_train.report({"step": step}, checkpoint=saved)
                return
    train_data.set_epoch(EPOCHS)
    results = {
        "weights": model.module.weight.detach(),
        "scores": train_data.scores,
        "savings": str(train_data.savings),
        "saved": train_data.savings.saved,
        "step": step,
    }
    rank = ray_train.get_context().get_world_rank()
    torch.save(results, Path(config["out"], f"{config['name']}-{rank}.pt"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_workers_with_a_resume(tmp_path):
    from ray.train import RunConfig, ScalingConfig  # noqa: PLC0415
    from ray.train.torch import TorchTrainer  # noqa: PLC0415

    def fit(name, stop=None):
        return TorchTrainer(
            train,
            train_loop_config={"stop": stop, "out": str(tmp_path), "name": name},
            scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
            run_config=RunConfig(name=name, storage_path=str(tmp_path)),
        ).fit()

    # The workers cannot import a test module.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    try:
        fit("whole")
        stopped = fit("parts", stop=STOP)
        fit("parts")  # Ray finds the checkpoint by the run's name
    finally:
        ray.shutdown()
    assert stopped.metrics["step"] == STOP
    assert stopped.checkpoint is not None
    for rank in range(2):
        whole = torch.load(tmp_path / f"whole-{rank}.pt", weights_only=True)
        resumed = torch.load(tmp_path / f"parts-{rank}.pt", weights_only=True)
        assert whole["saved"] > 0
        assert torch.equal(whole["weights"], resumed["weights"])
        assert torch.equal(whole["scores"], resumed["scores"])
        assert (whole["savings"], whole["step"]) == (resumed["savings"], resumed["step"])
