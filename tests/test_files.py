"""Files that are there whole or not at all, written in one place."""

import ast
from pathlib import Path

import pytest

import infobatch
from infobatch.files import write_atomically

PACKAGE = Path(infobatch.__file__).parent


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "new" / "file.txt"
    write_atomically(path, lambda temporary: temporary.write_text("old"))

    def fail(temporary):
        temporary.write_text("half of")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]
    write_atomically(path, lambda temporary: temporary.write_text("new"))
    assert path.read_text() == "new"


def renames(path):
    """The calls that rename a file: of a path's ``replace`` or ``rename``, or os's."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            module = isinstance(node.func.value, ast.Name) and node.func.value.id in (
                "os",
                "shutil",
            )
            # A text's replace takes two arguments, and those of data classes and times keywords.
            one_argument = len(node.args) == 1 and not node.keywords
            if node.func.attr in ("replace", "rename", "move") and (module or one_argument):
                yield node.lineno


def test_nothing_else_renames_files():
    renaming = {
        str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if [*renames(path)]
    }
    assert renaming == {"files.py"}
