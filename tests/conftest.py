"""Shared fixtures: where the oracle's cases and the text lie, when they are there."""

from pathlib import Path

import hypothesis
import pytest

SHARED = Path(__file__).resolve().parents[1].parent / "shared"
GOLDEN = ("tiny", "tiny-jitter", "strong")


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of the independent oracle's cases."""
    folder = SHARED / "golden"
    if not folder.is_dir():
        pytest.skip("the oracle's cases (../shared/golden) are not on this machine")
    return folder


@pytest.fixture(scope="session")
def check_case() -> Path:
    """The script that compares a result with an oracle's answer."""
    script = SHARED / "check_case.py"
    if not script.is_file():
        pytest.skip("../shared/check_case.py is not on this machine")
    return script


@pytest.fixture(scope="session")
def shakespeare() -> Path:
    """Real text."""
    text = SHARED / "data" / "tinyshakespeare.txt"
    if not text.is_file():
        pytest.skip("../shared/data/tinyshakespeare.txt is not on this machine")
    return text


# Shared machines are slow at times; how long an example takes is never what a test is about.
hypothesis.settings.register_profile(
    "driver", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("driver")
