// Where a step's time goes, operation by operation, and what asking costs.
//
// An arm that can be asked has a `profile` (web/README.md). Windows without and with the profiler alternate,
// A B B A, since a machine's speed moves; both kinds train on, and must give the same numbers.

import { ArmError } from "./errors.js";

// Trains `rounds` times four windows of `steps` steps, after four that warm up and count for nothing; `train`
// trains one and returns its result. Returns the results of all windows in order, and the raw samples; null
// for them, and a reason, where the profiler itself says that its figures are wrong.
export async function profile_samples(profiler, train, steps, rounds) {
  const windows = [];
  let profile;
  let reason = null;
  for (let round = 0; round <= rounds; round++) {
    if (round <= 1) profile = { steps, clock: "performance.now", clock_step_ms: null, plain_ms: [], profiled_ms: [], ops: [] };
    for (const profiled of [false, true, true, false]) {
      if (profiled) await profiler.start();
      const window = await train();
      if (profiled) {
        collect(profile.ops, await profiler.stop(), steps);
        reason ??= clocked(profile, profiler.clock?.());
      }
      profile[profiled ? "profiled_ms" : "plain_ms"].push(window.ms);
      windows.push(window);
    }
  }
  return { windows, profile: reason ? null : profile, reason };
}

// Notes an arm's own clock and its step, which divides every difference seen: of several windows' the smallest
// is the best measured. Returns why its figures are wrong, if they are.
function clocked(profile, own) {
  if (!own) return null;
  profile.clock = own.clock;
  profile.clock_step_ms = Math.min(profile.clock_step_ms ?? Infinity, own.clock_step_ms);
  return own.wrong;
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
