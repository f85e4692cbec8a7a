// The worker: runs a job's program against one arm, instruction by instruction. The only clock.
//
// A window begins before arm.train and ends when it has returned its losses, that is when the work is
// finished; nothing else (no progress post, no hashing) happens in between.

import { ArmError, describe } from "./errors.js";
import { probe, timer_step_ms } from "./probe.js";
import { sentinel } from "./sentinel.js";

const CHUNK = 1 << 20; // floats written to an arm at once: 4 MiB
const PIECE = 16 << 20; // floats per blob request: 64 MiB
const HASH_LIMIT = 256 << 20; // bytes; crypto.subtle needs a copy of everything at once

let job = null; // as the driver sent it
let posts = null; // where progress and blobs go
let arm = null;
let tokens = null; // Int32Array (steps, B, T+1)
let at = 0; // index of the batch that comes next
let steps_done = 0; // of the whole program
let current = null; // the instruction being run
let failed = false;
const ran = {}; // digests of the bytes that arrived

// ------------------------------------------------------------------------------ the program

self.onmessage = async ({ data }) => {
  ({ job, posts } = data);
  try {
    const hardware_concurrency = navigator.hardwareConcurrency;
    tell("facts", { facts: { hardware_concurrency, timer_step_ms: timer_step_ms() } });
    for (const [index, instruction] of job.program.entries()) {
      current = instruction;
      const run = OPS[instruction.op];
      if (!run) throw new ArmError("protocol", `unknown instruction ${instruction.op}`);
      const result = await run(instruction);
      if (failed) return;
      tell("op", { result: plain({ op: instruction.op, label: instruction.label ?? null, ...result }) });
      await progress(index, result.losses?.at(-1) ?? null);
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
  return plain({ ran: { ...(arm?.ran ?? {}), ...ran }, memory, adapter: arm?.adapter ?? null });
}

// ------------------------------------------------------------------------------ instructions

const OPS = {
  async open() {
    const module = job.arm.module;
    if (!/^arm_[a-z0-9_]+\.js$/.test(module)) throw new ArmError("protocol", `no arm module: ${module}`);
    const { open } = await import(`./${module}`);
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
      await post(`blob?label=${encodeURIComponent(label)}&offset=${from * 4}&total=${total}`, data);
    }
    return { ms };
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

  async sentinel({ count }) {
    return { values_ms: await sentinel(count) };
  },
};

function opened() {
  if (!arm) throw new ArmError("protocol", "no arm is open");
  return arm;
}

function differing(a, b) {
  const [x, y] = [a, b].map((f) => new Uint32Array(f.buffer, f.byteOffset, f.length));
  if (x.length !== y.length) return Math.max(x.length, y.length);
  return x.reduce((count, bits, i) => count + (bits === y[i] ? 0 : 1), 0);
}

// ------------------------------------------------------------------------------ what arrives

async function get(url) {
  const response = await fetch(url);
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

// Streams a state's sections into the arm; returns the milliseconds from the request to the last write.
async function load_state(name) {
  const state = job.states[name];
  if (!state) throw new ArmError("protocol", `the job has no state ${name}`);
  const total = state.sections.length * job.flat_size;
  const kept = total * 4 <= HASH_LIMIT ? [] : null;
  const began = performance.now();
  await opened().reset(state.t);
  let done = 0; // floats
  for await (const floats of floats_of(await get(state.url), kept)) {
    for (let from = 0; from < floats.length; ) {
      const section = state.sections[Math.floor(done / job.flat_size)];
      const offset = done % job.flat_size;
      const size = Math.min(floats.length - from, job.flat_size - offset);
      if (section === undefined) throw new ArmError("protocol", `state ${name} is longer than ${total * 4} bytes`);
      await arm.write(section, offset, floats.subarray(from, from + size));
      from += size;
      done += size;
    }
  }
  if (done !== total) throw new ArmError("protocol", `state ${name}: ${done * 4} bytes, expected ${total * 4}`);
  const ms = performance.now() - began;
  at = state.at;
  if (kept) ran[name === "initial" ? "state_sha256" : `state_sha256.${name}`] = await sha256(await new Blob(kept).arrayBuffer());
  return ms;
}

// A response's body as Float32Arrays of at most CHUNK floats; the array is reused, so the reader copies
// what it keeps. `kept`, where given, collects the raw pieces.
async function* floats_of(response, kept) {
  const floats = new Float32Array(CHUNK);
  const bytes = new Uint8Array(floats.buffer);
  const reader = response.body.getReader();
  let filled = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    kept?.push(value);
    for (let from = 0; from < value.length; ) {
      const size = Math.min(value.length - from, bytes.length - filled);
      bytes.set(value.subarray(from, from + size), filled);
      from += size;
      filled += size;
      if (filled === bytes.length) {
        yield floats;
        filled = 0;
      }
    }
  }
  if (filled % 4) throw new ArmError("protocol", `a state ends inside a float: ${filled % 4} bytes left`);
  if (filled) yield floats.subarray(0, filled / 4);
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

function progress(op, loss) {
  return post("progress", JSON.stringify(plain({ op, steps_done, loss })));
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
