"""The README as an index page shows it: there, links into the repository lead nowhere.

With ``INFOBATCH_REPOSITORY=https://host/owner/infobatch`` they become absolute, and the project gets its
addresses; without it, links become plain text and pictures are left out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAPER = "https://arxiv.org/abs/2303.04947"


def description(readme: str, repository: str | None, version: str) -> str:
    """The README with no link that is relative to the repository."""
    picture, link = (
        r"!\[([^\]]*)\]\((?!https?:)([^)]+)\)\n*",
        r"\[([^\]]+)\]\((?!https?:|#)([^)]+)\)",
    )
    if repository is None:
        return re.sub(link, r"\1", re.sub(picture, "", readme))
    base = f"{repository.rstrip('/')}/%s/v{version}"
    readme = re.sub(picture, rf"![\1]({base % 'raw'}/\2)\n\n", readme)
    return re.sub(link, rf"[\1]({base % 'blob'}/\2)", readme)


def addresses(repository: str | None) -> dict[str, str]:
    """The project's addresses, as far as they are known."""
    if repository is None:
        return {"Paper": PAPER}
    base = repository.rstrip("/")
    changes = f"{base}/blob/main/CHANGELOG.md"
    return {"Source": base, "Issues": f"{base}/issues", "Changes": changes, "Paper": PAPER}


class IndexPage(MetadataHookInterface):
    """Fills in what ``pyproject.toml`` leaves to the build."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description and the addresses."""
        root = Path(self.root)
        (version,) = re.findall(
            r'^__version__ = "(.+)"$',
            (root / "src/infobatch/__init__.py").read_text(),
            re.MULTILINE,
        )
        repository = os.environ.get("INFOBATCH_REPOSITORY")
        text = description((root / "README.md").read_text(), repository, version)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = addresses(repository)
