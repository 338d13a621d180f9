"""The browser that pages are looked at with."""

import os
import shutil
from pathlib import Path

import pytest


def chromium_path(playwright):
    """The browser that playwright has installed, or one of the system's."""
    installed = playwright.chromium.executable_path
    named = os.environ.get("CHROMIUM")
    system = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    for path in (named, installed, *system):
        if path and Path(path).exists():
            return path
    return pytest.fail("There is no Chromium. Run `make test-slow`, which installs one.")
