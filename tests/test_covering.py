"""Rungs × tiles × memories × threads of every module on several problems: right, the same bits.

In CI every pair of choices occurs, the problem being one of them; the whole product is
`pytest -m slow tests/test_covering.py`, some 25 minutes on two cores.
"""

import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN
from test_wasm_arm import SHAPES, Trained, arm, case_of, close, trained

from driver.arms import TILE_OF, TILES, parse_arm
from driver.browser import BrowserSession
from driver.cases import Case, read_case, write_result
from driver.records import ArmJob
from driver.reference import Reference
from driver.server import JobServer

module_loop = pytest.mark.asyncio(loop_scope="module")

RUNGS = ("naive", "forward", "forward-dA", "forward-dA-dB")
MEMORIES = (("wasm", "on"), ("wasm64", "on"), ("wasm", "off"), ("wasm64", "off"))
THREADS = (1, 2, 3)
FEW = ("tiny-jitter", "vocabulary 97, five heads of 8", "nothing divides by 4")
Choice = tuple[Any, ...]  # of rung, tile, memory, threads, problem


def product(simd: str, problems: Sequence[str]) -> list[Choice]:
    """Every choice of a module; memory that is not shared has one thread."""
    return [
        choice
        for choice in itertools.product(RUNGS, TILES[simd], MEMORIES, THREADS, problems)
        if choice[2][1] == "on" or choice[3] == 1
    ]


def pairs(choice: Choice) -> set[tuple[int, Any, int, Any]]:
    """What meets what in a choice."""
    return {
        (i, a, j, b)
        for (i, a), (j, b) in itertools.combinations(enumerate(choice), 2)
    }  # fmt: skip


def covering(choices: Sequence[Choice]) -> list[Choice]:
    """A few of the choices, in which every pair of all occurs; greedily, the best next."""
    left = set().union(*map(pairs, choices))
    chosen: list[Choice] = []
    while left:
        best = max(choices, key=lambda choice: len(pairs(choice) & left))
        chosen.append(best)
        left -= pairs(best)
    return chosen


def job_of(simd: str, choice: Choice) -> ArmJob:
    rung, tile, (name, shared), threads, _ = choice
    kernels = parse_arm(f"{name}:kernels={rung}").options
    products = {key: kernels[key] for key in TILE_OF}
    return arm(name, threads, simd, tile=tile, shared=shared, **products)


def oracle(simd: str) -> ArmJob:
    """Plain loops on one thread: what every other choice must agree with, bit for bit."""
    return job_of(simd, ("naive", TILES[simd][0], MEMORIES[0], 1, None))


def case_named(name: str, golden: Path) -> Case:
    if name in GOLDEN:
        return read_case(golden / f"{name}.case.safetensors")
    return case_of(SHAPES[name])


def is_right(
    name: str, case: Case, done: Trained, golden: Path, check_case: Path, tmp_path: Path
) -> None:
    """The oracle's answer where there is one, else the float64 reference."""
    if name in GOLDEN:
        write_result(tmp_path / "result.safetensors", done.result)
        answer = golden / f"{name}.answer.safetensors"
        checked = subprocess.run(
            [sys.executable, check_case, answer, tmp_path / "result.safetensors"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert checked.returncode == 0, checked.stdout
        return
    step = Reference(case.config, case.state).step(case.tokens[0])
    np.testing.assert_allclose(done.result.losses[0], step.loss, rtol=2e-6)
    largest = max(float(np.abs(g).max()) for g in step.grads.values())
    for tensor, want in step.grads.items():
        close(tensor, done.result.grads[tensor], want, 2e-5, floor=1e-6 * largest)


async def agree(
    session: BrowserSession, server: JobServer, case: Case, simd: str, choices: Sequence[Choice]
) -> Trained:
    """Every choice gives the bits of the plain loops; gives what those gave."""
    plain = await trained(session, server, case, oracle(simd))
    for choice in choices:
        done = await trained(session, server, case, job_of(simd, choice))
        assert done.bits == plain.bits, (simd, choice)
    return plain


@pytest.mark.parametrize("simd", TILES)
def test_the_subset_covers_all_pairs(simd: str) -> None:
    everything = product(simd, FEW)
    chosen = covering(everything)
    assert len(chosen) < len(everything) / 5
    assert set().union(*map(pairs, chosen)) == set().union(*map(pairs, everything))


@module_loop
@pytest.mark.parametrize("simd", TILES)
async def test_pairs(
    session: BrowserSession, server: JobServer, golden: Path, check_case: Path, tmp_path: Path,
    simd: str,
) -> None:  # fmt: skip
    chosen = covering(product(simd, FEW))
    for name in FEW:
        case = case_named(name, golden)
        mine = [choice for choice in chosen if choice[-1] == name]
        plain = await agree(session, server, case, simd, mine)
        is_right(name, case, plain, golden, check_case, tmp_path)


@pytest.mark.slow
@module_loop
@pytest.mark.parametrize("simd", TILES)
@pytest.mark.parametrize("name", [*GOLDEN, *SHAPES])
async def test_everything(
    session: BrowserSession, server: JobServer, golden: Path, check_case: Path, tmp_path: Path,
    simd: str, name: str,
) -> None:  # fmt: skip
    case = case_named(name, golden)
    plain = await agree(session, server, case, simd, product(simd, [name]))
    is_right(name, case, plain, golden, check_case, tmp_path)
