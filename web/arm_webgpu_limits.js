// What a step, or kernels run apart from it, need of a WebGPU adapter: computed before anything is allocated.
//
// A need is {value, why}, by the adapter limit's name; device.js refuses what is beyond, with both numbers.

import { ArmError } from "./errors.js";

const MOST_FLOATS = 2 ** 30; // of one array: kernels index floats, a binding counts bytes, both in 32 bits
const FLOATS = { f32: 1, u32: 1, i32: 1, vec2f: 2, vec4f: 4 };

// `plan`: buffer → {floats, binding}; `dispatches`: {label, kernel, constants, groups}; `sources` as loaded.
export function needs_of(plan, dispatches, sources) {
  const needs = {};
  const need = (name, value, why) => {
    if (value > (needs[name]?.value ?? 0)) needs[name] = { value, why };
  };
  for (const [name, { floats, binding }] of Object.entries(plan)) {
    if (binding > MOST_FLOATS) {
      const reason = `the array ${name} has ${binding} floats; kernels index at most ${MOST_FLOATS} (2^30)`;
      throw new ArmError("unsupported", `${reason}. Choose a smaller preset`);
    }
    need("maxBufferSize", floats * 4, `the buffer ${name} of ${floats * 4} bytes`);
    need("maxStorageBufferBindingSize", binding * 4, `the binding ${name} of ${binding * 4} bytes`);
  }
  for (const { label, kernel, constants, groups } of dispatches) {
    const { text, bindings } = sources.get(`${kernel}.wgsl`) ?? {};
    if (text === undefined) throw new ArmError("protocol", `the job has no kernel ${kernel}.wgsl`);
    const of = `${label} by ${kernel}.wgsl`;
    const arrays = [...text.matchAll(/@binding\(\d+\)\s*var<storage/g)].length;
    need("maxStorageBuffersPerShaderStage", arrays, `${of} with ${arrays} arrays`);
    need("maxBindingsPerBindGroup", Object.keys(bindings).length, of);
    need("maxComputeWorkgroupStorageSize", workgroup_bytes(text), `the workgroup memory of ${of}`);
    const [x, y] = workgroup_size(text, constants);
    need("maxComputeWorkgroupSizeX", x, `the workgroup of ${x}x${y} of ${of}`);
    need("maxComputeWorkgroupSizeY", y, `the workgroup of ${x}x${y} of ${of}`);
    need("maxComputeInvocationsPerWorkgroup", x * y, `the workgroup of ${x}x${y} of ${of}`);
    need("maxComputeWorkgroupsPerDimension", Math.max(...groups), `the dispatch of ${groups.join("x")} workgroups of ${of}`);
  }
  return needs;
}

// Bytes of a kernel's `var<workgroup>` arrays.
export function workgroup_bytes(text) {
  const arrays = [...text.matchAll(/var<workgroup>\s*\w+\s*:\s*array<(\w+),\s*(\d+)/g)];
  return arrays.reduce((sum, [, type, length]) => sum + 4 * FLOATS[type] * Number(length), 0);
}

// (x, y) of the workgroup: numbers, or overrides with the given constants or their defaults.
export function workgroup_size(text, constants) {
  const found = /@workgroup_size\(([^)]*)\)/.exec(text);
  if (!found) return [1, 1]; // compiling it will say what is wrong
  const value = (word) => {
    if (/^\d/.test(word)) return parseInt(word, 10);
    const preset = new RegExp(`override ${word}\\s*:\\s*u32\\s*=\\s*(\\d+)`).exec(text);
    return constants[word] ?? Number(preset?.[1]);
  };
  const [x, y = 1] = found[1].split(",").map((word) => value(word.trim()));
  return [x, y];
}
