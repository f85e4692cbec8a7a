"""Which driver this is, and what it works with: for `driver --version` and bug reports."""

import json
import platform
import re
from importlib import metadata

from driver import __version__, layout
from driver.records import Record

_DISTRIBUTION = "browser-train-driver"


class Versions(Record):
    """Versions; None for what is not installed or not known."""

    driver: str
    source_revision: str | None
    """Git commit: of the checkout, or the one that pip installed from."""
    source_dirty: bool | None
    """The checkout has changes; None where there is no checkout."""
    compiler: str | None
    """Of the package ziglang, which is zig's own."""
    python: str
    numpy: str | None
    playwright: str | None


def versions() -> Versions:
    """Read from the packages' metadata; no package is imported and no compiler started."""
    revision, dirty = layout.revision()
    return Versions(
        driver=__version__,
        source_revision=revision or _installed_from(),
        source_dirty=dirty,
        compiler=_version("ziglang"),
        python=platform.python_version(),
        numpy=_version("numpy"),
        playwright=_version("playwright"),
    )


def text(found: Versions) -> str:
    """A line each."""
    source = found.source_revision or "not known: neither a checkout nor installed from git"
    if found.source_dirty:
        source += ", with changes"
    return "\n".join(
        [
            f"driver {found.driver}",
            f"source      {source}",
            f"compiler    zig {found.compiler}" if found.compiler else "compiler    not installed",
            f"Python      {found.python}",
            f"numpy       {found.numpy or 'not installed'}",
            f"Playwright  {found.playwright or 'not installed'}",
        ]
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _installed_from() -> str | None:
    """The commit that pip recorded (PEP 610) when it installed from a git address."""
    try:
        record = json.loads(metadata.distribution(_DISTRIBUTION).read_text("direct_url.json") or "")
        commit = str(record["vcs_info"]["commit_id"])
    except (metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        return None
    return commit if re.fullmatch(r"[0-9a-f]{7,64}", commit) else None
