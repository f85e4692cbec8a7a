// Where a step's GPU time goes: timestamps at the beginning and the end of every dispatch, added up by
// operation. Each dispatch is a pass of its own while the profiler is on; off, nothing is different.

import { ADDING } from "./arm_webgpu_step.js";

const MOST_QUERIES = 4096; // in a query set; more are spread over several
const RESOLVE_ALIGN = 256; // bytes, of where a query set is resolved to
const STORE = 4 << 20; // bytes of timestamps kept on the device until they are read

// Operations whose kernels have other names; several kernels may be one operation.
const OPERATION = {
  adamw_w16: "adamw",
  crossentropy_forward: "crossentropy",
  layernorm_backward_params: "layernorm_backward",
  attention_backward_dq: "attention_backward",
  attention_backward_dkv: "attention_backward",
  gradnorm_partial: "grad_norm",
  gradnorm_finish: "grad_norm",
};
const HEAD = { head: "head_forward", "head.dx": "head_backward_da", "head.dwte": "head_backward_db" };

// A dispatch's operation, by its name in C (wasm_src/gpt.h). Bias gradients are part of the products, and so is
// adding their parts.
export function operation_of({ label, kernel, constants }) {
  const head = HEAD[label.endsWith(ADDING) ? label.slice(0, -ADDING.length) : label];
  if (head) return head;
  const product = /^matmul_(forward|backward_da|backward_db)_/.exec(kernel)?.[1];
  if (product === "forward" && constants.GELU) return "matmul_gelu_forward";
  return product ? `matmul_${product}` : OPERATION[kernel] ?? kernel;
}

export class Profiler {
  // `ops`: the operation of every dispatch of a step, in order.
  constructor(gpu, ops) {
    Object.assign(this, { gpu, ops, on: false, sets: null });
  }

  async start() {
    if (!this.sets) await this.allocate();
    this.totals = new Map(); // operation → {op, calls, ms}
    this.step_ns = 0; // greatest common divisor of all differences seen
    this.origin = null; // the first timestamp
    this.wrong = null;
    this.at = 0; // the next dispatch of the step
    this.kept = 0; // steps whose timestamps are still on the device
    this.on = true;
  }

  // Totals since start by operation.
  async stop() {
    this.on = false;
    await this.drain();
    return [...this.totals.values()];
  }

  // The step in which timestamps moved since start, and what is wrong with them, if anything.
  clock() {
    const wrong = this.wrong ?? (this.step_ns ? null : "all of the adapter's timestamps are equal");
    return { clock: "timestamp-query", clock_step_ms: this.step_ns / 1e6, wrong };
  }

  // Encodes dispatches that follow those encoded before; after a step's last one its timestamps are kept.
  encode(encoder, commands) {
    for (const { pipeline, group, groups } of commands) {
      const first = 2 * this.at;
      const begin = first % MOST_QUERIES;
      const querySet = this.sets[Math.floor(first / MOST_QUERIES)];
      const pass = encoder.beginComputePass({
        timestampWrites: { querySet, beginningOfPassWriteIndex: begin, endOfPassWriteIndex: begin + 1 },
      });
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(...groups);
      pass.end();
      this.at += 1;
    }
    if (this.at < this.ops.length) return;
    this.sets.forEach((set, i) => {
      encoder.resolveQuerySet(set, 0, set.count, this.resolved, this.kept * this.stride + i * MOST_QUERIES * 8);
    });
    this.at = 0;
    this.kept += 1;
  }

  // Call after a step was submitted: reads the timestamps once no other step's would fit.
  async submitted() {
    if (this.kept === this.steps) await this.drain();
  }

  async drain() {
    if (!this.kept) return;
    const { device } = this.gpu;
    const bytes = this.kept * this.stride;
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(this.resolved, 0, this.readable, 0, bytes);
    device.queue.submit([encoder.finish()]);
    await this.gpu.guard(this.readable.mapAsync(GPUMapMode.READ, 0, bytes));
    const stamps = new BigUint64Array(this.readable.getMappedRange(0, bytes));
    for (let step = 0; step < this.kept; step++) this.count(stamps.subarray((step * this.stride) / 8));
    this.readable.unmap();
    this.kept = 0;
  }

  // Adds one step's timestamps, in ns.
  count(stamps) {
    this.origin ??= stamps[0];
    this.ops.forEach((op, i) => {
      const begin = Number(stamps[2 * i] - this.origin);
      const end = Number(stamps[2 * i + 1] - this.origin);
      this.step_ns = divisor(divisor(this.step_ns, Math.abs(begin)), Math.abs(end));
      if (end < begin) this.wrong ??= `the adapter's timestamps run backwards (${op}, by ${begin - end} ns)`;
      const total = this.totals.get(op) ?? { op, calls: 0, ms: 0 };
      total.calls += 1;
      total.ms += (end - begin) / 1e6;
      this.totals.set(op, total);
    });
  }

  allocate() {
    const { COPY_SRC, COPY_DST, MAP_READ, QUERY_RESOLVE } = GPUBufferUsage;
    const queries = 2 * this.ops.length;
    this.stride = Math.ceil((queries * 8) / RESOLVE_ALIGN) * RESOLVE_ALIGN;
    this.steps = Math.max(1, Math.floor(STORE / this.stride));
    const size = this.steps * this.stride;
    return this.gpu.scoped("allocating the profiler's queries", () => {
      const { device } = this.gpu;
      this.sets = Array.from({ length: Math.ceil(queries / MOST_QUERIES) }, (_, i) => (
        device.createQuerySet({ type: "timestamp", count: Math.min(MOST_QUERIES, queries - i * MOST_QUERIES) })
      ));
      this.resolved = device.createBuffer({ label: "timestamps", size, usage: QUERY_RESOLVE | COPY_SRC });
      this.readable = device.createBuffer({ label: "timestamps read", size, usage: MAP_READ | COPY_DST });
    });
  }
}

// The greatest common divisor of whole numbers, 0 being no constraint.
function divisor(a, b) {
  while (b) [a, b] = [b, a % b];
  return a;
}
