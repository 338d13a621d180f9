"""Which way the imports inside the lab point: one way, those inside functions included."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import infobatch.lab

LAB = Path(infobatch.lab.__file__).parent
# Each layer imports only from those before it.
LAYERS = [
    {"files", "options", "smoke", "terminal"},
    {"stats"},
    {"datasets"},
    {"recipes"},
    {"task"},
    {"run"},
    {"compare"},
    {"report"},
    {"commands"},
    {"select_command", "forecast_command"},
    {"cli"},
    {"__init__"},
]
LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names}


def modules(folder):
    """The path of each module of a package, by its dotted name below the package."""
    paths = {path.relative_to(folder).with_suffix(""): path for path in folder.rglob("*.py")}
    return {".".join(name.parts): path for name, path in paths.items()}


def imports_of(path, known, package):
    """The modules of the package that a file imports, anywhere in it.

    ``import_module(f"{package}.recipes.{name}")`` counts as an import of all modules of that folder.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"{path}: a relative import")
        if isinstance(node, ast.ImportFrom):
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and "import_module" in ast.dump(node.func):
            prefix = ast.unparse(node.args[0]).lstrip("f").strip("'\"").partition("{")[0]
            names = [f"{package}.{name}" for name in known]
            names = [name for name in names if name.startswith(prefix)]
        else:
            continue
        for name in names:
            inside = name.removeprefix(f"{package}.")
            if name != inside and inside in known:
                yield inside


def graph_of(folder, package):
    known = modules(folder)
    return {name: set(imports_of(path, known, package)) - {name} for name, path in known.items()}


def test_layers():
    for name, imported in graph_of(LAB, "infobatch.lab").items():
        own_layer = name.partition(".")[0]
        assert own_layer in LAYER_OF, f"{name} is in no layer"
        for other in imported:
            layer = other.partition(".")[0]
            assert layer == own_layer or LAYER_OF[layer] < LAYER_OF[own_layer], (
                f"{name} imports {other}"
            )


def test_no_cycle():
    assert len(list(TopologicalSorter(graph_of(LAB, "infobatch.lab")).static_order())) > 30


def test_a_cycle_through_a_function_is_seen(tmp_path):
    (tmp_path / "rooms").mkdir()
    (tmp_path / "above.py").write_text(
        "from importlib import import_module\n"
        "def load(name):\n    return import_module(f'lab.rooms.{name}')\n"
    )
    (tmp_path / "rooms" / "below.py").write_text("x = 1\n")
    TopologicalSorter(graph_of(tmp_path, "lab")).prepare()
    (tmp_path / "rooms" / "below.py").write_text(
        "def late():\n    from lab.above import load\n    return load\n"
    )
    with pytest.raises(CycleError):
        TopologicalSorter(graph_of(tmp_path, "lab")).prepare()
