"""Options of recipes: ``name=value`` on a command line."""

from __future__ import annotations

import ast
from typing import Any


def parse_options(pairs: list[str]) -> dict[str, str]:
    """Read ``name=value`` pairs."""
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(
                f"--set got {pair!r}, expected name=value, for instance optimizer=lamb."
            )
        options[name] = value
    return options


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return an option's value if it is allowed, or raise an error."""
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is not one of {', '.join(allowed)}.")
    return value


def number_from(name: str, value: int, least: int, most: int | None = None) -> int:
    """Return an option's value if it is in the range, or raise an error."""
    if value < least or (most is not None and value > most):
        limits = f">= {least}" if most is None else f"from {least} to {most:,}"
        raise ValueError(f"{name}={value} must be an integer {limits}.")
    return value


def value_of(text: str) -> Any:
    """Parse a number, a tuple or a boolean; anything else is a string."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
