"""Checks that an integration's framework is installed in a tested version."""

from __future__ import annotations

from importlib import metadata


def require(package: str, versions: str, *, extra: str) -> None:
    """Raise an ImportError with what to install, unless ``package`` has one of ``versions``."""
    advice = f"Install it with: pip install '.[{extra}]' in a clone of infobatch"
    try:
        installed = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise ImportError(
            f"infobatch.integrations.{extra} found no {package}, expected {package}{versions}. {advice}"
        ) from None
    # Every framework here depends on packaging; infobatch itself does not.
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415

    if not SpecifierSet(versions).contains(installed, prereleases=True):
        raise ImportError(
            f"infobatch.integrations.{extra} found {package} {installed}, expected {package}{versions}, "
            f"the versions that it was tested with. {advice}"
        )
