"""The public interface documents its arguments, results and errors."""

import pytest

from docstrings import callables, missing, public_names

APART = ("infobatch.integrations.timm.", "infobatch.integrations.ultralytics.")  # tested there
NAMES = [name for name in public_names() if not name.startswith(APART)]


def test_the_reference_has_names():
    assert len(NAMES) > 100


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_are_complete(name):
    assert {
        owner: lacking for owner, target in callables(name) if (lacking := missing(target))
    } == {}


def test_what_is_missing_is_noticed():
    def undocumented(count: int) -> int:
        if count < 0:
            raise ValueError(count)
        return count

    assert missing(undocumented) == ["a docstring"]
    undocumented.__doc__ = "Count.\n\nArgs:\n    counter: another name.\n"
    assert missing(undocumented) == ["Args: count", "Returns", "Raises"]
    undocumented.__doc__ = (
        "Count.\n\nArgs:\n    first, count: two of them.\n\nReturns:\n    The number.\n\n"
        "Raises:\n    ValueError: if it is negative.\n"
    )
    assert missing(undocumented) == []
