"""Changes of level over time and a new run beside earlier ones; error rates by simulation."""

import math

import numpy as np
import pytest

from driver import trend
from driver.compare import change_word

MARGIN = 0.02


def series(rng: np.random.Generator, runs: int = 40, sd: float = 0.01) -> list[float]:
    """Logarithms of ms/step of runs whose level does not change."""
    return [math.log(10) + float(x) for x in rng.normal(0, sd, runs)]


@pytest.mark.parametrize("noise", ["normal", "heavy tails", "two levels at random"])
def test_marks_in_a_series_without_a_change_come_at_the_stated_rate(noise: str) -> None:
    """At most 1% of series have one: 600 of them have more than 14 with a probability of 0.1%."""
    rng = np.random.default_rng(5)
    draw = {
        "normal": lambda: rng.normal(0, 0.01, 40),
        "heavy tails": lambda: 0.01 * rng.standard_t(1.5, 40),
        "two levels at random": lambda: 0.05 * rng.integers(0, 2, 40),
    }[noise]
    marked = sum(bool(trend.change_points([float(x) for x in draw()], least=0)) for _ in range(600))
    assert marked <= 14


@pytest.mark.parametrize("place", [6, 20, 34])
@pytest.mark.parametrize("change", [1.05, 0.95])
def test_a_step_of_5_percent_at_1_percent_noise_is_found_within_two_runs(
    place: int, change: float
) -> None:
    rng = np.random.default_rng(7)
    near = alone = 0
    for _ in range(100):
        logs = series(rng)
        logs[place:] = [log + math.log(change) for log in logs[place:]]
        found = trend.change_points(logs)
        close = [one for one in found if abs(one.index - place) <= 2]
        near += len(close) == 1 and abs(close[0].change - change) < 0.02
        alone += len(found) == 1
    assert near >= 97
    assert alone >= 93


def test_a_step_and_its_end_are_both_found() -> None:
    rng = np.random.default_rng(8)
    both = 0
    for _ in range(50):
        logs = series(rng, 60)
        logs[20:40] = [log + 0.08 for log in logs[20:40]]
        found = trend.change_points(logs)
        up = any(abs(one.index - 20) <= 2 and one.change > 1.05 for one in found)
        down = any(abs(one.index - 40) <= 2 and one.change < 0.95 for one in found)
        both += up and down
    assert both >= 48


def test_outliers_are_no_change_of_level() -> None:
    rng = np.random.default_rng(9)
    logs = series(rng)
    for at in (5, 19, 20, 33):
        logs[at] += 1.5
    assert trend.change_points(logs) == ()


def test_small_changes_are_not_marked_however_certain() -> None:
    rng = np.random.default_rng(10)
    logs = series(rng, 400, sd=0.001)
    logs[200:] = [log + 0.005 for log in logs[200:]]
    assert trend.change_points(logs) == ()
    (one,) = trend.change_points(logs, least=0.002)
    assert abs(one.index - 200) <= 2


def test_the_same_series_has_the_same_marks() -> None:
    logs = series(np.random.default_rng(11))
    logs[15:] = [log + 0.02 for log in logs[15:]]
    assert trend.change_points(logs) == trend.change_points(list(logs))
    # And so has one whose runs are ranked alike.
    assert [one.index for one in trend.change_points([2 * log for log in logs])] == [
        one.index for one in trend.change_points(logs)
    ]


@pytest.mark.parametrize(
    "logs", [[], [1.0], [1.0] * 5, [1.0] * 50, [float(i % 2) for i in range(9)]]
)
def test_series_that_tell_nothing(logs: list[float]) -> None:
    assert trend.change_points(logs) == ()


def test_absurd_values_do_not_overflow() -> None:
    (one,) = trend.change_points([-650.0] * 20 + [690.0] * 20)
    assert math.isfinite(one.change)


# --------------------------------------------------------------------------- a new run


def test_settled_runs_are_those_since_the_last_change() -> None:
    rng = np.random.default_rng(12)
    logs = series(rng, 30)
    logs[18:] = [log + 0.1 for log in logs[18:]]
    assert len(trend.settled(logs)) == pytest.approx(12, abs=2)
    assert trend.settled(logs[:2]) == logs[:2]


def test_a_level_takes_three_runs() -> None:
    assert trend.level_of([1.0, 1.01]) is None
    assert trend.spread([1.0, 1.01]) is None
    assert trend.level_of([1.0, 1.01, 0.99])


def test_how_often_a_new_run_raises_a_false_alarm_and_finds_a_slowdown() -> None:
    """A prediction interval of 95% lies above 1 in 2.5% of runs, beyond a margin in fewer."""
    rng = np.random.default_rng(13)
    above = alarms = found = 0
    for _ in range(1000):
        level = trend.level_of(series(rng, 15))
        assert level
        new = math.log(10) + float(rng.normal(0, 0.01))
        above += trend.interval(level, new)[0] > 0
        alarms += change_word(*trend.interval(level, new), MARGIN) == "regression"
        found += change_word(*trend.interval(level, new + math.log(1.08)), MARGIN) == "regression"
    assert 12 <= above <= 45
    assert alarms <= 5
    assert found >= 950
