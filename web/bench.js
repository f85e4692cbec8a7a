// The worker: runs a job's program against one arm, instruction by instruction. The only clock.
//
// A window begins before arm.train and ends when it has returned its losses, that is when the work is
// finished; nothing else (no progress post, no hashing) happens in between.

import { ArmError, describe } from "./errors.js";
import { calls_of } from "./gpu_calls.js";
import { gpu_sentinel } from "./gpu_sentinel.js";
import { probe, timer_step_ms } from "./probe.js";
import { profile_samples } from "./profile.js";
import { sentinel } from "./sentinel.js";
import { fork_samples, kernel_samples, operation_samples, roofline, throughput } from "./workbench.js";

// Of what web/README.md calls an arm. Another number: modules of the one before do not run here.
const ARM_INTERFACE = 1;
const PIECE = 16 << 20; // floats per request, either way: 64 MiB
const HASH_LIMIT = 256 << 20; // bytes; crypto.subtle needs a copy of everything at once

let job = null; // as the driver sent it
let posts = null; // where progress and blobs go
let arm = null;
let tokens = null; // Int32Array (steps, B, T+1)
let at = 0; // index of the batch that comes next
let inputs = null; // Float32Array, for kernels
let steps_done = 0; // of the whole program
let current = null; // the instruction being run
let failed = false;
const ran = {}; // digests of the bytes that arrived

// ------------------------------------------------------------------------------ the program

self.onmessage = async ({ data }) => {
  ({ job, posts } = data);
  if (job.plan_sha256) ran.plan_sha256 = job.plan_sha256;
  try {
    const hardware_concurrency = navigator.hardwareConcurrency;
    tell("facts", { facts: { hardware_concurrency, timer_step_ms: timer_step_ms() } });
    for (const [index, instruction] of job.program.entries()) {
      current = instruction;
      const run = OPS[instruction.op];
      if (!run) throw new ArmError("protocol", `unknown instruction ${instruction.op}`);
      const given = await run(instruction);
      if (failed) return;
      const result = plain({ op: instruction.op, label: instruction.label ?? null, ...given });
      tell("op", { result });
      const loss = result.losses?.at(-1) ?? null;
      await post("progress", JSON.stringify({ op: index, steps_done, loss, result }));
    }
    current = null;
    const end = await summary();
    await arm?.close();
    if (!failed) tell("end", end);
  } catch (error) {
    fail(error);
  }
};

// The one place where every failure ends; the first one is the reason.
async function fail(error) {
  if (failed) return;
  failed = true;
  const reason = { ...describe(error), op: current?.op ?? null };
  const source = job?.arm?.options.source;
  if (source && ["internal", "protocol"].includes(reason.kind)) {
    reason.message += ` (arm of source=${source}: what this page asks for may be newer than that source)`;
  }
  let end = {};
  try {
    end = await within(1000, summary());
    await within(1000, arm?.close());
  } catch {
    // The arm is beyond telling; the reason above stands.
  }
  tell("end", { ...end, error: reason });
}

self.addEventListener("error", (event) => {
  event.preventDefault();
  fail(event.error ?? event.message);
});
self.addEventListener("unhandledrejection", (event) => {
  event.preventDefault();
  fail(event.reason);
});

async function summary() {
  const memory = arm ? await arm.memory() : {};
  return plain({ ran: { ...(arm?.ran ?? {}), ...ran, plan_sha256: job.plan_sha256 ?? null }, memory, adapter: arm?.adapter ?? null });
}

// ------------------------------------------------------------------------------ instructions

const OPS = {
  async open() {
    const { open } = await arm_module(job.arm);
    if (job.tokens) tokens = await load_tokens(job.tokens);
    const began = performance.now();
    arm = await open(job, { bytes: (name) => asset(name, "arrayBuffer"), text: (name) => asset(name, "text") });
    const compile_ms = performance.now() - began;
    const upload_ms = job.states.initial ? await load_state("initial") : null;
    return { compile_ms, upload_ms };
  },

  async load({ state }) {
    return { ms: await load_state(state) };
  },

  async train({ steps }) {
    const { batch, ctx } = job.config;
    const stride = batch * (ctx + 1);
    if (!tokens) throw new ArmError("protocol", "train without tokens");
    if (at + steps > job.tokens.steps) {
      throw new ArmError("protocol", `steps ${at}…${at + steps - 1} asked, ${job.tokens.steps} batches sent`);
    }
    const window = tokens.subarray(at * stride, (at + steps) * stride);
    const began = performance.now();
    const { losses, grad_norms } = await opened().train(window, steps);
    const ms = performance.now() - began;
    if (losses.length !== steps || grad_norms.length !== steps) {
      throw new ArmError("internal", `${losses.length} losses and ${grad_norms.length} norms of ${steps} steps`);
    }
    const first_step = at;
    at += steps;
    steps_done += steps;
    return { first_step, steps, ms, losses: [...losses], grad_norms: [...grad_norms] };
  },

  async read({ what, label }) {
    const total = job.flat_size * 4;
    let ms = 0;
    for (let from = 0; from < job.flat_size; from += PIECE) {
      const began = performance.now();
      const data = await opened().read(what, from, Math.min(PIECE, job.flat_size - from));
      ms += performance.now() - began;
      await post_floats(label, from, total, data);
    }
    return { ms };
  },

  // SHA-256 over the SHA-256s of a section's pieces: what is too large to post can still be compared.
  async digest({ what }) {
    const digests = [];
    for (let from = 0; from < job.flat_size; from += PIECE) {
      const piece = await opened().read(what, from, Math.min(PIECE, job.flat_size - from));
      digests.push(await crypto.subtle.digest("SHA-256", piece));
    }
    return { detail: { pieces_sha256: await sha256(await new Blob(digests).arrayBuffer()) } };
  },

  // Reads a state out, overwrites it, loads it back and reads it again. The overwriting shows that a
  // write arrives at all: without it an arm that ignores writes would pass.
  async reimport() {
    const different = {};
    for (const what of ["param", "m", "v"]) {
      let count = 0;
      for (let from = 0; from < job.flat_size; from += PIECE) {
        const size = Math.min(PIECE, job.flat_size - from);
        const before = await opened().read(what, from, size);
        const mark = new Float32Array(size).fill(0.5);
        await opened().write(what, from, mark);
        count += differing(mark, await opened().read(what, from, size));
        await opened().write(what, from, before);
        count += differing(before, await opened().read(what, from, size));
      }
      different[what] = count;
    }
    const equal = Object.values(different).every((count) => count === 0);
    return { detail: { equal, different_floats: different } };
  },

  async readback({ count }) {
    const values_ms = [];
    for (let i = 0; i < count; i++) {
      const began = performance.now();
      await opened().readback();
      values_ms.push(performance.now() - began);
    }
    return { values_ms };
  },

  async probe() {
    return { detail: await probe() };
  },

  // How long telling the driver takes.
  empty: () => ({}),

  async sentinel({ count }) {
    return { values_ms: await sentinel(count) };
  },

  async gpu_sentinel({ count }) {
    return { values_ms: await gpu_sentinel(count) };
  },

  async roofline({ count }) {
    return { detail: { roofline: await roofline(opened(), count) } };
  },

  // One product on the job's inputs: posted where it has a label, timed where it has a count.
  async kernel({ kernel, label, count, alone }) {
    const bench = workbench();
    inputs ??= new Float32Array(await asset("inputs", "arrayBuffer"));
    const { M, N, K } = kernel;
    if (inputs.length < M * K + K * N) throw new ArmError("protocol", `inputs: ${inputs.length} floats are too few`);
    await bench.load(kernel, inputs.subarray(0, M * K), inputs.subarray(M * K, M * K + K * N));
    const geometry = await bench.dispatched(() => bench.product(kernel, 1));
    const output = await bench.output(kernel);
    const output_sha256 = await sha256(output.buffer);
    for (let from = 0; label && from < output.length; from += PIECE) {
      await post_floats(label, from, output.length * 4, output.slice(from, from + PIECE));
    }
    if (!count) return { detail: { output_sha256, ...geometry } };
    const samples = await kernel_samples(bench, kernel, count, alone);
    if ((await sha256((await bench.output(kernel)).buffer)) !== output_sha256) {
      throw new ArmError("internal", "a kernel's output changed while it was timed");
    }
    return { detail: { output_sha256, ...geometry, ...samples } };
  },

  // The same for one of a step's other operations, on inputs of its own.
  async operation({ operation, label, count }) {
    const bench = workbench();
    await bench.place(operation, new Uint8Array(await asset(operation.inputs, "arrayBuffer")));
    const geometry = await bench.dispatched(() => bench.operate(1));
    const results = await bench.results();
    const output_sha256 = await sha256(results);
    const floats = new Float32Array(results.buffer); // 4 bytes each, whatever they mean
    for (let from = 0; label && from < floats.length; from += PIECE) {
      await post_floats(label, from, results.length, floats.subarray(from, from + PIECE));
    }
    if (!count) return { detail: { output_sha256, ...geometry } };
    const samples = await operation_samples(bench, operation, count);
    await bench.restore();
    await bench.operate(1);
    if ((await sha256(await bench.results())) !== output_sha256) {
      throw new ArmError("internal", `${operation.name}: its results changed while it was timed`);
    }
    return { detail: { output_sha256, ...geometry, ...samples } };
  },

  // Trains 1 + `count` rounds of four windows of `steps` steps; null with the reason where the arm cannot say.
  async profile({ steps, count }) {
    const { profile: profiler, profile_reason } = opened();
    if (!profiler) return { detail: { profile: null, reason: profile_reason ?? "not measured on this arm yet" } };
    const { windows, profile, reason } = await profile_samples(profiler, () => OPS.train({ steps }), steps, count);
    return {
      first_step: windows[0].first_step,
      steps: windows.length * steps,
      losses: windows.flatMap(({ losses }) => losses),
      grad_norms: windows.flatMap(({ grad_norms }) => grad_norms),
      detail: { profile, reason },
    };
  },

  // The step's dispatches as the arm would run them here, without opening it.
  async geometry() {
    const { geometry } = await arm_module(job.arm);
    if (!geometry) throw new ArmError("unsupported", `the arm ${job.arm.name} dispatches nothing to a GPU`);
    return { detail: await geometry(job, { text: (name) => asset(name, "text") }) };
  },

  // Trains `steps` steps and counts what they ask of WebGPU.
  async count({ steps }) {
    let window;
    const calls = await calls_of(async () => { window = await OPS.train({ steps }); });
    return { ...window, detail: { calls } };
  },

  async fork({ count }) {
    return { detail: fork_samples(threaded(), count) };
  },

  async threads({ count }) {
    return { detail: throughput(threaded(), count) };
  },
};

// The arm's module, from the page's own folder or from another source's.
async function arm_module({ module, options }) {
  const { source } = options;
  if (!/^arm_[a-z0-9_]+\.js$/.test(module)) throw new ArmError("protocol", `no arm module: ${module}`);
  if (source !== undefined && !/^[a-z0-9-]+$/.test(source)) throw new ArmError("protocol", `no source: ${source}`);
  const exported = await import(source ? `./source/${source}/${module}` : `./${module}`);
  const version = exported.ARM_INTERFACE ?? 1;
  if (version !== ARM_INTERFACE || !exported.open) {
    throw new ArmError("protocol", `${module} has version ${version} of the arms' interface, this page ${ARM_INTERFACE}`);
  }
  return exported;
}

function opened() {
  if (!arm) throw new ArmError("protocol", "no arm is open");
  return arm;
}

function workbench() {
  const bench = opened().workbench;
  if (!bench) throw new ArmError("unsupported", `the arm ${job.arm.name} has no kernels to run apart`);
  return bench;
}

function threaded() {
  const bench = workbench();
  if (bench.is_device) throw new ArmError("unsupported", `the arm ${job.arm.name} has no threads, its work runs on a device`);
  return bench;
}

function differing(a, b) {
  const [x, y] = [a, b].map((f) => new Uint32Array(f.buffer, f.byteOffset, f.length));
  if (x.length !== y.length) return Math.max(x.length, y.length);
  return x.reduce((count, bits, i) => count + (bits === y[i] ? 0 : 1), 0);
}

// ------------------------------------------------------------------------------ what arrives

async function get(url, init) {
  const response = await fetch(url, init);
  if (!response.ok) throw new ArmError("protocol", `${url}: HTTP ${response.status}`);
  return response;
}

async function asset(name, as) {
  const url = job.assets[name];
  if (url === undefined) throw new ArmError("protocol", `the job has no asset ${name}`);
  return (await get(url))[as]();
}

async function load_tokens({ url, steps }) {
  const bytes = await (await get(url)).arrayBuffer();
  const expected = steps * job.config.batch * (job.config.ctx + 1) * 4;
  if (bytes.byteLength !== expected) {
    throw new ArmError("protocol", `tokens: ${bytes.byteLength} bytes, expected ${expected}`);
  }
  if (bytes.byteLength <= HASH_LIMIT) ran.tokens_sha256 = await sha256(bytes);
  return new Int32Array(bytes);
}

// Loads a state's sections into the arm, piece by piece; returns the milliseconds from the first request
// to the last write. Pieces are byte ranges: reading response.body as a stream instead let Chromium 156
// report one in four finished requests as aborted.
async function load_state(name) {
  const state = job.states[name];
  if (!state) throw new ArmError("protocol", `the job has no state ${name}`);
  const total = state.sections.length * job.flat_size * 4;
  const kept = total <= HASH_LIMIT ? [] : null;
  const digests = [];
  let hashing_ms = 0;
  const began = performance.now();
  await opened().reset(state.t);
  for (const [index, section] of state.sections.entries()) {
    for (let from = 0; from < job.flat_size; from += PIECE) {
      const size = Math.min(PIECE, job.flat_size - from);
      const bytes = await range(state.url, (index * job.flat_size + from) * 4, size * 4, total);
      if (kept) {
        kept.push(bytes);
      } else {
        const before = performance.now();
        digests.push(await crypto.subtle.digest("SHA-256", bytes));
        hashing_ms += performance.now() - before;
      }
      await arm.write(section, from, new Float32Array(bytes));
    }
  }
  const ms = performance.now() - began - hashing_ms;
  at = state.at;
  const key = name === "initial" ? "" : `.${name}`;
  if (kept) ran[`state_sha256${key}`] = await sha256(await new Blob(kept).arrayBuffer());
  else ran[`state_pieces_sha256${key}`] = await sha256(await new Blob(digests).arrayBuffer());
  return ms;
}

// `size` bytes at `from` of something that must be `total` bytes long.
async function range(url, from, size, total) {
  const response = await get(url, { headers: { Range: `bytes=${from}-${from + size - 1}` } });
  const bytes = await response.arrayBuffer();
  const length = Number(response.headers.get("Content-Range")?.split("/")[1]);
  if (length !== total || bytes.byteLength !== size) {
    throw new ArmError("protocol", `${url}: ${bytes.byteLength} of ${length} bytes, expected ${size} of ${total}`);
  }
  return bytes;
}

async function sha256(bytes) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// ------------------------------------------------------------------------------ what leaves

async function post(path, body) {
  const response = await fetch(`${posts}/${path}`, { method: "POST", body });
  if (!response.ok) throw new ArmError("protocol", `${path}: HTTP ${response.status}`);
}

async function post_floats(label, from, total, data) {
  // A Blob, since the browser's developer protocol, on which Playwright listens, copies any other body
  // into its messages as base64: 4 s for 64 MiB instead of 0.25 s.
  await post(`blob?label=${encodeURIComponent(label)}&offset=${from * 4}&total=${total}`, new Blob([data]));
}

function tell(kind, fields) {
  self.postMessage({ kind, ...fields });
}

// A copy that JSON can carry: NaN and the infinities by name, BigInt as a number or a string, arrays and
// maps of any kind as plain ones.
function plain(value) {
  if (typeof value === "number") return Number.isFinite(value) ? value : String(value);
  if (typeof value === "bigint") return value <= Number.MAX_SAFE_INTEGER ? Number(value) : String(value);
  if (ArrayBuffer.isView(value) || value instanceof Set) return Array.from(value, plain);
  if (Array.isArray(value)) return value.map(plain);
  if (value instanceof Map) value = Object.fromEntries(value);
  if (value !== null && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, field]) => [key, plain(field)]));
  }
  return value === undefined || typeof value === "function" ? null : value;
}

function within(ms, promise) {
  return Promise.race([promise, new Promise((_, refuse) => setTimeout(() => refuse(new Error("late")), ms))]);
}
