"""Tasks: recipes by name, and files of one's own."""

import re
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from infobatch.lab.cli import app
from infobatch.lab.task import TaskError, load_task, one_cycle

ROOT = Path(__file__).parents[2]
MY_TASK = ROOT / "examples" / "my_task.py"


def infobatch(*arguments, check=True):
    """Run the command line in this process; the runs of a comparison are processes of their own."""
    run = CliRunner(env={"OMP_NUM_THREADS": "1"}).invoke(app, [str(part) for part in arguments])
    assert not check or run.exit_code == 0, run.stderr
    return run


def test_a_file_of_ones_own():
    task = load_task(str(MY_TASK))
    assert (task.name, task.epochs, task.margin) == ("my_task", 8, 0.5)
    with pytest.raises(TaskError, match="--set works for recipes"):
        load_task(str(MY_TASK), options={"a": "b"})
    with pytest.raises(
        TaskError, match=r"--data works for recipes; .* os.environ\['INFOBATCH_DATA'\]"
    ):
        load_task(str(MY_TASK), data=Path("somewhere"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('metric = "accuracy"\n', "", "does not define metric. Expected data()"),
        (
            "margin = 0.5",
            "other = 0.5",
            "does not define margin. Expected data() -> (train, test), model(), losses(model, batch) "
            "-> one loss per sample, evaluate(model, data) -> number, and two settings: metric, the "
            'name of that number, such as "accuracy"; and margin, the largest drop in it that you would '
            "accept, in its own unit",
        ),
        ("margin = 0.5", "margin = 0", "margin = 0, expected a number above 0."),
        ("epochs = 8", "epochs = 0.5", "epochs = 0.5, expected an integer >= 1."),
        ('metric = "accuracy"', "metric = 3", "metric = 3, expected its name, a string."),
    ],
)
def test_what_a_task_must_say(tmp_path, old, new, message):
    text = MY_TASK.read_text()
    assert old in text
    (tmp_path / "unsaid.py").write_text(text.replace(old, new))
    with pytest.raises(TaskError) as caught:
        load_task(str(tmp_path / "unsaid.py"))
    assert message in str(caught.value)


def test_a_task_imports_its_neighbours_and_has_dataclasses(tmp_path):
    """In the parent and, as the comparison runs, in the runs' own processes."""
    (tmp_path / "neighbour_nets.py").write_text(
        "from torch import nn\n\ndef network():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
    )
    text = MY_TASK.read_text().replace("import torch\n", DATACLASS + "import torch\n", 1)
    text = text.replace("def model():", "def model():\n    return network()\n\n\ndef unused():")
    (tmp_path / "with_neighbours.py").write_text("from __future__ import annotations\n" + text)
    arguments = ("--smoke", "--lengths", 1, "--arms", "full", "--seeds", 1)
    infobatch("compare", tmp_path / "with_neighbours.py", *arguments, "--out", tmp_path / "out")
    assert (tmp_path / "out" / "runs" / "full-1-0" / "result.json").exists()
    task = load_task(str(tmp_path / "with_neighbours.py"))
    assert len(task.model()) == 2
    assert sys.modules["with_neighbours"].losses is task.losses, "workers find it by its name"


DATACLASS = """from dataclasses import dataclass

from neighbour_nets import network


@dataclass
class Settings:
    width: int = 3


"""


def test_a_task_with_the_name_of_another_module_raises(tmp_path):
    before = sys.modules["json"]
    (tmp_path / "json.py").write_text(MY_TASK.read_text())
    with pytest.raises(TaskError, match=r"has the name of another module, 'json'. Rename the file"):
        load_task(str(tmp_path / "json.py"))
    assert sys.modules["json"] is before
    assert str(tmp_path) not in sys.path


def test_a_failed_import_leaves_no_module(tmp_path):
    (tmp_path / "half_a_task.py").write_text("epochs = 3\nraise ValueError('no')")
    with pytest.raises(TaskError, match="fails on import: ValueError: no"):
        load_task(str(tmp_path / "half_a_task.py"))
    assert "half_a_task" not in sys.modules


@pytest.mark.parametrize("page", ["examples/my_task.py", "docs/lab.md"])
def test_the_documented_tasks_evaluate_on_the_models_device(page, tmp_path):
    """On the meta device, which holds no numbers: the measurement gets as far as reading one."""
    text = (ROOT / page).read_text()
    if page.endswith(".md"):
        (text,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "documented.py").write_text(text)
    task = load_task(str(tmp_path / "documented.py"))
    _, test = task.data()
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        task.evaluate(task.model().to("meta"), test)


@pytest.mark.parametrize("steps", range(1, 12))
def test_the_default_schedule_has_any_number_of_steps(steps):
    """With five, a fifth of them ends at the first step, and torch's one cycle divides by zero."""
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    schedule = one_cycle(optimizer, steps)
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(steps - 1):
        optimizer.step()
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert all(0 <= rate <= 0.1 + 1e-9 for rate in rates)
    assert steps < 3 or rates[-1] < 0.01 * max(rates)
