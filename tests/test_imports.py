"""What importing the library brings in, and which way its own imports point."""

import ast
import subprocess
import sys
from pathlib import Path

import infobatch

PACKAGE = Path(infobatch.__file__).parent
# Each layer imports only from those before it.
LAYERS = [
    {"cipher", "per_sample", "checks", "savings", "sampler", "dealing"},
    {"plan"},
    {"distributed"},
    {"policies", "ledger", "state", "batch"},
    {"weighting", "planning", "endings"},
    {"pruner"},
    {"dataset"},
    {"schedule"},
    {"scoring"},
    {"__init__"},
    {"integrations"},
    {"lab"},
]


def test_importing_infobatch_needs_only_torch_and_numpy():
    code = (
        "import sys, torch, numpy; before = set(sys.modules); import infobatch;"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(run.stdout.split()) <= {"infobatch", "numpy", "torch"}


def test_imports_point_one_way():
    layer_of = {name: number for number, names in enumerate(LAYERS) for name in names}
    for path in PACKAGE.rglob("*.py"):
        relative = path.relative_to(PACKAGE)
        own = relative.parts[0].removesuffix(".py")
        assert own in layer_of, f"{relative} is in no layer"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("infobatch"):
                imported = (node.module + ".__init__").split(".")[1]
                if imported != own:
                    assert layer_of[imported] < layer_of[own], f"{relative} imports {imported}"


def test_public_names():
    assert set(infobatch.__all__) <= set(dir(infobatch))
    for name in infobatch.__all__:
        assert getattr(infobatch, name).__doc__, name
