// The WebGPU arm: the training step in WGSL kernels, dispatched from a worker.
//
// Everything is made once in open(): pipelines, buffers, bind groups. A step writes its batch and submits
// its dispatches; a window reads its losses and norms once, from a ring on the device.

import { adapter_facts } from "./adapter.js";
import { find_adapter, open_device, refusal } from "./device.js";
import { ArmError } from "./errors.js";
import { Profiler, operation_of } from "./arm_webgpu_profile.js";
import { needs_of } from "./arm_webgpu_limits.js";
import { BLOCK, FACTS, RING, batch_layout, buffers_of, packing_of, shape_of, step_of, tune } from "./arm_webgpu_step.js";
import { is_apart, needs_apart, workbench } from "./arm_webgpu_workbench.js";

const TRANSFER = 16 << 20; // floats read back at once: 64 MiB
const IN_FLIGHT = 16; // steps submitted before the first of them must have finished
// Work per submit: above this a step is cut, so that no command buffer runs into a GPU's watchdog (about
// 2 s). A software adapter has none: a submit of 16 s went through Chromium's.
const FLOPS_PER_SUBMIT = { hardware: 2e11, software: Infinity };
const SECTIONS = ["param", "grad", "m", "v"];
const RECIPE = ["lr", "beta1", "one_minus_beta1", "beta2", "one_minus_beta2", "eps", "weight_decay", "grad_clip"];

export async function open(job, io) {
  const sources = await load_sources(job.assets, io);
  const apart = job.program.some(is_apart);
  const trains = job.program.some((op) => op.op !== "open" && !is_apart(op));
  return apart && !trains ? open_workbench(job, sources) : open_step(job, sources, apart);
}

// For kernels that run apart from a step, and no step: none of its pipelines is compiled.
async function open_workbench({ arm, program }, sources) {
  const { f16 } = arm.options;
  const needs_on = (adapter) => needs_apart(program, sources, adapter, f16);
  const gpu = await open_device(needs_on, features_of(arm.options, program));
  return {
    adapter: gpu.adapter,
    ran: { arm: arm.name, wgsl_sha256: digests_of(sources) },
    workbench: workbench(gpu, sources, submit_flops(gpu.adapter), f16),
    memory: () => ({ address: "gpu" }),
    close: () => gpu.close(),
  };
}

async function open_step(job, sources, apart) {
  const { config, flat_size } = job;
  const shape = shape_of(config);
  const tensors = Object.fromEntries(job.tensors.map((slot) => [slot.name, slot]));
  const made = {};
  const gpu = await open_device((adapter) => {
    const is_software = adapter.is_fallback === true;
    const tuning = tune(job.arm.options, shape, flat_size, is_software, adapter.subgroup_max_size);
    const dispatches = step_of(shape, tensors, flat_size, tuning);
    const plan = buffers_of(shape, flat_size, tuning, dispatches);
    const packing = packing_of(flat_size, tuning.f16);
    Object.assign(made, { plan, dispatches, packing });
    const needs = needs_of(plan, [...dispatches, ...packing], sources);
    return apart ? larger(needs, needs_apart(job.program, sources, adapter, job.arm.options.f16)) : needs;
  }, features_of(job.arm.options, job.program), ["timestamp-query"]);
  const { plan, dispatches, packing } = made;
  try {
    const pipelines = await make_pipelines(gpu, sources, [...dispatches, ...packing]);
    const buffers = await make_buffers(gpu, plan, flat_size);
    upload_constants(gpu, buffers, job);
    const commands = await bind(gpu, buffers, sources, pipelines, dispatches);
    const pack = await bind(gpu, buffers, sources, pipelines, packing);
    const submits = cut(commands, gpu.adapter);
    const ran = {
      arm: job.arm.name,
      products: products_of(dispatches),
      f16: precision_of(dispatches),
      wgsl_sha256: digests_of(sources),
      dispatches_per_step: commands.length,
      submits_per_step: submits.length,
      kernels: kernels_of(dispatches),
      hyper: await read_hyper(gpu, buffers, dispatches, shape),
    };
    const arm = new WebgpuArm(gpu, job, shape, buffers, plan, submits, pack, ran);
    if (apart) arm.workbench = workbench(gpu, sources, submit_flops(gpu.adapter), job.arm.options.f16);
    return arm;
  } catch (error) {
    gpu.close();
    throw error;
  }
}

// The step's dispatches on this machine's adapter, planned only: nothing is allocated. `refusal` says why the
// adapter could not hold it, null where it can.
export async function geometry(job, io) {
  const { config, flat_size } = job;
  const shape = shape_of(config);
  const adapter = await find_adapter();
  const facts = adapter_facts(adapter);
  const tuning = tune(job.arm.options, shape, flat_size, facts.is_fallback === true, facts.subgroup_max_size);
  const tensors = Object.fromEntries(job.tensors.map((slot) => [slot.name, slot]));
  const dispatches = step_of(shape, tensors, flat_size, tuning);
  const plan = buffers_of(shape, flat_size, tuning, dispatches);
  const sources = await load_sources(job.assets, io);
  return {
    adapter: facts,
    refusal: refusal(adapter, needs_of(plan, dispatches, sources), features_of(job.arm.options)),
    submits: cut(dispatches, facts).length,
    buffers: Object.keys(plan).length,
    buffer_bytes: Object.values(plan).reduce((sum, { floats }) => sum + floats * 4, 0),
    dispatches: alike(dispatches),
  };
}

// Dispatches in order, those that differ in their layer alone counted together.
function alike(dispatches) {
  const rows = new Map();
  for (const dispatch of dispatches) {
    const { kernel, constants, groups } = dispatch;
    const label = dispatch.label.replace(/^h\.\d+\./, "h.");
    const key = JSON.stringify([label, kernel, constants, groups]);
    const row = rows.get(key) ?? { label, op: operation_of(dispatch), kernel, constants, groups, per_step: 0 };
    row.per_step += 1;
    rows.set(key, row);
  }
  return [...rows.values()];
}

class WebgpuArm {
  constructor(gpu, job, shape, buffers, plan, submits, pack, ran) {
    Object.assign(this, { gpu, job, shape, buffers, plan, submits, pack, ran, adapter: gpu.adapter });
    this.packed = false; // the copy of halves holds what the parameters are
    this.layout = batch_layout(shape);
    this.batch = new Uint32Array(this.layout.size); // this step's batch, written again and again
    this.next = new Uint32Array(shape.V); // counting sort: where each token's next position goes
    this.t = 0; // AdamW steps taken
    const can_time = gpu.device.features.has("timestamp-query");
    this.profile = can_time ? new Profiler(gpu, submits.flat().map(({ op }) => op)) : null;
    this.profile_reason = can_time ? null : "this adapter has no timestamp-query";
  }

  reset(t) {
    this.t = t;
    return this.gpu.scoped("reset", () => {
      const encoder = this.gpu.device.createCommandEncoder();
      for (const what of ["m", "v"]) encoder.clearBuffer(this.buffers[what]);
      this.gpu.device.queue.submit([encoder.finish()]);
    });
  }

  write(what, at, data) {
    if (what === "param") this.packed = false;
    return this.gpu.scoped(`write ${what}`, () => {
      this.gpu.device.queue.writeBuffer(this.section(what), at * 4, data);
    });
  }

  async read(what, at, count) {
    const result = new Float32Array(count);
    for (let done = 0; done < count; ) {
      const size = Math.min(count - done, this.buffers.transfer.size / 4);
      result.set(await read_back(this.gpu, this.section(what), (at + done) * 4, this.buffers.transfer, size), done);
      done += size;
    }
    return result;
  }

  async train(tokens, steps) {
    const stride = this.shape.B * (this.shape.T + 1);
    const losses = [];
    const grad_norms = [];
    for (let done = 0; done < steps; ) {
      const count = Math.min(steps - done, RING);
      const results = await this.gpu.scoped(`train at step ${this.t}`, () =>
        this.window(tokens.subarray(done * stride, (done + count) * stride), count),
      );
      for (let i = 0; i < count; i++) {
        losses.push(results[2 * i]);
        grad_norms.push(results[2 * i + 1]);
      }
      this.refuse_overflows(new Uint32Array(results.buffer)[2 * count]);
      done += count;
    }
    return { losses, grad_norms };
  }

  // The copy of halves, if there is one, after parameters came from outside.
  refresh_halves() {
    if (this.pack.length && !this.packed) {
      const encoder = this.gpu.device.createCommandEncoder();
      encode(encoder, this.pack);
      this.gpu.device.queue.submit([encoder.finish()]);
    }
    this.packed = true;
  }

  // `count`: how often a weight that no half can hold was packed, counted on the device.
  refuse_overflows(count) {
    if (!count) return;
    const where = `by the end of step ${this.t - 1}`;
    throw new ArmError(
      "failed",
      `f16=${this.ran.f16}: weights beyond 65504, the largest half, or not numbers were packed ${count === 1 ? "once" : `${count} times`} ${where}; ` +
        "use f16=off for this state and recipe",
    );
  }

  // At most RING steps: queues them all, then waits for their results, (loss, norm) pairs, and one word more,
  // how many weights no half could hold.
  async window(tokens, steps) {
    const { device } = this.gpu;
    const stride = tokens.length / steps;
    const finished = [];
    this.refresh_halves();
    for (let slot = 0; slot < steps; slot++) {
      if (slot >= IN_FLIGHT) await this.gpu.guard(finished[slot - IN_FLIGHT]);
      this.fill_batch(tokens.subarray(slot * stride, (slot + 1) * stride), slot);
      device.queue.writeBuffer(this.buffers.batch, 0, this.batch);
      for (const commands of this.submits) {
        const encoder = device.createCommandEncoder();
        if (this.profile?.on) this.profile.encode(encoder, commands);
        else encode(encoder, commands);
        device.queue.submit([encoder.finish()]);
      }
      if (this.profile?.on) await this.profile.submitted();
      finished.push(device.queue.onSubmittedWorkDone());
    }
    const overflows = { source: this.buffers.clip, at: 2 };
    return read_back(this.gpu, this.buffers.results, 0, this.buffers.readback, 2 * steps, overflows);
  }

  // The step's facts, its tokens, and its positions sorted by token, into `batch`.
  fill_batch(tokens, slot) {
    const { batch, layout, next } = this;
    const { B, T, V } = this.shape;
    const { beta1, beta2 } = this.job.config;
    this.t += 1;
    const corrections = new Float32Array(batch.buffer, FACTS.correction1 * 4, 2);
    batch[FACTS.slot] = slot;
    corrections[0] = 1 / (1 - beta1 ** this.t);
    corrections[1] = 1 / (1 - beta2 ** this.t);
    next.fill(0);
    for (let b = 0, n = 0; b < B; b++) {
      for (let t = 0; t < T; t++, n++) {
        const at = b * (T + 1) + t;
        const [token, target] = [tokens[at], tokens[at + 1]];
        if (!(token >= 0 && token < V && target >= 0 && target < V)) {
          const where = `row ${b}, position ${t}`;
          throw new ArmError("protocol", `tokens ${token}, ${target} at ${where}: the vocabulary has ${V}`);
        }
        batch[layout.inputs + n] = token;
        batch[layout.targets + n] = target;
        next[token] += 1;
      }
    }
    let start = 0;
    for (let token = 0; token < V; token++) {
      batch[layout.starts + token] = start;
      const count = next[token];
      next[token] = start;
      start += count;
    }
    batch[layout.starts + V] = start;
    for (let n = 0; n < B * T; n++) batch[layout.order + next[batch[layout.inputs + n]]++] = n;
  }

  async readback() {
    await read_back(this.gpu, this.buffers.results, 0, this.buffers.readback, 2);
  }

  memory() {
    const by_role = {};
    for (const { floats, role } of Object.values(this.plan)) by_role[role] = (by_role[role] ?? 0) + floats * 4;
    by_role.transfer = this.buffers.transfer.size + this.buffers.readback.size;
    const total = Object.values(by_role).reduce((sum, bytes) => sum + bytes, 0);
    const [largest, { binding }] = most(this.plan, "binding");
    return {
      address: "gpu",
      final_bytes: total,
      buffer_bytes: by_role,
      largest_binding: largest,
      largest_binding_bytes: binding * 4,
    };
  }

  close() {
    this.gpu.close();
  }

  section(what) {
    if (!SECTIONS.includes(what)) throw new ArmError("protocol", `no section ${what}`);
    return this.buffers[what];
  }
}

// ------------------------------------------------------------------------------ set-up

// Of each need the larger one.
function larger(needs, others) {
  const all = { ...others };
  for (const [name, need] of Object.entries(needs)) if (!(all[name]?.value > need.value)) all[name] = need;
  return all;
}

// What kernels of these options cannot do without.
function features_of(options, program = []) {
  const variants = [options.mm_fwd, options.mm_da, options.mm_db, ...program.map(({ kernel }) => kernel?.kernel)];
  return [
    ...(variants.includes("subgroup") ? ["subgroups"] : []),
    ...(options.f16 === "compute" ? ["shader-f16"] : []),
  ];
}

// The entry of `plan` whose `field` is largest.
function most(plan, field) {
  return Object.entries(plan).reduce((a, b) => (b[1][field] > a[1][field] ? b : a));
}

// File name → {text, sha256, bindings: name → {index, write}}. Bindings are read from the WGSL, so that
// their order and access modes are stated there alone.
async function load_sources(assets, io) {
  const files = Object.keys(assets).filter((name) => name.startsWith("wgsl/"));
  const loaded = files.map(async (asset) => {
    const text = await io.text(asset);
    const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
    const sha256 = Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
    const bindings = {};
    for (const [, index, name] of text.matchAll(/@binding\((\d+)\)\s*var<[^>]*>\s*(\w+)/g)) {
      bindings[name] = Number(index);
    }
    return [asset.slice("wgsl/".length), { text, sha256, bindings }];
  });
  return new Map(await Promise.all(loaded));
}

const digests_of = (sources) => Object.fromEntries([...sources].map(([name, { sha256 }]) => [name, sha256]));

const pipeline_key = ({ kernel, constants }) => `${kernel} ${JSON.stringify(constants)}`;

async function make_pipelines(gpu, sources, dispatches) {
  const modules = new Map();
  for (const { kernel } of dispatches) {
    const file = `${kernel}.wgsl`;
    if (modules.has(kernel)) continue;
    if (!sources.has(file)) throw new ArmError("protocol", `the job has no kernel ${file}`);
    modules.set(kernel, gpu.module(file, sources.get(file).text));
  }
  const pipelines = new Map();
  await gpu.scoped("compiling", async () => {
    for (const dispatch of dispatches) {
      const key = pipeline_key(dispatch);
      if (pipelines.has(key)) continue;
      const module = await modules.get(dispatch.kernel);
      pipelines.set(key, gpu.pipeline(`${dispatch.kernel}.wgsl (${dispatch.label})`, module, dispatch.constants));
    }
    for (const [key, pipeline] of pipelines) pipelines.set(key, await pipeline);
  });
  return pipelines;
}

function make_buffers(gpu, plan, flat_size) {
  const { STORAGE, UNIFORM, COPY_SRC, COPY_DST, MAP_READ } = GPUBufferUsage;
  const make = (label, bytes, usage) => gpu.device.createBuffer({ label, size: bytes, usage });
  return gpu.scoped("allocating", () => {
    const buffers = {};
    for (const [name, { floats }] of Object.entries(plan)) {
      buffers[name] = make(name, floats * 4, STORAGE | COPY_SRC | COPY_DST);
    }
    buffers.recipe = make("recipe", BLOCK * 4, UNIFORM | COPY_SRC | COPY_DST);
    buffers.transfer = make("transfer", Math.min(flat_size, TRANSFER) * 4, MAP_READ | COPY_DST);
    buffers.readback = make("readback", (2 * RING + 1) * 4, MAP_READ | COPY_DST);
    return buffers;
  });
}

// The recipe's uniform and the decay bits: bit k stands for floats 64·k … 64·k + 63 of the flat arrays.
function upload_constants({ device }, buffers, { config, tensors }) {
  const recipe = { ...config, one_minus_beta1: 1 - config.beta1, one_minus_beta2: 1 - config.beta2 };
  device.queue.writeBuffer(buffers.recipe, 0, new Float32Array(RECIPE.map((name) => recipe[name])));
  const bits = new Uint32Array(buffers.decay.size / 4);
  for (const { offset, size } of tensors.filter(({ decay }) => decay)) {
    for (let block = offset / BLOCK; block * BLOCK < offset + size; block++) bits[block >> 5] |= 1 << (block & 31);
  }
  device.queue.writeBuffer(buffers.decay, 0, bits);
}

// Dispatches → what a pass needs: pipeline, bind group, workgroups.
function bind(gpu, buffers, sources, pipelines, dispatches) {
  return gpu.scoped("binding", () =>
    dispatches.map((dispatch) => {
      const { label, kernel, groups, views, flops } = dispatch;
      const { bindings } = sources.get(`${kernel}.wgsl`);
      const wanted = Object.keys(bindings).sort().join();
      const given = Object.keys(views).sort().join();
      if (wanted !== given) {
        throw new ArmError("internal", `${label}: ${kernel}.wgsl binds ${wanted}, the step gives ${given}`);
      }
      const pipeline = pipelines.get(pipeline_key(dispatch));
      const entries = Object.entries(views).map(([name, view]) => ({
        binding: bindings[name],
        resource: view === "recipe" ? { buffer: buffers.recipe } : resource_of(buffers, view),
      }));
      const group = gpu.device.createBindGroup({ label, layout: pipeline.getBindGroupLayout(0), entries });
      return { label, op: operation_of(dispatch), pipeline, group, groups, flops };
    }),
  );
}

function resource_of(buffers, { buffer, at, size }) {
  return { buffer: buffers[buffer], offset: at * 4, size: Math.ceil(size / BLOCK) * BLOCK * 4 };
}

const submit_flops = ({ is_fallback }) => FLOPS_PER_SUBMIT[is_fallback === true ? "software" : "hardware"];

// Commands in runs of at most so many FLOPs each, or of one command where that alone is more.
function cut(commands, adapter) {
  const limit = submit_flops(adapter);
  const runs = [[]];
  let flops = 0;
  for (const command of commands) {
    if (flops + command.flops > limit && runs.at(-1).length) {
      runs.push([]);
      flops = 0;
    }
    runs.at(-1).push(command);
    flops += command.flops;
  }
  return runs;
}

function encode(encoder, commands) {
  const pass = encoder.beginComputePass();
  for (const { pipeline, group, groups } of commands) {
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(...groups);
  }
  pass.end();
}

// `floats` from byte `from` of a buffer through a mappable one, and behind them the word `more.at` of another
// buffer, if any; the wait ends when the device dies.
async function read_back(gpu, source, from, mappable, floats, more = null) {
  const { device } = gpu;
  const encoder = device.createCommandEncoder();
  encoder.copyBufferToBuffer(source, from, mappable, 0, floats * 4);
  if (more) encoder.copyBufferToBuffer(more.source, more.at * 4, mappable, floats * 4, 4);
  const bytes = (floats + (more ? 1 : 0)) * 4;
  device.queue.submit([encoder.finish()]);
  await gpu.guard(mappable.mapAsync(GPUMapMode.READ, 0, bytes));
  const copy = new Float32Array(mappable.getMappedRange(0, bytes).slice(0));
  mappable.unmap();
  return copy;
}

// ------------------------------------------------------------------------------ what runs

// Kernel by operation: file, constants that are no sizes, workgroups of every use.
function kernels_of(dispatches) {
  const kernels = {};
  for (const { label, kernel, constants, groups } of dispatches) {
    const operation = label.replace(/^h\.\d+\./, "h.");
    kernels[operation] ??= { file: `${kernel}.wgsl`, constants, groups };
  }
  return kernels;
}

// Option → the variant by which its products were dispatched, with tile and workgroup.
function products_of(dispatches) {
  const found = { mm_fwd: new Set(), mm_da: new Set(), mm_db: new Set() };
  for (const { choice } of dispatches) if (choice) found[choice.option].add(choice.chosen);
  return Object.fromEntries(Object.entries(found).map(([option, chosen]) => [option, [...chosen].join(", ")]));
}

// What the products read and compute in, told by the kernels that run.
function precision_of(dispatches) {
  const any = (suffix) => dispatches.some(({ kernel }) => kernel.startsWith("matmul_") && kernel.endsWith(suffix));
  return any("_f16") ? "compute" : any("_w16") ? "storage" : "off";
}

// The recipe as the uniform holds it, the shape as the pipelines were specialised.
async function read_hyper(gpu, buffers, dispatches, { L, F }) {
  const recipe = await read_back(gpu, buffers.recipe, 0, buffers.readback, RECIPE.length);
  const constant = (kernel, name) => dispatches.find((dispatch) => dispatch.kernel === kernel).constants[name];
  const attention = dispatches.filter(({ kernel }) => kernel === "attention_forward");
  const { B, T, H, D } = attention[0].constants;
  const up = dispatches.find(({ label }) => label === "h.0.mlp.up").constants;
  return {
    n_layer: attention.length,
    n_head: H,
    d_model: H * D,
    d_ff: up.COLS,
    ctx: T,
    batch: B,
    vocab: constant("crossentropy_forward", "V"),
    ...Object.fromEntries(RECIPE.map((name, i) => [name, recipe[i]]).filter(([name]) => !name.startsWith("one_"))),
  };
}
