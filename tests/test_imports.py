"""What importing the library brings in, and which way its own imports point."""

import ast
import importlib
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

import infobatch
from docstrings import REFERENCE, find, public_names

PACKAGE = Path(infobatch.__file__).parent
# Each layer imports only from those before it, or within the same name. The longest entry that a
# module's path begins with counts.
LAYERS = [
    re.findall(r"`([\w.]+)`", line)
    for line in re.findall(
        r"^\d+\. (`.*)$", (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
]


def test_importing_infobatch_needs_only_torch_and_numpy():
    code = (
        "import sys, torch, numpy; before = set(sys.modules); import infobatch.public;"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(run.stdout.split()) <= {"infobatch", "numpy", "torch"}


def layer_of(module):
    """The number of the layer, and the entry that says so."""
    known = {name: number for number, names in enumerate(LAYERS) for name in names}
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        if name in known:
            return known[name], name
    raise AssertionError(f"{module} is in no layer")


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        yield path, name if name == "__init__" else name.removesuffix(".__init__")


def imports_of(path):
    """The modules of the package that a file imports, also inside functions."""
    names = {module for _, module in modules()}  # not looked up as files: systems ignore their case
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "infobatch":
            base = node.module.removeprefix("infobatch").lstrip(".")
            for alias in node.names:  # "from infobatch.integrations import accelerate"
                name = f"{base}.{alias.name}".lstrip(".")
                yield name if name in names else base or "__init__"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "infobatch":
                    yield alias.name.removeprefix("infobatch").lstrip(".") or "__init__"


def test_imports_point_one_way():
    seen = 0
    for path, module in modules():
        own_layer, own_entry = layer_of(module)
        for imported in imports_of(path):
            layer, entry = layer_of(imported)
            seen += 1
            assert layer < own_layer or entry == own_entry, f"{module} imports {imported}"
    assert seen > 100


def test_every_layer_is_of_something():
    """A name that was renamed or removed would allow nothing, and nobody would notice."""
    known = [module for _, module in modules()]
    assert len(LAYERS) > 10
    for name in chain.from_iterable(LAYERS):
        assert any(module == name or module.startswith(f"{name}.") for module in known), name


def test_the_core_names_no_trainer():
    """What is known about other packages' loaders is behind loaders/known.py."""
    for path, module in modules():
        if module.split(".")[0] not in ("lab", "integrations", "loaders", "schedule", "scoring"):
            text = path.read_text().lower()
            for package in ("accelerate", "fabric", "lightning", "torchdata", "timm"):
                assert package not in text, f"{module} names {package}"


def private_attributes(path):
    """The private attributes that the classes of a file have, and those that the file uses."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    methods = {part.name for node in classes for part in node.body if hasattr(part, "name")}
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    stored = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
    used = {node.attr for node in attributes}
    return [
        {name for name in names if re.match("_[a-z]", name)} for names in (methods | stored, used)
    ]


@pytest.mark.parametrize("package", ["integrations", "lab"])
def test_nothing_private_is_used_of_the_core(package):
    """What a trainer needs of a pruner is public, so that anybody can write an integration."""
    core, own, used = set(), set(), {}
    for path, module in modules():
        has, uses = private_attributes(path)
        if module.split(".")[0] == package:
            own |= has
            used[module] = uses
        elif module.split(".")[0] not in ("integrations", "lab"):
            core |= has
    assert {"_course", "_ranks", "_channels", "_sampler"} <= core
    assert len(used) > 15
    assert {
        module: uses & (core - own) for module, uses in used.items() if uses & (core - own)
    } == {}


def test_integrations_import_public_names_from_public_modules():
    """Those of the API reference, as docs/write-an-integration.md says."""
    table = (REFERENCE / "index.md").read_text()
    public_modules = set(re.findall(r"^\| `(infobatch[.\w]*)` \|", table, re.MULTILINE))
    public = [find(name) for name in public_names() if ".integrations." not in name]
    of_modules = {  # that have no entry for each of their names
        "infobatch.trainers": find("infobatch.trainers").__all__,
        "infobatch.policies": find("infobatch.policies").__all__,
    }
    checked = 0
    for path, module in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if not module.startswith("integrations.") or not isinstance(node, ast.ImportFrom):
                continue
            source = node.module or ""
            if source.partition(".")[0] != "infobatch" or ".integrations" in source:
                continue
            assert source in public_modules, f"{module} imports from {source}"
            for alias in node.names:
                name = f"{source}.{alias.name}"
                known = alias.name in of_modules.get(source, ())
                known |= name in public_modules or any(find(name) is entry for entry in public)
                assert known, f"{module} imports {name}, which has no entry in docs/api"
                checked += 1
    assert checked > 30


def test_every_file_is_on_the_map():
    """In its folder's table or paragraph: "checks.py" is the name of several files."""
    page = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text()
    parts = re.split(r"\n\n(?=\| `|\*\*)", page.partition("## The map")[2].partition("\n## ")[0])
    for path, module in modules():
        folder = path.relative_to(PACKAGE).parent.as_posix()
        room = folder.removeprefix("integrations/")
        title = "**What users touch.**" if room == "." else f"`{room}/`"
        if path.name != "__init__.py":
            named = [part for part in parts if title in part and f"`{path.name}`" in part]
            assert named, f"{module} is not on the map"


def test_every_file_on_the_map_exists():
    page = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text()
    tables = re.findall(r"^\| `([\w/]+)/` \| \|\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert len(tables) > 15
    for folder, table in tables:
        files = re.findall(
            r"`(\w+\.py)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))
        )
        assert files, folder
        for file in files:
            assert (PACKAGE / folder / file).exists(), f"{folder}/{file} is on the map only"


def test_the_files_of_which_coverage_is_stated_exist():
    page = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text()
    section = page.partition("## Coverage")[2].partition("\n## ")[0]
    files = re.findall(r"`([\w/]+\.py)` \d", section)
    assert len(files) > 10
    assert [file for file in files if not (PACKAGE / file).exists()] == []


def test_where_to_change_what():
    """A newcomer is sent to classes, functions and tests that exist."""
    page = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text()
    section = page.partition("## Where to change what")[2].partition("\n## ")[0]
    rows = [row.split("|")[2:4] for row in section.splitlines() if row.startswith("| ")][1:]
    assert len(rows) > 5
    for places, tests in rows:
        for path in re.findall(r"`([\w/-]+\.(?:py|md))`", places + tests):
            in_repository = path.startswith(("tests/", "docs/"))
            folder = PACKAGE.parents[1] if in_repository else PACKAGE
            assert (folder / path).exists(), path
        for part in places.split(";"):
            file = re.search(r" in `([\w/]+)\.py`", part)
            names = re.findall(r"`([A-Z][\w.]+)`", part) if file else []
            for name in names:
                target = importlib.import_module(f"infobatch.{file[1].replace('/', '.')}")
                for attribute in name.split("."):
                    target = getattr(target, attribute)


def test_nothing_heavy_is_imported_before_a_name_is_asked_for():
    code = (
        "import sys, infobatch; assert infobatch.__version__; print('torch' in sys.modules);"
        "infobatch.Pruner; print('torch' in sys.modules); print(infobatch.plan.Plan.__name__)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True", "Plan"]


@pytest.mark.parametrize("module", ["pruner", "dataset", "lab.run.arms", "public"])
def test_any_module_may_be_the_first_that_is_imported(module):
    code = f"import infobatch.{module}; from infobatch import Pruner, paced, scoring"
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'infobatch' has no attribute 'nonsense'"):
        _ = infobatch.nonsense
    with pytest.raises(ImportError, match="cannot import name 'nonsense' from 'infobatch'"):
        from infobatch import nonsense  # noqa: F401, PLC0415


def test_public_names():
    assert set(infobatch.__all__) <= set(dir(infobatch))
    for name in infobatch.__all__:
        assert getattr(infobatch, name).__doc__, name
