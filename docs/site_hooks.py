"""What the site does beyond MkDocs: formulas without JavaScript, and a page for each example.

``math`` blocks become MathML, which browsers draw by themselves, and links to files in ``examples/`` lead
to pages that show them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent


def formula(source: str, *_: Any, **__: Any) -> str:
    """A ``math`` block as MathML."""
    return f'<div class="formula">{convert(source.strip(), display="block")}</div>'


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Tell the Markdown extension for code blocks how ``math`` blocks are drawn."""
    fence = {"name": "math", "class": "formula", "format": formula}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each example."""
    for path in sorted((ROOT / "examples").glob("*.py")):
        page = f"# examples/{path.name}\n\n```python\n{path.read_text()}```\n"
        file = File.generated(config, f"examples/{path.stem}.md", content=page)
        file.inclusion = InclusionLevel.NOT_IN_NAV  # reached by links
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to examples lead to their pages."""
    return re.sub(r"\]\(\.\./examples/(\w+)\.py\)", r"](examples/\1.md)", markdown)
