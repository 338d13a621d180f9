"""JSON files of the lab: read once into frozen dataclasses, and written from them."""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")


def read_json(path: Path, *, remedy: str) -> Any:
    """Read a JSON file; if it is damaged, the error names it and the remedy."""
    try:
        return json.loads(path.read_text(), parse_constant=_not_json)
    except ValueError as error:  # neither text nor JSON
        raise ValueError(f"{path} is damaged and cannot be read ({error}). {remedy}") from error


def _not_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def from_json(kind: type[Kind], value: Any, *, name: str = "") -> Kind:
    """Convert a JSON value to a type: a dataclass, a tuple, a mapping, a union or a plain value.

    Fields that a dataclass does not have are ignored, as a later version may have written them;
    those that are missing have their defaults. ``name`` is the place in the file, for errors.

    Raises:
        ValueError: if the value does not have the type; the error names the place.
    """
    return cast(Kind, _convert(kind, value, name))


def _convert(kind: Any, value: Any, name: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _convert_union(arguments, value, name)
    if is_dataclass(kind) and isinstance(value, dict):
        return _convert_fields(kind, value, name)
    if origin is tuple and isinstance(value, list):
        return tuple(_convert(arguments[0], v, f"{name}[{i}]") for i, v in enumerate(value))
    if origin is Mapping and isinstance(value, dict):
        return {key: _convert(arguments[1], v, f"{name}.{key}") for key, v in value.items()}
    if kind is Any or _is_plain(kind, value) or (origin is Literal and value in arguments):
        return value
    raise ValueError(f"{name or 'the file'} is {_shown(value)}, expected {_described(kind)}")


def _convert_union(kinds: tuple[Any, ...], value: Any, name: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    if len(kinds) == 1:
        return _convert(kinds[0], value, name)
    if any(_is_plain(kind, value) for kind in kinds):
        return value
    expected = " or ".join(map(_described, kinds))
    raise ValueError(f"{name} is {_shown(value)}, expected {expected}")


def _convert_fields(kind: Any, values: dict[str, Any], name: str) -> Any:
    prefix = f"{name}." if name else ""
    hints = _hints(kind)
    missing = [
        field.name for field in fields(kind) if field.name not in values and _is_required(field)
    ]
    if missing:
        raise ValueError(f"{name or 'the file'} lacks {', '.join(missing)}")
    return kind(
        **{
            field: _convert(hint, values[field], f"{prefix}{field}")
            for field, hint in hints.items()
            if field in values
        }
    )


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _is_plain(kind: Any, value: Any) -> bool:
    """Whether a value is of a plain type; JSON does not distinguish 1.0 from 1."""
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(kind, type) and type(value) is kind


def _described(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if is_dataclass(kind) or get_origin(kind) is Mapping:
        return "an object"
    return "a list" if get_origin(kind) is tuple else str(getattr(kind, "__name__", kind))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def to_json(value: Any) -> Any:
    """Convert a value for JSON; a dataclass with a property ``text`` keeps that, too."""
    if is_dataclass(value) and not isinstance(value, type):
        values = {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
        text = getattr(value, "text", None)
        return values if text is None else {**values, "text": text}
    if isinstance(value, Mapping):
        return {name: to_json(inner) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(inner) for inner in value]
    return value
