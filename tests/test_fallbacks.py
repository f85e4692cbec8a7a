"""Browsers that lack something: the best that is left for a bare name, a reason for the rest."""

import platform
from typing import Any

import numpy as np
import pytest
from test_wasm_arm import SHAPES, case_of, trained

from driver.arms import parse_arm, resolve
from driver.browser import BrowserChoice, BrowserSession, opening
from driver.errors import Unsupported
from driver.prepare import probe
from driver.reference import Reference
from driver.server import JobServer, app

pytestmark = pytest.mark.asyncio(loop_scope="module")

CASE = case_of(SHAPES["vocabulary 97, five heads of 8"])
# The engine may use SIMD only where the processor has at least this much.
NO_SIMD = "--js-flags=--no-enable-sse4-1 --no-enable-ssse3 --no-enable-avx"
# What a page sees of a browser without Memory64; current ones have no switch for it.
NO_MEMORY64 = """
export { probe, timer_step_ms } from "{real}";
const Real = WebAssembly.Memory;
WebAssembly.Memory = class extends Real {
  constructor(sizes) {
    if (sizes.address) throw new TypeError("sizes are BigInt");
    super(sizes);
  }
};
"""


async def trains(session: BrowserSession, server: JobServer, text: str, **ran: Any) -> None:
    """The arm resolves to what is left, says so, and is right."""
    on = resolve(parse_arm(text), (await probe(session, server)).features)
    done = await trained(session, server, CASE, on)
    assert done.outcome.result is not None
    said = done.outcome.result.ran
    assert {key: said[key] for key in ran} == ran
    reference = Reference(CASE.config, CASE.state)
    steps = [reference.step(tokens) for tokens in CASE.tokens]
    np.testing.assert_allclose(done.result.losses, [s.loss for s in steps], rtol=2e-6)
    np.testing.assert_allclose(done.result.grad_norms, [s.grad_norm for s in steps], rtol=2e-5)


async def refused(session: BrowserSession, server: JobServer, text: str, said: str) -> None:
    features = (await probe(session, server)).features
    with pytest.raises(Unsupported) as error:
        resolve(parse_arm(text), features)
    assert said in str(error.value)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the engine's switches are for x86-64")
async def test_without_simd(
    browser: BrowserChoice, server: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "FLAGS", (*opening.FLAGS, NO_SIMD))
    async with BrowserSession(browser) as session:
        await trains(session, server, "wasm", simd="scalar")
        await trains(session, server, "wasm64:threads=2", simd="scalar", threads=2)
        await refused(session, server, "wasm:simd=relaxed", "this browser has no simd=relaxed")
        await refused(session, server, "wasm:simd=on", "this browser has no simd=simd128")


async def test_without_shared_memory(
    session: BrowserSession, server: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is not isolated: its server leaves out the headers for that."""
    left = {key: value for key, value in app._HEADERS.items() if "Cross-Origin" not in key}
    monkeypatch.setattr(app, "_HEADERS", left)
    await trains(session, server, "wasm", threads=1, shared="off", address_type="i32")
    await trains(session, server, "wasm64", threads=1, shared="off", address_type="i64")
    await trains(session, server, "wasm:threads=1+simd=off", simd="scalar", shared="off")
    await refused(session, server, "wasm:threads=2", "threads=2 needs shared WebAssembly memory")
    await refused(session, server, "wasm64:shared=on", "no shared WebAssembly memory")


INSECURE = """
import * as real from "{real}";
export const timer_step_ms = real.timer_step_ms;
export const probe = async () => ({ ...(await real.probe()), secure_context: false });
"""


async def test_without_a_secure_context(session: BrowserSession, broken: Any) -> None:
    """As WebKit may see loopback: a reason at once, and no crash where hashing is missing."""
    server = await broken("probe.js", INSECURE)
    with pytest.raises(Unsupported, match="does not take the driver's page"):
        await probe(session, server)


async def test_without_memory64(session: BrowserSession, broken: Any) -> None:
    server = await broken("probe.js", NO_MEMORY64)
    await refused(session, server, "wasm64", "this browser has no Memory64; use arm wasm")
    await trains(session, server, "wasm", address_type="i32")
