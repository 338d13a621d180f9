"""Where the tests find the data sets that may not lie in the repository, if they are there."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from infobatch.lab.datasets.folder import DATA_VARIABLE
from infobatch.lab.recipes.registry import RECIPES

ROOT = Path(__file__).parents[2]


def data_folder():
    """The folder that $INFOBATCH_DATA names, or shared/data beside the repository."""
    named = os.environ.get(DATA_VARIABLE)
    shared_folder = ROOT.parent / "shared" / "data"
    return Path(named) if named else (shared_folder if shared_folder.is_dir() else None)


DATA = data_folder()


def needs_data(name):
    """Skip what needs a recipe's data or packages where they are not."""
    files, packages = RECIPES.entries[name].files, RECIPES.entries[name].packages
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        return pytest.mark.skip(reason=f"{name}: {', '.join(missing)} is not installed")
    there = DATA is not None and all(
        any((DATA / option).exists() for option in file.split(" or ")) for file in files
    )
    reason = f"{name}: no data set {' and '.join(files)}; name a folder with ${DATA_VARIABLE}"
    return pytest.mark.skipif(bool(files) and not there, reason=reason)


EVERY_RECIPE = [pytest.param(name, marks=needs_data(name), id=name) for name in RECIPES]

# Two whole trainings take up to a minute.
_LONG = {"bccd", "camvid", "cifar10", "diffusion", "gsm8k", "mae"}
EVERY_TRAINING = [
    pytest.param(
        name,
        marks=[needs_data(name), pytest.mark.slow] if name in _LONG else needs_data(name),
        id=name,
    )
    for name in RECIPES
]
