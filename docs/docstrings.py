"""Docstrings as the API reference shows them: reStructuredText's roles and doctests, as Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe


def markdown(docstring: str) -> str:
    """Roles as code, brackets of formulas as no links, and doctests as code blocks."""
    docstring = docstring.replace("] [", r"] \[")
    docstring = re.sub(r":\w+:`~?(?:infobatch\.)?([\w.]+)`", r"`\1`", docstring)
    return re.sub(r"(?m)^>>>.*\n?(?:^.+\n?)*", lambda match: fenced(match[0]), docstring)


def fenced(lines: str) -> str:
    """A doctest and its output as a code block."""
    return f"```pycon\n{lines.rstrip()}\n```\n"


class Docstrings(griffe.Extension):
    """Rewrites every docstring that mkdocstrings reads."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
