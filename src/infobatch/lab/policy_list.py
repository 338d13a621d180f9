"""The pruning policies with a line on each, read from their files without importing torch."""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "policies"


def policy_list() -> dict[str, str]:
    """The first line of each policy's docstring, by the policy's name."""
    registry = ast.parse((FOLDER / "registry.py").read_text(encoding="utf-8"))
    homes = {
        alias.asname or alias.name: (node.module.rpartition(".")[2], alias.name)
        for node in ast.walk(registry)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    return {name: _first_line(*homes[rule]) for name, rule in _rules(registry).items()}


def _rules(registry: ast.Module) -> dict[str, str]:
    """The names of the classes in ``POLICIES``, by the policy's name."""
    for node in registry.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.value, ast.Dict):
            continue
        if ast.unparse(node.target) == "POLICIES":
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {ast.literal_eval(key): ast.unparse(rule) for key, rule in pairs if key}
    raise LookupError("policies/registry.py has no dict of POLICIES")


def _first_line(module: str, rule: str) -> str:
    source = ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))
    for node in source.body:
        if isinstance(node, ast.ClassDef) and node.name == rule:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    raise LookupError(f"policies/{module}.py has no class {rule}")
