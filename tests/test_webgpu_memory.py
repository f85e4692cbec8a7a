"""A long run on the WebGPU arm keeps what it has: buffers, JavaScript heap and the GPU process.

Two things look like a leak and are none. What JavaScript made for a submit (encoder, pass, command
buffer, promises) holds memory of the GPU process until it is collected, and an engine collects
seldom: on SwiftShader a page that submits empty command buffers grows that process by 1.2 KB a
submit for some 40 s, then gets all of it back. So garbage is collected here before memory is read.
And allocators of the process settle: by 5 KB a step at first, 1.6 KB after 500 steps, 20 bytes
after 2,000, none after 4,000 (webgpu_src/README.md). So 200 steps are looked at after many others.

Both the process's memory and the heap are staircases, up and down, by pages of 4 and some 10 KB,
and a stair lasts. A regression takes what its line leaves over for independent noise: of its
intervals over stretches of 200 steps of a long run that rises by nothing in the end, 72% held 0
instead of 95%. The mean of the differences from sample to sample allows for stairs. It finds what
is lost at some 0.6 KB a step; that it does, planted leaks show.

`python -m pytest tests/test_webgpu_memory.py -m slow -n 0 -s` prints the figures.
"""

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from scipy import stats

from driver import presets
from driver.arms import TILE_OF
from driver.browser import BrowserChoice, BrowserSession, opening
from driver.jobs import NO_MODEL, JobMaker, open_op, train_op
from driver.layout import WEB
from driver.measure import run_job
from driver.prepare import probe
from driver.records import ArmJob, ModelConfig
from driver.server import JobServer
from driver.tensors import flatten, initial_state

STEPS, WINDOW = 200, 10  # looked at, after others
EMPTY, TURNS = 40, 500  # steps of that many turns of an arm that computes nothing
TURN_BYTES = 16  # of the GPU process, a turn that computes nothing, garbage collected
LEAK = {"heap": 1024, "GPU process": 4096}  # bytes a step, planted
Trend = Callable[[np.ndarray], tuple[float, float, float]]
# What the page's JavaScript takes, its worker's included; a worker cannot ask.
ASKED = """
const heap = new BroadcastChannel("heap");
heap.onmessage = async ({ data }) => {
  if (data !== "how much?") return;
  heap.postMessage((await performance.measureUserAgentSpecificMemory()).bytes);
};
"""
# Counts what the device holds, and asks for the heap after a collection.
WATCHED = """
import * as webgpu from "./arm_webgpu.js";

const WINDOWS = 64;
const numbers = () => new Float64Array(WINDOWS);
const seen = { buffers: numbers(), bytes: numbers(), heap: numbers(), at: numbers() };
let [windows, buffers, bytes] = [0, 0, 0];
const make = GPUDevice.prototype.createBuffer;
GPUDevice.prototype.createBuffer = function (wanted) {
  const buffer = make.call(this, wanted);
  buffers += 1;
  bytes += wanted.size;
  return buffer;
};
const destroy = GPUBuffer.prototype.destroy;
GPUBuffer.prototype.destroy = function () {
  buffers -= 1;
  bytes -= this.size;
  destroy.call(this);
};

const kept = [];
let device;
const request = GPUAdapter.prototype.requestDevice;
GPUAdapter.prototype.requestDevice = async function (...wanted) {
  device = await request.apply(this, wanted);
  return device;
};
function lose(size) {
  const usage = GPUBufferUsage.STORAGE;
  const buffer = make.call(device, { size, usage, mappedAtCreation: true });
  new Uint8Array(buffer.getMappedRange()).fill(1);
  buffer.unmap();
  kept.push(buffer);
}

const collect = () => gc({ execution: "async", type: "major" }); // of this worker
const heap = new BroadcastChannel("heap");
const heap_bytes = () =>
  new Promise((answer) => {
    heap.onmessage = ({ data }) => answer(data);
    heap.postMessage("how much?");
  });

export async function open(job, io) {
  const arm = await webgpu.open(job, io);
  const { train } = arm;
  arm.ran.seen = seen;
  // One long window as many short ones: what the page keeps of each instruction is not the arm's.
  arm.train = async (tokens, steps) => {
    const [losses, grad_norms] = [new Float64Array(steps), new Float64Array(steps)];
    const { window, settling, alike, asks, leak } = arm.job.arm.options;
    const stride = tokens.length / steps;
    for (let done = 0; done < steps; ) {
      const settles = done < settling;
      const count = settles ? 10 * window : window;
      const part = tokens.subarray(done * stride, (done + count) * stride);
      const results = await train.call(arm, part, count);
      losses.set(results.losses, done);
      grad_norms.set(results.grad_norms, done);
      done += count;
      for (let i = 0; leak && i < count; i++) asks ? kept.push(new Uint8Array(leak)) : lose(leak);
      await collect();
      if (settles) continue;
      if (done === settling + alike) windows = 0; // now measuring has settled too
      seen.buffers[windows] = buffers;
      seen.bytes[windows] = bytes;
      seen.heap[windows] = asks ? await heap_bytes() : 1; // each answer keeps some of it
      seen.at[windows] = Date.now();
      await new Promise((go_on) => setTimeout(go_on, 100)); // meanwhile the process is looked at
      windows += 1;
    }
    return { losses: Array.from(losses), grad_norms: Array.from(grad_norms) };
  };
  return arm;
}
"""


# Trains nothing: writes a little, submits an empty pass and waits, or only waits; then collects.
NOTHING = """
import * as none from "./arm_null.js";

export async function open(job, io) {
  const arm = await none.open(job, io);
  const adapter = await navigator.gpu.requestAdapter();
  const device = await adapter.requestDevice();
  const { submits, turns } = job.arm.options;
  const data = new Uint8Array(4096);
  const buffer = device.createBuffer({ size: data.length, usage: GPUBufferUsage.COPY_DST });
  const { train } = arm;
  arm.ran.seen = { at: [] };
  arm.train = async (tokens, steps) => {
    for (let step = 0; step < steps; step++) {
      for (let i = 0; i < turns; i++) {
        if (submits) {
          device.queue.writeBuffer(buffer, 0, data);
          const encoder = device.createCommandEncoder();
          encoder.beginComputePass().end();
          device.queue.submit([encoder.finish()]);
        }
        await device.queue.onSubmittedWorkDone();
      }
      await gc({ execution: "async", type: "major" });
      arm.ran.seen.at.push(Date.now());
      await new Promise((go_on) => setTimeout(go_on, 100));
    }
    return train(tokens, steps);
  };
  return arm;
}
"""


def slope(values: np.ndarray) -> tuple[float, float, float]:
    """Of one sample to the next: the least-squares slope and its 95% interval."""
    if np.ptp(values) == 0:
        return 0.0, 0.0, 0.0
    found = stats.linregress(np.arange(len(values)), values)
    reach = stats.t.ppf(0.975, len(values) - 2) * found.stderr
    return float(found.slope), float(found.slope - reach), float(found.slope + reach)


def is_gpu_process(process: psutil.Process) -> bool:
    """Chromium's; one that is ending has no command line."""
    try:
        return "--type=gpu-process" in process.cmdline()
    except psutil.Error:
        return False


async def watch(process: psutil.Process, resident: list[tuple[float, int]]) -> None:
    """The process's resident bytes with the time in ms, again and again."""
    while True:
        resident.append((time.time() * 1000, process.memory_info().rss))
        await asyncio.sleep(0.02)


async def watched(
    browser: BrowserChoice, folder: Path, arm: ArmJob, config: ModelConfig, steps: int
) -> tuple[dict[str, Any], np.ndarray]:
    """What the arm saw while it trained, and bytes of the GPU process right after each `at`."""
    tokens = np.random.default_rng(3).integers(
        0, config.vocab, (steps, config.batch, config.ctx + 1), np.int32
    )
    resident: list[tuple[float, int]] = []
    async with JobServer(folder) as server, BrowserSession(browser) as session:
        adapter = (await probe(session, server)).features["webgpu"]
        if not adapter["available"]:
            pytest.skip(f"this browser offers no WebGPU here: {adapter['reason']}")
        (gpu,) = filter(is_gpu_process, psutil.Process().children(recursive=True))
        maker = JobMaker(server, config)
        initial, _ = maker.state("initial", {"param": flatten(config, initial_state(config, 1))})
        batches, _ = maker.tokens(tokens)
        program = [open_op(), train_op(steps, "all")]
        job = maker.job("memory", arm, {"initial": initial}, batches, program)
        watching = asyncio.create_task(watch(gpu, resident))
        outcome = await run_job(session, server, job, deadline_s=900)
        watching.cancel()
    assert outcome.failure is None, outcome.failure
    assert outcome.result
    seen = outcome.result.ran["seen"]
    times = [at for at in seen["at"] if at]
    found = [next(rss for seen_at, rss in resident if seen_at > at + 30) for at in times]
    return seen, np.array(found, float)


def drift(values: np.ndarray) -> tuple[float, float, float]:
    """Of one sample to the next, of a walk whose stairs last: mean difference, 95% interval."""
    differences = np.diff(values)
    reach = stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences)
    mean = float(differences.mean())
    return mean, mean - reach, mean + reach


def report(
    name: str, values: np.ndarray, unit: str, each: float = 1.0, trend: Trend = slope
) -> tuple[float, float]:
    """Prints a trend, of `each` of what happened between two samples, and gives its interval."""
    at, low, high = (bound / each for bound in trend(values))
    words = f"{name}: {values[-1]:.0f}, {trend.__name__} {at:.3g} a {unit}"
    print(f"{words}, 95% {low:.3g} … {high:.3g}")
    return low, high


@pytest.fixture(autouse=True)
def collects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers may collect garbage, and memory is measured at once."""
    flags = ("--js-flags=--expose-gc", "--enable-blink-features=ForceEagerMeasureMemory")
    monkeypatch.setattr(opening, "FLAGS", (*opening.FLAGS, *flags))


async def trained(
    browser: BrowserChoice, folder: Path, settling: int, alike: int, what: str, leak: int = 0
) -> dict[str, np.ndarray]:
    """200 steps after `settling` in long windows and `alike` in windows like theirs."""
    shutil.copytree(WEB, folder)
    (folder / "arm_watched.js").write_text(WATCHED)
    (folder / "main.js").write_text((folder / "main.js").read_text() + ASKED)
    config = presets.load("tiny").model
    options = dict.fromkeys(TILE_OF, "blocked") | dict.fromkeys(TILE_OF.values(), "8x8")
    asks = what == "heap"
    asked = {"window": WINDOW, "settling": settling, "alike": alike, "asks": asks, "leak": leak}
    arm = ArmJob(
        name="webgpu", module="arm_watched.js", options=dict(options) | {"workgroup": "8x8"} | asked
    )
    seen, resident = await watched(browser, folder, arm, config, settling + alike + STEPS)
    windows = STEPS // WINDOW
    figures = {name: np.array(values[:windows], float) for name, values in seen.items()}
    figures["GPU process"] = resident[:windows]
    return figures


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "settling", "alike"), [("heap", 0, 80), ("GPU process", 4000, 200)]
)
async def test_memory_stays_flat(
    browser: BrowserChoice, tmp_path: Path, what: str, settling: int, alike: int
) -> None:
    figures = await trained(browser, tmp_path / "web", settling, alike, what)
    assert np.ptp(figures["buffers"]) == np.ptp(figures["bytes"]) == 0
    assert min(values.min() for values in figures.values()) > 0
    low, high = report(what, figures[what], "step", WINDOW, drift)
    assert low <= 0 <= high


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "settling", "alike"), [("heap", 0, 80), ("GPU process", 1000, 200)]
)
async def test_a_leak_is_found(
    browser: BrowserChoice, tmp_path: Path, what: str, settling: int, alike: int
) -> None:
    """What the bounds of the test above are worth: a little is lost with every step here."""
    figures = await trained(browser, tmp_path / "web", settling, alike, what, leak=LEAK[what])
    low, _ = report(what, figures[what], "step", WINDOW, drift)
    assert low > 0


@pytest.mark.slow
@pytest.mark.parametrize("submits", [False, True])
async def test_a_page_that_computes_nothing(
    browser: BrowserChoice, tmp_path: Path, submits: bool
) -> None:
    """What the browser itself keeps of a wait, and of a submit: an arm cannot have less."""
    folder = tmp_path / "web"
    shutil.copytree(WEB, folder)
    (folder / "arm_nothing.js").write_text(NOTHING)
    arm = ArmJob(
        name="null", module="arm_nothing.js", options={"ms": 0, "submits": submits, "turns": TURNS}
    )
    _, resident = await watched(browser, folder, arm, NO_MODEL, EMPTY)
    what = "write and an empty submit" if submits else "wait"
    _, high = report("GPU process", resident[EMPTY // 4 :], what, TURNS)
    assert high < TURN_BYTES
