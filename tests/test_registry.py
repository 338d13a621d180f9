"""The one registry behind policies, coreset methods and recipes."""

import subprocess
import sys

import pytest

from infobatch.coresets import METHODS
from infobatch.lab.recipes.registry import RECIPES
from infobatch.policies import POLICIES
from infobatch.registry import Entry, Registry


def test_it_is_a_mapping_that_imports_on_first_use():
    code = (
        "import sys; from infobatch.registry import Entry, Registry;"
        "registry = Registry({'turtle': Entry('colorsys:rgb_to_hsv', 'A line.')});"
        "print('turtle' in registry, len(registry), *registry, 'colorsys' in sys.modules);"
        "print(registry['turtle'].__name__, 'colorsys' in sys.modules, 'torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "1", "turtle", "False", "rgb_to_hsv", "True", "False"]


def test_what_is_not_there():
    registry = Registry({"a": Entry("math:sqrt", "")})
    assert "b" not in registry
    assert 3 not in registry
    with pytest.raises(KeyError, match="b"):
        registry["b"]


@pytest.mark.parametrize("registry", [POLICIES, METHODS, RECIPES])
def test_every_entry_is_where_it_says_and_has_one_line(registry):
    assert isinstance(registry, Registry)
    for name, entry in registry.entries.items():
        module, _, attribute = entry.target.partition(":")
        assert module.startswith("infobatch.")
        assert entry.summary.strip()
        assert "\n" not in entry.summary
        if registry is not RECIPES:  # some need packages that may not be installed
            assert registry[name].__module__ == module
            assert registry[name].__name__ == attribute
