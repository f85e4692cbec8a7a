// Facts about the page and the machine, from inside a worker, where the arms run.

import { adapter_facts } from "./adapter.js";

// ------------------------------------------------------------------------------ the clock

// The smallest step that performance.now() is seen to take, in ms; null when it stands still for 50 ms.
export function timer_step_ms() {
  let step = Infinity;
  const until = performance.now() + 50;
  for (let seen = 0, last = performance.now(); seen < 100 && last < until; ) {
    const now = performance.now();
    if (now === last) continue;
    step = Math.min(step, now - last);
    last = now;
    seen += 1;
  }
  return Number.isFinite(step) ? Number(step.toPrecision(4)) : null;
}

// ------------------------------------------------------------------------------ WebAssembly

// Is a module with one function () → i32 of this body valid? `memory` is the flag byte of a memory of one
// page (at most one): 1 plain, 3 shared, 5 with 64-bit addresses.
function accepts(body, memory = null) {
  const section = (id, bytes) => [id, bytes.length, ...bytes];
  const code = [0, ...body, 0x0b];
  return WebAssembly.validate(new Uint8Array([
    0, 0x61, 0x73, 0x6d, 1, 0, 0, 0,
    ...section(1, [1, 0x60, 0, 1, 0x7f]),
    ...section(3, [1, 0]),
    ...(memory === null ? [] : section(5, [1, memory, 1, 1])),
    ...section(10, [1, code.length, ...code]),
  ]));
}

const ZERO = [0x41, 0]; // i32.const 0
const ZEROS = [...ZERO, 0xfd, 0x11]; // i32x4.splat
const LANE = [0xfd, 0x1b, 0]; // i32x4.extract_lane 0

function wasm_features() {
  return {
    simd128: accepts([...ZEROS, ...LANE]),
    relaxed_simd: accepts([...ZEROS, ...ZEROS, ...ZEROS, 0xfd, 0x85, 0x02, ...LANE]), // f32x4.relaxed_madd
    bulk_memory: accepts([...ZERO, ...ZERO, ...ZERO, 0xfc, 0x0b, 0, ...ZERO], 1), // memory.fill
    threads: accepts([...ZERO, 0xfe, 0x10, 2, 0], 3) && shared_memory(), // i32.atomic.load
    memory64: accepts([0x42, 0, 0x28, 2, 0], 5) && memory64(), // i64.const 0, i32.load
    memory64_shared: memory64(true),
  };
}

function shared_memory() {
  try {
    return new WebAssembly.Memory({ initial: 1, maximum: 1, shared: true }).buffer instanceof SharedArrayBuffer;
  } catch {
    return false;
  }
}

// BigInt limits are the point: where `address` is unknown they throw, and where it is known Numbers do.
function memory64(shared = false) {
  try {
    const memory = new WebAssembly.Memory({ address: "i64", initial: 1n, maximum: 1n, shared });
    return memory.buffer.byteLength === 65536 && memory.grow(0n) === 1n;
  } catch {
    return false;
  }
}

// ------------------------------------------------------------------------------ graphics

// What WebGPU offers here; `reason` says why where there is no adapter.
async function webgpu() {
  if (!navigator.gpu) return { available: false, reason: "this browser has no navigator.gpu in a worker" };
  let adapter;
  try {
    adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  } catch (error) {
    return { available: false, reason: `requestAdapter failed: ${error.message}` };
  }
  if (!adapter) return { available: false, reason: "requestAdapter found no adapter" };
  return adapter_facts(adapter);
}

// null where a worker has no WebGL, or none that names its renderer. The context ends with the worker:
// losing it on purpose is a warning in Firefox's console, like one that was lost.
function webgl_renderer() {
  const gl = globalThis.OffscreenCanvas ? new OffscreenCanvas(1, 1).getContext("webgl") : null;
  const names = gl?.getExtension("WEBGL_debug_renderer_info");
  return names ? gl.getParameter(names.UNMASKED_RENDERER_WEBGL) : null;
}

// ------------------------------------------------------------------------------ the machine

// What Chromium's browsers say of their machine; null elsewhere.
async function platform() {
  const hints = ["architecture", "model", "platformVersion"];
  const said = await navigator.userAgentData?.getHighEntropyValues(hints).catch(() => null);
  if (!said) return null;
  return { name: said.platform, version: said.platformVersion, architecture: said.architecture, model: said.model };
}

export async function probe() {
  return {
    secure_context: self.isSecureContext,
    cross_origin_isolated: self.crossOriginIsolated,
    hardware_concurrency: navigator.hardwareConcurrency,
    device_memory_gib: navigator.deviceMemory ?? null,
    platform: await platform(),
    timer_step_ms: timer_step_ms(),
    wasm: wasm_features(),
    webgpu: await webgpu(),
    webgl_renderer: webgl_renderer(),
  };
}
