"""Ray Train's TorchTrainer: nothing extra. Two workers, stopped in mid-epoch and resumed."""

import pytest

ray = pytest.importorskip("ray")
SIZE, EPOCHS, BATCH, STOP = 103, 4, 8, 9


def train(config):
    """What each worker does; imports are here since Ray sends the function to another process."""
    import tempfile  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    import torch  # noqa: PLC0415
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
    ray_train.report(
        {
            "weights": model.module.weight.detach().flatten().tolist(),
            "scores": train_data.scores.tolist(),
            "savings": str(train_data.savings),
            "saved": train_data.savings.saved,
            "step": step,
        }
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_workers_with_a_resume(tmp_path):
    from ray.train import RunConfig, ScalingConfig  # noqa: PLC0415
    from ray.train.torch import TorchTrainer  # noqa: PLC0415

    def fit(name, stop=None, checkpoint=None):
        return TorchTrainer(
            train,
            train_loop_config={"stop": stop},
            scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
            run_config=RunConfig(name=name, storage_path=str(tmp_path)),
            resume_from_checkpoint=checkpoint,
        ).fit()

    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    try:
        whole = fit("whole").metrics
        stopped = fit("stopped", stop=STOP)
        resumed = fit("resumed", checkpoint=stopped.checkpoint).metrics
    finally:
        ray.shutdown()
    assert stopped.metrics["step"] == STOP
    assert whole["saved"] > 0
    assert {key: resumed[key] for key in ("weights", "scores", "savings", "step")} == {
        key: whole[key] for key in ("weights", "scores", "savings", "step")
    }
