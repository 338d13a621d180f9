"""Every example in the README and the docs runs, and the README's numbers are the stored ones."""

import functools
import json
import math
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import types
from contextlib import suppress

import pytest
import torch
import typer
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from PIL import Image
from torch import distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from document_examples import ROOT, examples, surroundings
from infobatch.lab.cli import app
from tiny_models import arguments, bert, classified


def test_readme(tmp_path, capsys):
    blocks = examples("README.md")
    assert len(blocks) == 4
    namespace = surroundings(tmp_path)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    assert re.match(r"Saved \d+\.\d% of 1,200 sample passes", capsys.readouterr().out)
    assert namespace["pruner"].savings.made == 400


def test_forecast_page(tmp_path, capsys):
    """The output below the example is what it prints."""
    (block,) = examples("docs/forecast.md")
    exec(compile(block, "forecast.md", "exec"), surroundings(tmp_path))
    printed = capsys.readouterr().out
    assert f"```\n\n```\n{printed}```\n" in (ROOT / "docs/forecast.md").read_text()


def test_policies_page(tmp_path):
    namespace = surroundings(tmp_path)
    for block in examples("docs/policies.md"):
        exec(compile(block, "policies.md", "exec"), namespace)
        train_data = namespace["train_data"]
        if "refresh(" in block:  # trains by itself
            assert train_data.savings.refreshed > 0
            continue
        loader = DataLoader(train_data, 32, sampler=train_data.sampler)
        for _ in range(2):
            for x, y in loader:
                train_data.update(namespace["criterion"](namespace["model"](x), y))
        assert train_data.plan.weights.sum().item() == pytest.approx(400)
        assert train_data.savings.saved > 50


@pytest.mark.parametrize("number", range(10))
def test_usage_page(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {**surroundings(tmp_path), "DataLoader": DataLoader}
    train_data = infobatch.InfoBatch(namespace["data"], 3, delta=1.0)
    loader = DataLoader(train_data, 64, sampler=train_data.sampler)
    for x, y in loader:
        train_data.update(namespace["criterion"](namespace["model"](x), y))
    namespace.update(train_data=train_data, loader=loader)
    block = examples("docs/usage.md")[number]
    if "closure" in block:
        namespace["optimizer"] = torch.optim.LBFGS(namespace["model"].parameters(), max_iter=2)
    exec(compile(block, "usage.md", "exec"), namespace)
    if "in loader" in block:
        assert train_data.savings.made == 400 + len(train_data.plan)
    if "stratified" in block:
        batches = namespace["targets"][namespace["train_data"].plan.order].view(-1, 50)
        share = namespace["targets"].float().mean()
        assert ((batches.sum(1) - 50 * share).abs() <= 1 + math.log2(50)).all()
    if "shrink" in block:
        sizes = [len(x) for x, _ in namespace["loader"]]
        assert len(sizes) == len(namespace["loader"]) == 7
        assert sum(sizes) == len(train_data.plan) < 400
    if "initial_scores" in block:
        assert len(namespace["train_data"].plan) < 400
    if "last_loss" in block:
        assert len(loader) == -(-len(train_data.plan) // 64) < 7
        assert 0 < namespace["epoch_loss"] < 10
    assert len(examples("docs/usage.md")) == 10


def test_coresets_page(tmp_path, monkeypatch, capsys):
    """The blocks run in order, and every method is in the table and nothing else."""
    monkeypatch.chdir(tmp_path)
    outputs = torch.rand(400, 2, generator=torch.Generator().manual_seed(0)).softmax(1)
    namespace = {
        **surroundings(tmp_path),
        "DataLoader": DataLoader,
        "make_model": lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)),
        "embeddings": torch.randn(400, 6, generator=torch.Generator().manual_seed(0)),
        "outputs": outputs,
        "held_out": TensorDataset(torch.randn(50, 5), torch.randint(2, (50,))),
    }
    for block in examples("docs/coresets.md"):
        exec(compile(block, "coresets.md", "exec"), namespace)
        if "chosen" in block:
            assert 40 <= len(namespace["chosen"]) <= 120
    assert "samples_backpropagated=1600" in capsys.readouterr().out  # 3 + 1 epochs of 400
    assert namespace["chosen"].method == "forgetting"
    page = (ROOT / "docs/coresets.md").read_text()
    table = page.partition("## The methods")[2].partition("Gradients are")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(infobatch.coresets.METHODS)


def test_few_epochs_page(tmp_path, monkeypatch, capsys):
    """The blocks run in order: scores of an earlier run, a pass without gradients, a stream."""
    monkeypatch.chdir(tmp_path)
    namespace = {**surroundings(tmp_path), "torch": torch}
    train_data = infobatch.InfoBatch(namespace["data"], 3)
    loader = DataLoader(train_data, 64, sampler=train_data.sampler)
    for x, y in loader:
        train_data.update(namespace["criterion"](namespace["model"](x), y))
    stream = DataLoader(namespace["data"], 40)
    namespace |= {"train_data": train_data, "stream": stream, "train_dataset": classified(400)}
    namespace |= {"language_model": bert(), "args": arguments(tmp_path, num_train_epochs=1)}
    blocks = examples("docs/few-epochs.md")
    assert len(blocks) == 6
    for block in blocks:
        exec(compile(block, "few-epochs.md", "exec"), namespace)
        if "max_noise" in block:
            assert namespace["pruner"].max_noise == 0.1
        if "initial_scores" in block and "InfoBatch(" in block:
            assert len(namespace["train_data"].plan) < 400
    assert namespace["trainer"].pruner.savings.made < 400
    assert namespace["pruner"].count == 16
    assert "training steps (400 scored, 1" in capsys.readouterr().out


def scoring_surroundings(tmp_path):
    """What the examples of docs/scoring.md take as given: outputs of models for each task."""
    namespace = surroundings(tmp_path)
    train_data = infobatch.InfoBatch(namespace["data"], 3, delta=1.0)
    targets = torch.randint(2, (4,))
    classify = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))

    class Detector(nn.Module):
        def forward(self, images, targets):
            error = classify(torch.stack(images)).square().mean() - targets[0]
            return {"loss_classifier": error, "loss_box_reg": error * 2}

    return {
        **namespace,
        "torch": torch,
        "train_data": train_data,
        "loader": DataLoader(train_data, 64, sampler=train_data.sampler),
        "class_weights": torch.tensor([1.0, 2.0]),
        "sums": torch.rand(4, requires_grad=True),
        "counts": torch.tensor([3, 5, 9, 1]),
        "logits": torch.randn(4, 2, requires_grad=True),
        "targets": targets,
        "probabilities": torch.rand(4, 2).softmax(1),
        "multi_hot": torch.rand(4, 2).round(),
        "images": torch.randn(4, 3, 2, 2),
        "classify": classify,
        "pixel_logits": torch.randn(4, 2, 3, 3, requires_grad=True),
        "auxiliary_logits": torch.randn(4, 2, 3, 3, requires_grad=True),
        "masks": torch.randint(2, (4, 3, 3)),
        "predictions": torch.randn(4, 6, 5, requires_grad=True),
        "patches": torch.randn(4, 6, 5),
        "mask": torch.rand(4, 6).round(),
        "alphas_cumprod": torch.linspace(0.99, 0.01, 1000),
        "timesteps": torch.randint(1000, (4,)),
        "clean": torch.randn(4, 3),
        "noise": torch.randn(4, 3),
        "prediction": torch.randn(4, 3, requires_grad=True),
        "token_logits": torch.randn(2, 5, 7, requires_grad=True),
        "labels": torch.randint(7, (2, 5)),
        "shifted": torch.randint(7, (2, 5)),
        "num_items_in_batch": torch.tensor(20),
        "position_ids": torch.tensor([[0, 1, 0, 1, 2], [0, 1, 2, 3, 4]]),
        "detector": Detector(),
        "boxes": torch.rand(4),
        "box_by_image": torch.rand(4, requires_grad=True),
        "cls_by_image": torch.rand(4, requires_grad=True),
        "dfl_by_image": torch.rand(4, requires_grad=True),
        "target_scores": torch.rand(4, 6, 2),
        "image_embeddings": torch.randn(4, 5, requires_grad=True),
        "text_embeddings": torch.randn(4, 5, requires_grad=True),
        "logit_scale": torch.tensor(2.0, requires_grad=True),
        "values": torch.randn(4, 2, requires_grad=True),
        "measured": torch.randn(4, 2),
        "spread": torch.tensor([1.0, 10.0]),
        "batch_loss": torch.tensor(1.0, requires_grad=True),
        "index": torch.arange(4),
    }


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit.*:DeprecationWarning"
)  # torch's own, when it compiles
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_accelerators_page(tmp_path, monkeypatch):
    """On the CPU, without a CUDA graph, and without Inductor, which tests/step/test_pure_step.py has."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    namespace = surroundings(tmp_path)
    torch._dynamo.reset()
    for block in examples("docs/accelerators.md"):
        exec(compile(block, "accelerators.md", "exec"), namespace)
        if "InfoBatch(" in block:
            assert namespace["train_data"].savings.made < 1200
        if "graph.replay()" in block:
            replay_on_cpu(namespace)


def test_the_programs_of_xla_are_those_that_were_counted():
    forms = json.loads((ROOT / "benchmarks/results/xla_steps.json").read_text())["forms"]
    page = (ROOT / "docs/accelerators.md").read_text()
    for form, result in forms.items():
        programs = result["programs compiled by epoch"]
        assert f"| {form} | {', '.join(map(str, programs))} |\n" in page
        assert result["largest difference of a parameter from the CPU"] < 1e-6
        if "pad" in form:
            assert programs[2:] == [0, 0, 0]


def replay_on_cpu(namespace):
    """An epoch of the page's CUDA graph, with a function in the place of the graph."""
    losses = torch.empty(64)
    graph = types.SimpleNamespace(replay=lambda: losses.copy_(namespace["training_step"]()))
    namespace["train_data"] = train_data = infobatch.InfoBatch(namespace["data"], 3)
    loader = DataLoader(train_data, batch_sampler=train_data.batch_sampler(64, pad=True))
    for x, y in loader:
        namespace["replayed"](graph, losses, x, y)
    assert train_data.savings.made == 400
    assert train_data.scores.isfinite().all()


def test_scoring_page(tmp_path):
    """The blocks run in order, and every function of infobatch.scoring is shown in one of them."""
    namespace = scoring_surroundings(tmp_path)
    blocks = examples("docs/scoring.md")
    for block in blocks:
        exec(compile(block, "scoring.md", "exec"), namespace)
        if "result =" in block:
            assert namespace["result"].losses.requires_grad
    shown = set(re.findall(r"scoring\.(\w+)\(", "".join(blocks)))
    assert shown == set(infobatch.scoring.__all__) - {"PerSample"}
    assert namespace["train_data"].savings.made == 400


def test_probe_page(tmp_path, capsys):
    """The first example looks, the second one prunes by what it sees; the printed report is the stored one."""
    namespace = surroundings(tmp_path)
    namespace["model"] = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    namespace["optimizer"] = torch.optim.SGD(namespace["model"].parameters(), lr=0.1)
    namespace["train_data"] = infobatch.InfoBatch(namespace["data"], 3)
    namespace["loader"] = DataLoader(
        namespace["train_data"], 32, sampler=namespace["train_data"].sampler
    )
    namespace["DataLoader"] = DataLoader
    look, prune = examples("docs/probe.md")
    exec(compile(look, "probe.md", "exec"), namespace)
    assert "Gradients at Linear, 400 samples:" in capsys.readouterr().out
    exec(compile(prune, "probe.md", "exec"), namespace)
    assert namespace["train_data"].savings.saved
    assert "gradient" in namespace["train_data"].state_dict()["columns"]
    stored = json.loads((ROOT / "benchmarks" / "results" / "probe_report.json").read_text())
    page = (ROOT / "docs" / "probe.md").read_text()
    assert "\n".join(stored["report"]) in page
    costs = json.loads((ROOT / "benchmarks" / "results" / "probe_cost.json").read_text())
    for row in costs["rows"]:
        figures = f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        assert f"| {row['network']} | `{row['layer']}` | {figures} |" in page


def test_experimental_page(capsys):
    """The examples follow one another; each method leaves samples out, at a counted cost."""
    namespace = {}
    proxied, blocked, unbiased = examples("docs/experimental.md")
    exec(compile(proxied, "experimental.md", "exec"), namespace)
    assert namespace["proxy"].savings.scored == 512
    assert namespace["proxy"].savings.trained == 256
    assert 0 < namespace["proxy"].savings.forward_cost < 0.05
    exec(compile(blocked, "experimental.md", "exec"), namespace)
    published = namespace["blocking"].savings
    assert 0 < published.fraction < 0.4, "the first layers see every sample"
    assert capsys.readouterr().out.count("Saved ") == 2
    exec(compile(unbiased, "experimental.md", "exec"), namespace)
    assert namespace["blocking"].savings.trained < 512


class StoppedError(Exception):
    """A run that was stopped after a checkpoint."""


def accelerated(folder, stop=None, **options):
    """The resuming loop of docs/accelerate.md, which saves every 5 steps and stops after ``stop``."""
    pruner = infobatch.Pruner(100, 3, delta=1.0)
    data = TensorDataset(torch.arange(100.0)[:, None], torch.zeros(100))
    loader = DataLoader(
        infobatch.Indexed(data), 8, sampler=pruner.sampler, collate_fn=infobatch.with_index()
    )
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(loader)
    accelerator.register_for_checkpointing(pruner)
    visits = []

    def train_step(index, x, y):
        if len(visits) == stop:
            raise StoppedError
        visits.append((pruner.epoch, index.tolist()))
        pruner.update(x.squeeze(1) + y, index=index)

    _, _, block = examples("docs/accelerate.md")
    names = {"accelerator": accelerator, "pruner": pruner, "loader": loader, "num_epochs": 3}
    names |= {"train_step": train_step, "checkpointing_steps": 5, "output_dir": folder}
    with suppress(StoppedError):
        exec(compile(block, "accelerate.md", "exec"), names | options)
    return visits, str(pruner.savings), {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("stop", [5, 15, 20, 25])
def test_accelerate_page_resumes(stop, tmp_path):
    """In each epoch: no sample twice, none left out, and checkpoints continue to be counted."""
    new = {"resume_from_checkpoint": None}
    visits, savings, names = accelerated(tmp_path / "straight", **new)
    before, _, _ = accelerated(tmp_path / "stopped", stop, **new)
    saved = tmp_path / "stopped" / f"step_{stop}"
    after, resumed, later = accelerated(tmp_path / "resumed", resume_from_checkpoint=saved)
    assert before + after == visits
    assert resumed == savings
    assert len(visits) < 3 * 13
    assert later == {name for name in names if int(name.removeprefix("step_")) > stop}


def test_accelerate_page(tmp_path, capsys):
    block, epochs, _ = examples("docs/accelerate.md")
    namespace = surroundings(tmp_path)
    exec(compile(block, "accelerate.md", "exec"), namespace)
    assert re.match(r"Saved \d+\.\d% of 1,200 sample passes", capsys.readouterr().out)
    assert namespace["schedule"].last_epoch == 3 * 7
    namespace["max_train_steps"] = 15  # declared: 3 epochs; it takes 7 steps for one
    exec(compile(epochs, "accelerate.md", "exec"), namespace)
    assert namespace["pruner"].num_epochs == 3
    assert namespace["max_train_steps"] == 21


def test_distributed_page(tmp_path, monkeypatch):
    """The first and last block in a process group of one, the others as rank 3 of a job of 8."""
    AcceleratorState._reset_state(
        reset_partial_state=True
    )  # of tests before: it shards batches itself
    whole, mesh, pipeline, context, checkpoint = examples("docs/distributed.md")
    namespace = surroundings(tmp_path)
    namespace |= {"DataLoader": DataLoader, "per_rank": 64, "folder": tmp_path / "saved"}
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    try:
        exec(compile(whole, "distributed.md", "exec"), namespace)
        for x, y in namespace["loader"]:
            namespace["train_data"].update(namespace["criterion"](namespace["model"](x), y))
        exec(compile(checkpoint, "distributed.md", "exec"), namespace)
        assert list((tmp_path / "saved").glob("*.distcp"))
        distributed.destroy_process_group()
        distributed.init_process_group("fake", store=FakeStore(), rank=3, world_size=8)
        exec(compile(mesh.replace('"cuda"', '"cpu"'), "distributed.md", "exec"), namespace)
        train_data = namespace["train_data"]
        assert len(train_data.sampler) == 100, "two ranks share a batch"
        assert "ScheduleGPipe" in pipeline  # runs in real processes, see model_parallel_cases
        train_data.set_epoch(0)
        next(iter(train_data.batch_sampler(8)))
        tokens = torch.rand(8, 12, requires_grad=True)
        exec(compile(context, "d", "exec"), namespace | {"token_losses": tokens, "num_tokens": 24})
        assert train_data.last_loss == pytest.approx(tokens.sum(1).mean().item() / 24)
    finally:
        distributed.destroy_process_group()


def commands():
    """Every `infobatch` command of the README and the docs, with the page that it is on."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text()
        blocks = re.findall(r"(?ms)^```(\w*)\n(.*?)^```", text)
        shell = "\n".join(block for language, block in blocks if language in ("", "sh"))
        fenced = re.findall(r"(?m)^infobatch .*$", shell)
        inline = re.findall(r"`(infobatch [a-z][^`|…]*)`", text)
        for command in [*fenced, *inline]:
            yield page.name, shlex.split(command.replace("\n", " "), comments=True)[1:]


def test_commands_on_pages_can_be_parsed():
    """Each has the name, the arguments and the options of a command."""
    program = typer.main.get_command(app)
    seen = 0
    for page, (name, *words) in commands():
        assert name in program.commands, f"{page} has infobatch {name}"
        if words:  # prose may name a command alone
            program.commands[name].make_context(name, list(words))
        seen += 1
    assert seen > 25


def test_no_page_with_python_escapes():
    """A test asks for the blocks of each, and no block has a language that no test looks for."""
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        page = path.relative_to(ROOT).as_posix()
        languages = re.findall(r"(?m)^ *```(\w*).*\n(?:.*\n)*?^ *```$", path.read_text())
        assert set(languages) <= {"", "bibtex", "diff", "math", "python", "sh"}, page
        if "python" in languages:
            assert f'examples("{page}")' in tests, f"no test runs the blocks of {page}"
        if "diff" in languages:
            assert page in ("docs/scripts.md", "docs/timm.md"), f"no test applies {page}"


@pytest.mark.parametrize(
    ("page", "script"),
    [
        ("docs/performance.md", "overhead_summary.py"),
        ("docs/performance.md", "rules_summary.py"),
        ("docs/performance.md", "operations_summary.py"),
        ("docs/policies/noise.md", "spreads_summary.py"),
        ("docs/policies/noise.md", "sizes_summary.py"),
        ("docs/coresets.md", "coresets_summary.py"),
        ("docs/few-epochs.md", "warm_sweep_summary.py"),
        ("docs/streamed.md", "keyed_summary.py"),
        ("docs/streamed.md", "streamed_summary.py"),
        ("docs/grpo.md", "grpo_summary.py"),
        ("docs/grpo.md", "grpo_summary.py benchmarks/results/grpo_sums_solved.json"),
        ("docs/results/score-noise.md", "score_noise_summary.py"),
        ("docs/results/score-noise.md", "detection_sizes_summary.py"),
        ("docs/results/seconds.md", "seconds_summary.py"),
        ("docs/recipes.md", "airbench_tuning_summary.py"),
        ("docs/lab.md", "evidence/coverage.py --stored"),
    ],
)
def test_tables_are_what_was_measured(page, script):
    run = subprocess.run(
        [sys.executable, *f"benchmarks/{script}".split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "\n|---|" in run.stdout
    assert run.stdout in (ROOT / page).read_text()


def render(*arguments):
    command = [sys.executable, ROOT / "benchmarks/evidence/pages.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_pages_of_results_are_what_is_stored():
    """README, pages and figures are what `make results` would write."""
    checked = render("--check")
    assert checked.returncode == 0, checked.stderr


def test_a_page_that_disagrees_with_its_results_is_noticed(tmp_path):
    """Also where a figure is older than its results; and `make results` mends both."""
    for folder in ("benchmarks", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    text = (ROOT / "README.md").read_text()
    page = tmp_path / "README.md"
    page.write_text(re.sub(r"(?m)^\| \*\*most samples.*$", "an old row", text))
    assert page.read_text() != text
    picture = tmp_path / "docs/images/frontier.png"
    Image.new("RGB", (4, 4)).save(picture)
    pages = tmp_path / "benchmarks/evidence/pages.py"
    check = subprocess.run(
        [sys.executable, pages, "--check"], capture_output=True, text=True, check=False
    )
    assert check.returncode == 1
    assert "Not what is stored: README.md, docs/images/frontier.png. Run: make" in check.stderr
    subprocess.run([sys.executable, pages], check=True)
    assert page.read_text() == text
    subprocess.run([sys.executable, pages, "--check"], check=True)


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_tested_versions_are_those_that_were_run():
    stored = json.loads((ROOT / "benchmarks/results/matrix.json").read_text())
    script = runpy.run_path(str(ROOT / "benchmarks/matrix.py"))
    assert script["table"](stored) in (ROOT / "docs/versions.md").read_text()


def test_cards_of_policies_are_what_is_stored(tmp_path):
    """And a card that is not is noticed, and written again."""
    script = "benchmarks/evidence/cards.py"
    check = [sys.executable, script, "--check"]
    subprocess.run(check, check=True, cwd=ROOT)
    for folder in ("benchmarks", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    card = tmp_path / "docs/policies/mean.md"
    text = card.read_text()
    card.write_text(re.sub(r"(?m)^\| \[Saving at equal quality: Fashion.*\n", "", text))
    assert card.read_text() != text
    checked = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 1
    assert "Not what is stored: mean.md. Run: make results" in checked.stderr
    subprocess.run([sys.executable, script], check=True, cwd=tmp_path)
    assert card.read_text() == text
