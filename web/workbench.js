// What an arm can do apart from its step, timed: the roofline, single kernels, empty forks.
//
// An arm that can be asked has a `workbench` (web/README.md): it runs, this module times. Samples of a
// kernel alternate with samples of the roofline, since a machine's speed moves. Work on a device is timed
// otherwise (workbench_device.js).

import { device_roofline, samples_of, triad_line } from "./workbench_device.js";

const SAMPLE_MS = 3; // a sample lasts at least this long: the clock ticks every few µs
const LONG_SAMPLE_MS = 100; // long against the turns that threads on too few cores take
const CHUNKS_EACH = 16;
const MOST_CHUNKS = 256; // of one call of the module
const WARM_MS = 100; // engines compile a function well only once it has run for a while
const AGAIN_MS = 10; // for a function that has run here before
const LONGEST_MS = 3000; // of one kernel's samples; at least LEAST are taken all the same
const LEAST = 3;
const NO_LINE = () => null; // in place of a roofline's samples

// Raw samples of the roofline in 1e9/s: one core and all threads in turn; null where the arm has none.
export function roofline(arm, count) {
  const bench = arm.workbench;
  if (!bench) return null;
  if (bench.is_device) return device_roofline(bench, count);
  const core = peak(bench, 1);
  const all = bench.threads === 1 ? core : peak(bench, bench.threads);
  const bytes = bench.triad_bytes();
  const lines = {
    core_gflops: [() => core.sample(), []],
    all_gflops: [() => all.sample(), []],
    bandwidth_core_gbs: [() => rate(bytes, () => bench.triad(1)), []],
    bandwidth_all_gbs: [() => (bench.meetings(3), rate(bytes, () => bench.triad(shares(bench.threads)))), []],
  };
  for (const [sample] of Object.values(lines)) sample(); // touches every page once
  for (let i = 0; i < count; i++) {
    for (const [sample, values] of Object.values(lines)) values.push(sample());
  }
  const raw = Object.fromEntries(Object.entries(lines).map(([name, [, values]]) => [name, values]));
  return {
    flavour: bench.flavour,
    threads: bench.threads,
    chains: core.chains,
    bandwidth_buffer_bytes: bytes,
    ...raw,
  };
}

const warmed = new Set(); // kernels that have run long enough
let top = null; // the roofline on all threads of the arm

// Samples of one product and of the roofline on the same threads, in turn: that of the roofline before
// sample i is roofline_gflops[i], the one after it [i + 1]. `alone`: of the product, and of nothing else.
export async function kernel_samples(bench, spec, count, alone) {
  const { times, samples_ms, tops } = bench.is_device
    ? await samples_of(bench, count, alone ? NO_LINE : null)
    : product_samples(bench, spec, count, alone);
  const roofline_gflops = alone ? [] : tops;
  return { threads: bench.threads, products_per_sample: times, samples_ms, roofline_gflops };
}

function product_samples(bench, spec, count, alone) {
  if (!alone) top ??= peak(bench, bench.threads);
  const key = `${spec.product} ${spec.kernel} ${spec.tile}`;
  const run = (times) => clocked(bench, () => bench.product(spec, times));
  return in_turn(bench, key, run, alone ? NO_LINE : top.sample, count);
}

// The same for the operation in place, whose roofline is multiply-adds where it is bound by arithmetic, else
// a triad over as much memory. What it writes over is restored, off the clock, before every sample and
// after `most_calls`: numbers that only shrink would become subnormal, which is slow.
export async function operation_samples(bench, { name, bound_by, most_calls }, count) {
  if (bench.is_device) {
    const line = bound_by === "arithmetic" ? null : await triad_line(bench);
    const { times, samples_ms, tops } = await samples_of(bench, count, line);
    return { threads: bench.threads, calls_per_sample: times, samples_ms, roofline: tops };
  }
  const run = (times) => {
    let ms = 0;
    for (let left = times; left > 0; left -= most_calls ?? times) {
      bench.restore();
      ms += clocked(bench, () => bench.operate(Math.min(left, most_calls ?? times)));
    }
    return ms;
  };
  if (bound_by === "arithmetic") top ??= peak(bench, bench.threads);
  const line = bound_by === "arithmetic" ? top.sample : () => repeated(bench, () => bench.same_size_triad(bench.threads));
  const { times, samples_ms, tops } = in_turn(bench, name, run, line, count);
  return { threads: bench.threads, calls_per_sample: times, samples_ms, roofline: tops };
}

// `count` samples of run(times) → ms, each between two of its roofline.
function in_turn(bench, key, run, line, count) {
  warm(() => run(1), warmed.has(key) ? AGAIN_MS : WARM_MS);
  warmed.add(key);
  const times = times_for(SAMPLE_MS, run);
  line(); // touches its memory once
  const samples_ms = [];
  const tops = [line()];
  const until = performance.now() + LONGEST_MS;
  while (samples_ms.length < count && (samples_ms.length < LEAST || performance.now() < until)) {
    samples_ms.push(run(times));
    tops.push(line());
  }
  return { times, samples_ms, tops };
}

// Milliseconds of `run`, with the threads awake.
function clocked(bench, run) {
  bench.meetings(3);
  const began = performance.now();
  run();
  return performance.now() - began;
}

// What forking and joining cost by themselves: `count` samples of many in which every thread takes part.
export function fork_samples(bench, count) {
  const forks = 100;
  warm(() => bench.meetings(forks), WARM_MS);
  const samples_ms = Array.from({ length: count }, () => clocked(bench, () => bench.meetings(forks)));
  return { threads: bench.threads, forks_per_sample: forks, samples_ms, uneven: uneven_forks(bench) };
}

// Forks in which the caller, then the last thread, is slow: by a little, then as if it stood still.
function uneven_forks(bench) {
  const chunks = CHUNKS_EACH * bench.threads;
  return bench.threads === 1 ? [] : [0, bench.threads - 1].flatMap((slow_thread) => (
    [8, chunks].map((slowness) => (
      { slow_thread, slowness, chunks, by_thread: bench.uneven(chunks, slow_thread, slowness) }
    ))
  ));
}

// Multiply-adds in 1e9/s on that many of the arm's threads: one sample.
export function throughput(bench, threads) {
  const flops = () => bench.madds(0, shares(threads));
  bench.use(threads);
  warm(flops, AGAIN_MS);
  const gflops = repeated(bench, flops, LONG_SAMPLE_MS);
  bench.use(bench.threads);
  return { threads, gflops };
}

// The faster number of chains, found once the loop is compiled well and the threads are awake; then samples in
// GFLOP/s. Tried in turn: whichever came first would pay for the waking and lose.
function peak(bench, threads) {
  const chunks = shares(threads);
  const candidates = [0, 1].map((many) => {
    const flops = () => bench.madds(many, chunks);
    return { best: 0, chains: bench.chains(many), flops, sample: () => repeated(bench, flops) };
  });
  for (const { flops } of candidates) warm(flops, WARM_MS);
  for (let round = 0; round < 5; round++) {
    for (const one of candidates) one.best = Math.max(one.best, rate(one.flops(), one.flops));
  }
  return candidates[0].best >= candidates[1].best ? candidates[0] : candidates[1];
}

// Into how many pieces a call's work is cut: many, claimed as in a training step, so a thread that another process
// holds up costs its own time and no other's.
function shares(threads) {
  return threads === 1 ? 1 : Math.min(CHUNKS_EACH * threads, MOST_CHUNKS);
}

// How often `run(times)` → ms has to repeat its work to last so long. Found by doubling: a page that is not isolated
// has a clock of 100 µs, by which one small piece of work takes no time at all, or far too much. Twice in a row:
// a single time may be that of another process which had the core meanwhile.
function times_for(least_ms, run) {
  for (let times = 1; ; times *= 2) {
    if (run(times) >= least_ms && run(times) >= least_ms) return times;
  }
}

function warm(run, ms) {
  const began = performance.now();
  do run();
  while (performance.now() - began < ms);
}

// `amount` per call → amount per nanosecond.
function rate(amount, run) {
  const began = performance.now();
  run();
  return amount / (performance.now() - began) / 1e6;
}

// The same, in 1e9/s, over as many calls as fill a sample; `run` returns the amount. Threads that sleep are
// woken first, until all of them run at the same time.
function repeated(bench, run, least_ms = SAMPLE_MS) {
  bench.meetings(3);
  const began = performance.now();
  let amount = 0;
  let ms = 0;
  do {
    amount += run();
    ms = performance.now() - began;
  } while (ms < least_ms);
  return amount / ms / 1e6;
}
