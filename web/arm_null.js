// The driver's own test instrument: an arm that trains nothing and does what its options program.
//
//   ms          milliseconds per step, or
//   steps_ms    JSON list of them, by step; the last one repeats
//   losses      JSON list, by step; else a curve falling from ln V
//   grad_norms  JSON list, by step; else 1
//   nan_at      the loss is NaN from this step on
//   hang_at     this step never ends
//   crash_at    this step throws outside every promise
//   fail        an ArmError of this kind when it opens
//
// Steps count from 0; -1 or nothing means never.
// All randomness is drawn in Python. Sections are real arrays, so states can be written and read.

import { ArmError } from "./errors.js";

export async function open(job) {
  const { name, options } = job.arm;
  if (options.fail) throw new ArmError(options.fail, `programmed failure "${options.fail}" of the arm ${name}`);
  const steps_ms = list(options.steps_ms) ?? [options.ms ?? 1];
  const losses = list(options.losses);
  const grad_norms = list(options.grad_norms);
  const sections = Object.fromEntries(
    ["param", "grad", "m", "v"].map((what) => [what, new Float32Array(job.flat_size)]),
  );
  const section = (what) => {
    if (!sections[what]) throw new ArmError("protocol", `no section ${what}`);
    return sections[what];
  };
  let step = 0; // AdamW steps taken

  async function train_step() {
    if (step === options.hang_at) await new Promise(() => {});
    if (step === options.crash_at) {
      setTimeout(() => { throw new Error(`programmed crash at step ${step}`); });
      await new Promise(() => {});
    }
    wait(steps_ms[Math.min(step, steps_ms.length - 1)]);
    const poisoned = options.nan_at >= 0 && step >= options.nan_at;
    const loss = losses?.[step] ?? Math.log(job.config.vocab) / (1 + 0.01 * step);
    const norm = grad_norms?.[step] ?? 1;
    step += 1;
    return [poisoned ? NaN : loss, norm];
  }

  return {
    ran: { arm: "null", trains: false, options, hyper: { ...job.config } },
    reset(t) {
      step = t;
      section("m").fill(0);
      section("v").fill(0);
    },
    write: (what, at, data) => section(what).set(data, at),
    read: (what, at, count) => section(what).slice(at, at + count),
    async train(tokens, steps) {
      const result = { losses: [], grad_norms: [] };
      for (let i = 0; i < steps; i++) {
        const [loss, norm] = await train_step();
        result.losses.push(loss);
        result.grad_norms.push(norm);
      }
      return result;
    },
    readback() {},
    memory: () => ({ address: "none", final_bytes: 4 * 4 * job.flat_size }),
    close() {},
  };
}

const list = (json) => (json === undefined ? undefined : JSON.parse(json));

const bell = new Int32Array(new SharedArrayBuffer(4));

// Sleeps whole milliseconds but one, then spins: as precise as the clock.
function wait(ms) {
  const until = performance.now() + ms;
  if (ms >= 2) Atomics.wait(bell, 0, 0, Math.floor(ms) - 1);
  while (performance.now() < until);
}
