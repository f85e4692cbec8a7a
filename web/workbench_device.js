// Timing for an arm whose work runs on a device (its workbench has `is_device`): batches of dispatches, each
// ended by a mapped readback and long against both the clock's step and an empty readback.

import { timer_step_ms } from "./probe.js";

const LONG = 50; // a sample lasts so many steps of the clock and empty readbacks
const LEAST_MS = 3;
const READBACKS = 9; // whose median tells how long an empty one takes
const LONGEST_MS = 4000; // of one kernel's samples; at least LEAST are taken all the same
const LEAST = 3;
const ROOFLINE_MS = 600; // of the roofline's samples, likewise

let least_ms = null; // of a sample
let top = null; // the roofline: {chains, sample}

// Samples of what is in place and of its roofline, in turn: that of the roofline before sample i is tops[i],
// the one after it [i + 1]. `line` gives one sample of the roofline; multiply-adds where it is left out.
export async function samples_of(bench, count, line = null) {
  least_ms ??= await long_enough(bench);
  if (!line) top ??= await peak(bench);
  const sample = line ?? top.sample;
  await bench.run(1);
  const times = await times_for(least_ms, (n) => bench.run(n));
  const samples_ms = [];
  const tops = [await sample()];
  const until = performance.now() + LONGEST_MS;
  while (samples_ms.length < count && (samples_ms.length < LEAST || performance.now() < until)) {
    await bench.restore?.();
    samples_ms.push(await bench.run(times));
    tops.push(await sample());
  }
  return { times, samples_ms, tops };
}

// One sample, in 1e9/s, of a triad over as much memory as the operands in place.
export async function triad_line(bench) {
  least_ms ??= await long_enough(bench);
  const bytes = await bench.prepare_triad(bench.operand_bytes());
  await bench.triad(1);
  const times = await times_for(least_ms, (n) => bench.triad(n));
  return async () => (bytes * times) / (await bench.triad(times)) / 1e6;
}

// Raw samples of the roofline in 1e9/s, as workbench.js has them; a device has no single core to ask.
export async function device_roofline(bench, count) {
  least_ms ??= await long_enough(bench);
  top ??= await peak(bench);
  const bytes = await bench.prepare_triad(bench.triad_bytes());
  await bench.triad(1);
  const times = await times_for(least_ms, (n) => bench.triad(n));
  const [all_gflops, bandwidth_all_gbs] = [[], []];
  const until = performance.now() + ROOFLINE_MS;
  while (all_gflops.length < count && (all_gflops.length < LEAST || performance.now() < until)) {
    all_gflops.push(await top.sample());
    bandwidth_all_gbs.push((bytes * times) / (await bench.triad(times)) / 1e6);
  }
  return {
    flavour: bench.flavour,
    threads: bench.threads,
    chains: top.chains,
    bandwidth_buffer_bytes: bytes,
    core_gflops: [],
    all_gflops,
    bandwidth_core_gbs: [],
    bandwidth_all_gbs,
  };
}

async function long_enough(bench) {
  const waits = [];
  for (let i = 0; i < READBACKS; i++) waits.push(await bench.run(0));
  const readback_ms = waits.sort((a, b) => a - b)[READBACKS >> 1];
  return Math.max(LEAST_MS, LONG * Math.max(timer_step_ms(), readback_ms));
}

// How often `run(times)` → ms has to repeat its work to last so long: twice in a row, since a single time may be
// that of another process which had the device meanwhile.
async function times_for(least, run) {
  for (let times = 1; ; ) {
    let ms = await run(times);
    if (ms >= least) ms = Math.min(ms, await run(times));
    if (ms >= least) return times;
    // Towards what the time so far asks for, since each try costs; at least twice, at most eight times as many.
    times *= Math.min(8, Math.max(2, Math.ceil((1.1 * least) / Math.max(ms, 1e-3))));
  }
}

// The faster number of chains, then samples in GFLOP/s.
async function peak(bench) {
  const candidates = [];
  for (const many of [0, 1]) {
    const flops = await bench.prepare_madds(many);
    const times = await times_for(least_ms, (n) => bench.madds(many, n));
    const sample = async () => (flops * times) / (await bench.madds(many, times)) / 1e6;
    const best = Math.max(await sample(), await sample());
    candidates.push({ best, chains: bench.chains(many), sample });
  }
  return candidates[0].best >= candidates[1].best ? candidates[0] : candidates[1];
}
