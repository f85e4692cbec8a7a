"""A long run on the WebGPU arm keeps what it has: buffers and the JavaScript heap are flat.

The GPU process is not quite: on SwiftShader it grows by 2 to 5 KB a step. The browser does so by
itself: a page that submits nothing but empty command buffers grows it by 0.76 KB a submit and gets
that back from time to time (the second test; webgpu_src/README.md). The bound for a step is far
below the smallest activation.

`python -m pytest tests/test_webgpu_memory.py -m slow -s` prints the figures.
"""

import asyncio
import shutil
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

STEPS, WINDOW, SETTLED = 280, 10, 80  # the first steps are left out
WATCH_S = 1.0
GPU_PROCESS_BYTES = 16 << 10  # a step
EMPTY, TURNS = 100, 200  # steps of that many turns of an arm that computes nothing
WAIT_BYTES = 64  # of the GPU process, a wait for nothing
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
const seen = { buffers: numbers(), bytes: numbers(), heap: numbers() };
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
    const [window, stride] = [arm.job.arm.options.window, tokens.length / steps];
    for (let done = 0; done < steps; done += window) {
      const part = tokens.subarray(done * stride, (done + window) * stride);
      const results = await train.call(arm, part, window);
      losses.set(results.losses, done);
      grad_norms.set(results.grad_norms, done);
      seen.buffers[windows] = buffers;
      seen.bytes[windows] = bytes;
      seen.heap[windows] = await heap_bytes();
      windows += 1;
    }
    return { losses: Array.from(losses), grad_norms: Array.from(grad_norms) };
  };
  return arm;
}
"""


# Trains nothing: asks the queue whether it is done, after an empty command buffer or after none.
NOTHING = """
import * as none from "./arm_null.js";

export async function open(job, io) {
  const arm = await none.open(job, io);
  const adapter = await navigator.gpu.requestAdapter();
  const device = await adapter.requestDevice();
  const { submits, turns } = job.arm.options;
  const { train } = arm;
  arm.train = async (tokens, steps) => {
    for (let i = 0; i < steps * turns; i++) {
      if (submits) device.queue.submit([device.createCommandEncoder().finish()]);
      await device.queue.onSubmittedWorkDone();
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


async def watch(process: psutil.Process, resident: list[int], pause_s: float) -> None:
    """The process's resident bytes, again and again."""
    while True:
        resident.append(process.memory_info().rss)
        await asyncio.sleep(pause_s)


async def watched(
    browser: BrowserChoice, folder: Path, arm: ArmJob, config: ModelConfig, steps: int,
    pause_s: float = WATCH_S,
) -> tuple[dict[str, Any], list[int]]:  # fmt: skip
    """What the arm said of itself after training, and the GPU process's bytes meanwhile."""
    tokens = np.random.default_rng(3).integers(
        0, config.vocab, (steps, config.batch, config.ctx + 1), np.int32
    )
    resident: list[int] = []
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
        watching = asyncio.create_task(watch(gpu, resident, pause_s))
        outcome = await run_job(session, server, job, deadline_s=500)
        watching.cancel()
    assert outcome.failure is None, outcome.failure
    assert outcome.result
    return outcome.result.ran, resident


@pytest.mark.slow
async def test_memory_stays_flat(
    browser: BrowserChoice, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        opening, "FLAGS",
        (*opening.FLAGS, "--enable-blink-features=ForceEagerMeasureMemory"),
    )  # fmt: skip
    folder = tmp_path / "web"
    shutil.copytree(WEB, folder)
    (folder / "arm_watched.js").write_text(WATCHED)
    (folder / "main.js").write_text((folder / "main.js").read_text() + ASKED)
    config = presets.load("tiny").model
    options = dict.fromkeys(TILE_OF, "blocked") | dict.fromkeys(TILE_OF.values(), "8x8")
    arm = ArmJob(
        name="webgpu",
        module="arm_watched.js",
        options=dict(options) | {"workgroup": "8x8", "window": WINDOW},
    )
    ran, resident = await watched(browser, folder, arm, config, STEPS)
    seen = ran["seen"]
    windows = STEPS // WINDOW
    figures = {name: np.array(values[:windows], float) for name, values in seen.items()}
    for name, values in figures.items():
        settled = values[len(values) * SETTLED // STEPS :]
        at, low, high = slope(settled)
        print(f"{name}: {settled[-1]:.0f}, slope {at:.3g} a sample, 95% {low:.3g} … {high:.3g}")
        assert settled.min() > 0, name
        assert low <= 0 <= high, name
    assert np.ptp(figures["buffers"]) == 0
    settled = np.array(resident[len(resident) * SETTLED // STEPS :], float)
    a_step = len(settled) / (STEPS - SETTLED)
    at, low, high = (bound * a_step for bound in slope(settled))
    print(f"GPU process: {settled[-1]:.0f}, slope {at:.3g} a step, 95% {low:.3g} … {high:.3g}")
    assert high < GPU_PROCESS_BYTES


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
    _, resident = await watched(browser, folder, arm, NO_MODEL, EMPTY, pause_s=0.05)
    settled = np.array(resident[len(resident) // 3 :], float)
    a_turn = len(resident) / (EMPTY * TURNS)
    at, low, high = (bound * a_turn for bound in slope(settled))
    what = "an empty submit" if submits else "a wait"
    print(f"GPU process, {what}: slope {at:.4g} bytes, 95% {low:.4g} … {high:.4g}")
    assert high < (GPU_PROCESS_BYTES if submits else WAIT_BYTES)
