# python examples/gpu_check.py
"""Check infobatch on your accelerator in about two minutes, and write what was found to gpu_check.json.

We have no GPU: everything here was developed on CPUs and a simulated device. If you have one, please run this and send
us gpu_check.json, in an issue or a discussion; a check that fails tells us most. It trains a small network on made-up
data in every way that docs/accelerators.md describes and compares the results. Nothing is downloaded or uploaded.
Without an accelerator it checks what a CPU can, and says what it could not check.
"""

import argparse
import json
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import infobatch

SAMPLES, WIDTH, CLASSES, BATCH, EPOCHS = 8200, 64, 10, 256, 5
SECONDS = 120  # for two processes
SAME = {"rtol": 1e-3, "atol": 1e-4}  # between devices, whose sums differ in the last bits


class NotCheckedError(Exception):
    """This machine lacks what a check needs."""


def needs(condition: bool, what: str) -> None:
    if not condition:
        raise NotCheckedError(what)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, WIDTH, generator=generator)
    noise = torch.randn(SAMPLES, CLASSES, generator=generator)
    return TensorDataset(x, (x[:, :CLASSES] + noise).argmax(1))


class Training:
    """A small network on a device, and the pruner of its data."""

    def __init__(self, device: torch.device, *, pad: bool = False, indexed: bool = False) -> None:
        torch.manual_seed(0)
        self.device, self.indexed = device, indexed
        self.model = nn.Sequential(nn.Linear(WIDTH, 128), nn.Tanh(), nn.Linear(128, CLASSES))
        self.model.to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)
        self.criterion = nn.CrossEntropyLoss(reduction="none")
        self.train_data = infobatch.InfoBatch(data(), EPOCHS, delta=0.8)
        source = infobatch.Indexed(data()) if indexed else self.train_data
        batches = self.train_data.batch_sampler(BATCH, pad=pad)
        pin = device.type == "cuda"
        self.loader = DataLoader(source, batch_sampler=batches, pin_memory=pin)

    def batches(self) -> Iterator[tuple[Any, ...]]:
        """The batches of all epochs, on the device; an epoch's last update may wait for it."""
        for _ in range(EPOCHS):
            left = len(self.loader)
            for batch in self.loader:
                left -= 1
                index, (x, y) = batch if self.indexed else (None, batch)
                x, y = (value.to(self.device, non_blocking=True) for value in (x, y))
                with no_waiting(self.device) if left else nullcontext():
                    yield index, x, y

    def step(self, loss: torch.Tensor) -> None:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def result(self) -> dict[str, torch.Tensor]:
        """What has to be the same in every way of training."""
        weights = {name: value.float().cpu() for name, value in self.model.state_dict().items()}
        return weights | {"scores": self.train_data.scores}


@contextmanager
def no_waiting(device: torch.device) -> Iterator[None]:
    """Raise if the host waits for the GPU, as far as CUDA reports it."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def compare(result: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> str:
    for name, value in expected.items():
        torch.testing.assert_close(result[name], value, equal_nan=True, msg=lambda m: m, **SAME)
    largest = max((result[name] - value).abs().max().item() for name, value in expected.items())
    return f"largest difference {largest:.1e}"


def by_update(device: torch.device, *, indexed: bool = False) -> Training:
    """The three lines, or the form with the index in the batch."""
    training = Training(device, indexed=indexed)
    for index, x, y in training.batches():
        losses = training.criterion(training.model(x), y)
        training.step(training.train_data.update(losses, index=index))
    assert training.train_data.savings.saved > 0
    return training


def by_pure_step(device: torch.device, wrap: Callable[..., Any] | None = None) -> Training:
    """Weights in, losses out; ``wrap`` compiles the function."""
    training = Training(device, pad=True)

    def losses_and_mean(x, y, weights):
        losses = training.criterion(training.model(x), y)
        return losses, (weights * losses).mean()

    function = losses_and_mean if wrap is None else wrap(losses_and_mean)
    for _, x, y in training.batches():
        losses, loss = function(x, y, training.train_data.batch_weights(device=x.device))
        training.step(loss)
        training.train_data.record(losses)
    return training


def by_cuda_graph(device: torch.device) -> Training:
    """The whole step, with its backward pass and its optimizer, captured once and replayed."""
    training = Training(device, pad=True)
    x, y = torch.zeros(BATCH, WIDTH, device=device), torch.zeros(BATCH, device=device).long()
    weights = torch.ones(BATCH, device=device)

    def step() -> torch.Tensor:
        losses = training.criterion(training.model(x), y)
        training.optimizer.zero_grad()
        (weights * losses).mean().backward()
        training.optimizer.step()
        return losses.detach()

    before = {name: value.clone() for name, value in training.model.state_dict().items()}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # warm up
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        losses = step()
    training.model.load_state_dict(before)
    for _, next_x, next_y in training.batches():
        x.copy_(next_x)
        y.copy_(next_y)
        weights.copy_(training.train_data.batch_weights(device=device))
        graph.replay()
        training.train_data.record(losses)
    return training


# The checks: each returns what it found, or raises.


def check_update(device: torch.device) -> str:
    return compare(by_update(device).result(), by_update(torch.device("cpu")).result())


def check_index(device: torch.device) -> str:
    return compare(by_update(device, indexed=True).result(), by_update(device).result())


def check_pure_step(device: torch.device) -> str:
    return compare(by_pure_step(device).result(), by_update(device).result())


def check_compiled_model(device: torch.device) -> str:
    training = Training(device)
    model = torch.compile(training.model)
    for _, x, y in training.batches():
        training.step(training.train_data.update(training.criterion(model(x), y)))
    return compare(training.result(), by_update(device).result())


def check_compiled_step(device: torch.device) -> str:
    from torch._dynamo.utils import counters  # noqa: PLC0415 - takes seconds

    torch._dynamo.reset()
    counters.clear()
    compiled = by_pure_step(device, lambda f: torch.compile(f, fullgraph=True, dynamic=False))
    graphs = counters["stats"]["unique_graphs"]
    assert graphs == 1, f"{graphs} graphs were compiled, expected 1 for all epochs"
    return compare(compiled.result(), by_pure_step(device).result()) + ", 1 graph"


def check_compiled_step_with_graphs(device: torch.device) -> str:
    needs(device.type == "cuda", 'torch.compile(mode="reduce-overhead") on a GPU')
    torch._dynamo.reset()
    compiled = by_pure_step(device, lambda f: torch.compile(f, mode="reduce-overhead"))
    return compare(compiled.result(), by_pure_step(device).result())


def check_cuda_graph(device: torch.device) -> str:
    needs(device.type == "cuda", "a CUDA graph of the whole step")
    return compare(by_cuda_graph(device).result(), by_pure_step(device).result())


def check_capture_of_update(device: torch.device) -> str:
    needs(device.type == "cuda", "the error when update() is captured in a CUDA graph")
    training = Training(device)
    _, x, y = next(training.batches())
    losses = training.criterion(training.model(x), y).detach()
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            training.train_data.update(losses)
    except RuntimeError as error:
        if "batch_weights" in str(error):
            return "raises, and names the pure step"
        raise
    raise AssertionError("update() was captured without an error")


def check_half_precision(device: torch.device) -> str:
    results = []
    for dtype in (torch.bfloat16, torch.float16):
        training = Training(device)
        scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
        for _ in range(2):
            for x, y in training.loader:
                with torch.autocast(device.type, dtype):
                    output = training.model(x.to(device))
                losses = training.criterion(output.float(), y.to(device))
                scaler.scale(training.train_data.update(losses)).backward()
                scaler.step(training.optimizer)
                scaler.update()
                training.optimizer.zero_grad()
        mean = float(training.train_data.last_loss)
        assert mean < 2.3, f"{dtype}: the loss is {mean}"
        results.append(f"{str(dtype).removeprefix('torch.')}: loss {mean:.2f}")
    return ", ".join(results)


def check_stream(device: torch.device) -> str:
    scores = torch.rand(BATCH, generator=torch.Generator().manual_seed(0))
    for options in ({"keep": 0.3}, {"count": 64}):
        on_cpu, on_device = infobatch.StreamPruner(**options), infobatch.StreamPruner(**options)
        moved = scores.to(device)
        for _ in range(5):
            expected = on_cpu.select(scores)
            with no_waiting(device) if "count" in options else nullcontext():
                kept = on_device.select(moved)
            assert set(kept.index.tolist()) == set(expected.index.tolist())
            torch.testing.assert_close(kept.weights.sum().cpu(), expected.weights.sum(), **SAME)
    return "the same draws as on the CPU"


def check_seconds(device: torch.device) -> str:
    """What update() adds to a step, while the device is kept busy by nothing else."""

    def microseconds(*, pruned: bool) -> float:
        training = Training(device)
        call = training.train_data.update if pruned else torch.mean
        started = steps = 0.0
        for number, (x, y) in enumerate(training.loader):
            losses = training.criterion(training.model(x.to(device)), y.to(device))
            if number == 3:
                synchronize(device)
                started = time.perf_counter()
            call(losses).backward()
            steps += number >= 3
            if number == len(training.loader) - 2:
                break
        synchronize(device)
        return (time.perf_counter() - started) / steps * 1e6

    with_update, plain = (
        min(microseconds(pruned=pruned) for _ in range(5)) for pruned in (True, False)
    )
    return f"{with_update:.0f} µs per step with update(), {plain:.0f} with mean()"


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()


def check_two_processes(device: torch.device) -> str:
    on_gpus = device.type == "cuda" and torch.cuda.device_count() > 1
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "ranks").as_uri()
        ranks = torch.multiprocessing.spawn(_rank, (meeting, on_gpus), nprocs=2, join=False)
        deadline = time.monotonic() + SECONDS
        while not ranks.join(timeout=1):
            if time.monotonic() > deadline:
                for process in ranks.processes:
                    process.kill()
                raise TimeoutError(f"the two processes did not finish within {SECONDS} seconds")
    result = "two ranks with the same plans and scores"
    if not on_gpus:
        raise NotCheckedError(f"two GPUs with NCCL; on the CPU with Gloo: {result}")
    return result


def _rank(rank: int, meeting: str, on_gpus: bool) -> None:
    device = torch.device("cuda", rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    backend = "nccl" if on_gpus else "gloo"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=2)
    training = Training(device)
    model = DistributedDataParallel(training.model)
    for _, x, y in training.batches():
        training.step(training.train_data.update(training.criterion(model(x), y)))
    scores = training.train_data.scores.to(device)
    largest = scores.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    assert torch.equal(largest, scores), "the ranks have different scores"
    assert training.train_data.savings.saved > 0
    dist.destroy_process_group()


CHECKS = {
    "update() trains as on the CPU, and never waits within an epoch": check_update,
    "the form with the index in the batch": check_index,
    "the pure step": check_pure_step,
    "a compiled model": check_compiled_model,
    "a compiled pure step": check_compiled_step,
    "a compiled pure step with CUDA graphs": check_compiled_step_with_graphs,
    "a pure step in a CUDA graph": check_cuda_graph,
    "update() in a CUDA graph": check_capture_of_update,
    "autocast and GradScaler": check_half_precision,
    "StreamPruner": check_stream,
    "time": check_seconds,
    "two processes": check_two_processes,
}


def run(name: str, check: Callable[[torch.device], str], device: torch.device) -> dict[str, str]:
    started = time.perf_counter()
    try:
        status, detail = "ok", check(device)
    except NotCheckedError as error:
        status, detail = "not checked", str(error)
    except Exception as error:
        status, detail = "FAILED", f"{type(error).__name__}: {error}"
        traceback.print_exc()
    seconds = time.perf_counter() - started
    print(f"{status:<12} {name}: {detail} ({seconds:.1f} s)", flush=True)
    return {"check": name, "status": status, "detail": detail, "seconds": f"{seconds:.1f}"}


def machine(device: torch.device) -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "infobatch": infobatch.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(device),
        "gpus": gpus,
    }


def found_device() -> torch.device:
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device("cpu") if device is None else torch.device(device.type, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", type=torch.device, default=None, help="such as cuda:1 or mps")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--only", default="", help="checks whose name contains this")
    arguments = parser.parse_args()
    device = arguments.device or found_device()
    about = machine(device)
    print("\n".join(f"{name}: {value}" for name, value in about.items()), flush=True)
    chosen = {name: check for name, check in CHECKS.items() if arguments.only in name}
    results = [run(name, check, device) for name, check in chosen.items()]
    arguments.out.write_text(json.dumps({**about, "checks": results}, indent=1) + "\n")
    failed = sum(result["status"] == "FAILED" for result in results)
    if device.type == "cpu":
        print("There is no accelerator here: what was checked, was checked on the CPU.")
    print(f"{len(results)} checks, {failed} failed. Please send us {arguments.out}.")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
