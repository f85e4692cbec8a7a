// Where a step's time goes, operation by operation, and what asking costs.
//
// An arm that can be asked has a `profile` (web/README.md). Windows without and with the profiler alternate,
// A B B A, since a machine's speed moves; both kinds train on, and must give the same numbers.

import { ArmError } from "./errors.js";

// Trains `rounds` times four windows of `steps` steps; `train` trains one and returns its result.
// Returns the windows' results in order, and the raw samples.
export async function profile_samples(profiler, train, steps, rounds) {
  const windows = [];
  const plain_ms = [];
  const profiled_ms = [];
  const ops = [];
  for (let round = 0; round < rounds; round++) {
    for (const profiled of [false, true, true, false]) {
      if (profiled) await profiler.start();
      const window = await train();
      if (profiled) collect(ops, await profiler.stop(), steps);
      windows.push(window);
      (profiled ? profiled_ms : plain_ms).push(window.ms);
    }
  }
  return { windows, profile: { steps, plain_ms, profiled_ms, ops } };
}

// Adds one window's totals. Every step runs the same operations, so every window has the same counts.
function collect(ops, totals, steps) {
  if (!ops.length) {
    for (const { op, calls } of totals) ops.push({ op, calls: calls / steps, windows_ms: [] });
  }
  const same = totals.length === ops.length && totals.every(({ op, calls }, i) => (
    op === ops[i].op && calls === ops[i].calls * steps && Number.isInteger(ops[i].calls)
  ));
  if (!same) throw new ArmError("internal", "the profiler counted other operations in one window than in another");
  totals.forEach(({ ms }, i) => ops[i].windows_ms.push(ms));
}
