"""The coreset of an arm: ``coreset:el2n@0.3``, or with options ``…@0.3:networks=10``.

The arm that is trained on the subset follows a plus sign, ``coreset:el2n@0.3+infobatch``; by
default, every epoch uses all of the subset.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from infobatch.coresets import METHODS
from infobatch.lab.options import value_of

PREFIX = "coreset:"
_EXAMPLE = "Expected coreset:METHOD@FRACTION, such as coreset:el2n@0.3, with options coreset:el2n@0.3:networks=10."
_OWN = ("networks", "proxy_epochs", "balanced")


@dataclass(frozen=True)
class CoresetSpec:
    """A method, the share that it chooses, and how its proxy is trained."""

    text: str
    method: str
    fraction: float
    networks: int = 1
    proxy_epochs: int | None = None  # a fifth of the task's epochs, or a twentieth for early scores
    balanced: bool | None = None  # class by class if the task has labels
    options: dict[str, Any] = field(default_factory=dict)


def split_coreset(name: str) -> tuple[str | None, str]:
    """The text of the coreset, or None if there is none, and the arm that is trained on it.

    >>> split_coreset("coreset:el2n@0.3+mean:ratio=0.6")
    ('coreset:el2n@0.3', 'mean:ratio=0.6')
    >>> split_coreset("mean")
    (None, 'mean')
    """
    if not name.startswith(PREFIX):
        return None, name
    coreset, *on_top = re.split(r"\+(?=[A-Za-z])", name, maxsplit=1)
    return coreset, on_top[0] if on_top else "full"


def parse_coreset(text: str) -> CoresetSpec:
    """Read the text of a coreset, or raise an error."""
    head, *rest = text.removeprefix(PREFIX).split(":")
    method, _, share = head.partition("@")
    if method not in METHODS:
        raise ValueError(
            f"--arms got {text!r}, but there is no coreset method {method!r}. Expected one of "
            f"{', '.join(METHODS)}."
        )
    try:
        fraction = float(share)
    except ValueError:
        fraction = 0.0
    if not 0 < fraction <= 1:
        raise ValueError(
            f"--arms got {text!r}, whose share must be above 0 and at most 1. {_EXAMPLE}"
        )
    given = dict(part.partition("=")[::2] for part in rest)
    allowed = (*_OWN, *METHODS.entries[method].options)
    for name, value in given.items():
        if name not in allowed or not value:
            raise ValueError(
                f"--arms got {text!r}, but {method} has no option {name!r}, or it lacks a value. "
                f"Expected name=value after each colon, some of {', '.join(allowed)}."
            )
    values = {name: value_of(value) for name, value in given.items()}
    arguments = {name: values.pop(name) for name in _OWN if name in values}
    for name in ("networks", "proxy_epochs"):
        if name in arguments and (not isinstance(arguments[name], int) or arguments[name] < 1):
            raise ValueError(f"--arms got {text!r}: {name} must be an integer >= 1.")
    return CoresetSpec(text, method, fraction, **arguments, options=values)
