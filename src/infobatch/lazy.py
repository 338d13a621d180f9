"""Public names that are imported when the first of them is asked for.

torch takes seconds to import, and ``infobatch --help`` and a list of rules do not need it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package whose public names are in its ``public.py``.

    Args:
        package: the name of the package. Its submodules are found without an import of their own, too.

    Returns:
        The two functions, to be assigned in the package's ``__init__.py``.
    """
    namespace = vars(sys.modules[package])

    def get(name: str) -> Any:
        if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")
        if name == "__all__" or not name.startswith("_"):
            public = import_module(f"{package}.public")
            for public_name in public.__all__:
                namespace[public_name] = getattr(public, public_name)
            namespace["__all__"] = public.__all__
            if name in namespace:
                return namespace[name]
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*namespace, *import_module(f"{package}.public").__all__})

    return get, names
