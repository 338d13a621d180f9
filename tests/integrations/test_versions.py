"""An integration says what is installed, what it supports and what to install."""

import subprocess
import sys
from importlib import metadata

import pytest

from infobatch.integrations.versions import require


def test_supported_versions_pass():
    installed = metadata.version("torch")
    require("torch", f"=={installed.split('+')[0]}", extra="torch")
    require("torch", ">=2", extra="torch")


def test_missing_package():
    with pytest.raises(ImportError) as error:
        require("no-such-package", ">=1,<2", extra="lightning")
    assert str(error.value) == (
        "infobatch.integrations.lightning found no no-such-package, expected no-such-package>=1,<2. "
        "Install it with: pip install '.[lightning]' in a clone of infobatch"
    )


def test_unsupported_version():
    installed = metadata.version("torch")
    with pytest.raises(ImportError) as error:
        require("torch", "<1", extra="lightning")
    assert str(error.value) == (
        f"infobatch.integrations.lightning found torch {installed}, expected torch<1, the versions that "
        "it was tested with. Install it with: pip install '.[lightning]' in a clone of infobatch"
    )


def test_the_package_imports_no_framework():
    code = (
        "import sys, infobatch, infobatch.integrations, infobatch.integrations.versions;"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    frameworks = {"lightning", "transformers", "accelerate", "trl", "timm", "torchdata", "ray"}
    assert not frameworks & set(run.stdout.split())
