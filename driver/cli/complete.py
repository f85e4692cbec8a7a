"""What the shell offers for a word that is being typed: presets, arms, operations."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from driver import presets
from driver.arms import OPTIONS


def preset_names(incomplete: str) -> list[str]:
    """Names of presets, joined by commas as `--preset` takes them, and preset files."""
    if "/" in incomplete or incomplete.startswith("."):
        return [*_files(incomplete)]
    return [*_after_comma(incomplete, presets.names())]


def arms(incomplete: str) -> list[str]:
    """Names of arms that a run takes, joined by commas as `--arms` takes them."""
    return [*_after_comma(incomplete, (name for name in OPTIONS if name != "numpy"))]


def arm(incomplete: str) -> list[str]:
    """Names of arms."""
    return [name for name in OPTIONS if name.startswith(incomplete)]


def among(words: Sequence[str]) -> Callable[[str], list[str]]:
    """Those of a fixed list."""

    def offered(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return offered


def _after_comma(incomplete: str, names: Iterable[str]) -> Iterator[str]:
    """Names that the last one of a list may become, each with what stands before it."""
    before, comma, last = incomplete.rpartition(",")
    return (before + comma + name for name in names if name.startswith(last))


def _files(incomplete: str) -> Iterator[str]:
    """Folders and preset files that begin so."""
    folder = Path(incomplete).parent if not incomplete.endswith("/") else Path(incomplete)
    prefix = incomplete[: incomplete.rfind("/") + 1]
    try:
        for entry in sorted(folder.iterdir()):
            name = f"{prefix}{entry.name}"
            if name.startswith(incomplete) and (entry.is_dir() or entry.suffix == ".toml"):
                yield f"{name}/" if entry.is_dir() else name
    except OSError:
        return
