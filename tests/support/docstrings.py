"""What the docstring of a public name has to have, in the style of PyTorch's."""

import importlib
import inspect
import re
from pathlib import Path

REFERENCE = Path(__file__).parents[2] / "docs" / "api"


def public_names(prefix="infobatch"):
    """The names that the API reference has an entry for, of a module or of all."""
    for page in sorted(REFERENCE.glob("*.md")):
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE):
            if name.startswith(f"{prefix}."):
                yield name


def find(name):
    """The object with this dotted name."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (AttributeError, ModuleNotFoundError):
        return getattr(find(module), attribute)


def callables(name):
    """The function or class of this name, and the public methods that it defines; of a module, all names.

    A method that overrides one of a base class is documented there.
    """
    target = find(name)
    if inspect.ismodule(target):
        for public_name in target.__all__:
            yield from callables(f"{name}.{public_name}")
    elif inspect.isclass(target):
        yield name, target
        for base in target.__mro__:
            if base.__module__.split(".")[0] != "infobatch":
                continue
            for method, value in vars(base).items():
                function = getattr(value, "__func__", value)  # of a classmethod or a staticmethod
                above = base.__mro__[1:]
                overrides = any(method in vars(other) for other in above)
                field = method in getattr(base, "__dataclass_fields__", ())
                private = method.startswith("_")
                if inspect.isfunction(function) and not (private or field or overrides):
                    yield f"{base.__qualname__}.{method}", function
    elif inspect.isfunction(target):
        yield name, target


def missing(target):
    """What the docstring of a function or a class does not say."""
    text = inspect.cleandoc(target.__doc__ or "")
    if not text:
        return ["a docstring"]
    arguments = "".join(
        _section(inspect.cleandoc(owner.__doc__ or ""), title)
        for owner in getattr(target, "__mro__", (target,))  # what a base class documents counts
        for title in ("Args", "Attributes")
    )
    lacking = [
        f"Args: {name}"
        for name in _parameters(target)
        if not re.search(rf"^ {{4}}[^:]*(?<!\w){name}\b[^:]*:", arguments, re.MULTILINE)
    ]
    if inspect.isfunction(target):
        returned = inspect.signature(target).return_annotation
        if returned not in ("None", None) and not re.search(
            r"^(Returns|Yields):", text, re.MULTILINE
        ):
            lacking.append("Returns")
        if re.search(r"^\s*raise ", inspect.getsource(inspect.unwrap(target)), re.MULTILINE):
            lacking += [] if _section(text, "Raises") else ["Raises"]
    return lacking


def _parameters(target):
    if inspect.isclass(target):
        constructor = target.__init__ if target.__new__ is object.__new__ else target.__new__
        if "infobatch" not in (getattr(constructor, "__module__", None) or ""):
            return list(getattr(target, "_fields", ()))  # documented by its base class, or a tuple
    names = inspect.signature(target).parameters
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def _section(text, title):
    """The lines of a section that begins with its title, without those that follow it."""
    found = re.search(rf"^{title}:\n((?:(?: .*)?\n|\Z)*)", text + "\n", re.MULTILINE)
    return found[1] if found else ""
