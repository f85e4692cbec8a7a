// What an arm can do apart from its step, timed: the roofline, single kernels, empty forks.
//
// An arm that can be asked has a `workbench` (web/README.md): it runs, this module times. Samples of a
// kernel alternate with samples of the roofline, since a machine's speed moves.

const SAMPLE_MS = 3; // a sample lasts at least this long: the clock ticks every few µs
const WARM_MS = 150; // engines compile a function well only once it has run for a while
const LONGEST_MS = 4000; // of one kernel's samples; at least LEAST are taken all the same
const LEAST = 3;

// Raw samples of the roofline in 1e9/s: one core and all threads in turn; null where the arm has none.
export function roofline(arm, count) {
  const bench = arm.workbench;
  if (!bench) return null;
  const core = peak(bench, 1);
  const all = peak(bench, bench.threads);
  const bytes = bench.triad_bytes();
  const lines = {
    core_gflops: [() => core.sample(), []],
    all_gflops: [() => all.sample(), []],
    bandwidth_core_gbs: [() => rate(bytes, () => bench.triad(1)), []],
    bandwidth_all_gbs: [() => rate(bytes, () => bench.triad(bench.threads)), []],
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

// The faster number of chains, found once the loop is compiled well; then samples in GFLOP/s.
function peak(bench, chunks) {
  const candidates = [0, 1].map((many) => {
    const flops = () => bench.madds(many, chunks);
    warm(flops);
    const best = Math.max(...Array.from({ length: 5 }, () => rate(flops(), flops)));
    return { best, chains: bench.chains(many), sample: () => repeated(flops, flops()).rate };
  });
  return candidates[0].best >= candidates[1].best ? candidates[0] : candidates[1];
}

function warm(run) {
  const began = performance.now();
  do run();
  while (performance.now() - began < WARM_MS);
}

// `amount` per call → amount per nanosecond.
function rate(amount, run) {
  const began = performance.now();
  run();
  return amount / (performance.now() - began) / 1e6;
}

// The same over as many calls as fill a sample.
function repeated(run, amount) {
  const began = performance.now();
  let times = 0;
  let ms = 0;
  do {
    run();
    times += 1;
    ms = performance.now() - began;
  } while (ms < SAMPLE_MS);
  return { rate: (amount * times) / ms / 1e6, ms, times };
}
