// The WebGPU arm's kernels run apart from its step: single products and operations, the roofline.
//
// What is in place has buffers of its own, by the names that the WGSL binds; placing something else frees
// them. An operation of a step may take several dispatches.

import { ADDING, fold, attention_shape, halves_suffix, matmul_of, packing_of, pad, rows_shape, tune, LAYOUT_OF } from "./arm_webgpu_step.js";
import { needs_of } from "./arm_webgpu_limits.js";
import { ArmError } from "./errors.js";
import { given_of } from "./operands.js";

const TRIAD_BYTES = 192 << 20; // all three arrays
const MADD_STEPS = 1024;
const MADD_INVOCATIONS = [1 << 12, 1 << 20]; // of one call, at least and at most
const MADD_MS = 1; // that a call lasts if it can
const CALLS_PER_SUBMIT = 1024;
const NONE = 64; // floats of what stands for an operand that a kernel's flags leave out

export const is_apart = ({ op }) => ["kernel", "operation", "roofline"].includes(op);

// ------------------------------------------------------------------------------ what runs

// A product as operands and dispatches. `kernel` as in driver/records/page.py; with `f16` its right side is
// packed into halves where the step's would be.
function product_of({ product, kernel, tile, workgroup, split, M, N, K }, { subgroup_max_size }, f16) {
  const layout = LAYOUT_OF[product];
  const [left, right, out] = { mm_fwd: ["a", "b", "out"], mm_da: ["dc", "b", "da"], mm_db: ["a", "dc", "db"] }[product];
  const { adding, ...made } = matmul_of(layout, { variant: kernel, tile, workgroup, subgroup_max_size, split }, M, K, N);
  const suffix = halves_suffix(layout, f16);
  const operand = (name, role, floats) => ({ name, role, size_bytes: floats * 4 });
  return {
    label: `${product} ${M}x${N}x${K}`,
    operands: [
      operand(left, "in", M * K),
      { ...operand(right, "in", K * N), halves: suffix !== "" },
      operand(out, "out", M * N),
      ...(adding ? [operand("parts", "scratch", adding.floats.parts)] : []),
    ],
    dispatches: [
      { label: product, ...made, kernel: made.kernel + suffix, flops: 2 * M * N * K, named: adding ? { db: "parts" } : {} },
      ...(adding ? [{ label: product + ADDING, ...adding, flops: 0 }] : []),
    ],
  };
}

// Dispatches of a step's other operations by name, from their sizes in the order of their entries
// (driver/kernels/webgpu.py), whose operands have the names that the WGSL binds.
const OPERATIONS = {
  encoder_forward: ([B, T, C]) => [["encoder_forward", { N: B * T, T, C }, fold((B * T * C) / 256)]],
  encoder_backward: ([B, T, C, V]) => [["encoder_backward", { B, T, C, V }, fold(((V + T) * C) / 256)]],
  layernorm_forward: ([N, C], tuning) => [rowwise("layernorm_forward", tuning, N, { C })],
  layernorm_backward: ([N, C], tuning) => [
    ["layernorm_backward_params", { ROWS: N, C }, [Math.ceil(C / 16)]],
    rowwise("layernorm_backward", tuning, N, { C, ADD: 1 }),
  ],
  attention_forward: (sizes, tuning) => [headwise("attention_forward", tuning, sizes)],
  attention_backward: (sizes, tuning) => [
    headwise("attention_backward_dq", tuning, sizes),
    headwise("attention_backward_dkv", tuning, sizes),
  ],
  gelu_forward: ([N, F]) => [elementwise("gelu_forward", N * F)],
  gelu_backward: ([N, F]) => [elementwise("gelu_backward", N * F)],
  crossentropy: ([B, T, V], tuning) => [rowwise("crossentropy_forward", tuning, B * T, { V })],
  adamw: ([floats]) => [["adamw", { VECTORS: floats / 4 }, fold(floats / 4 / 64)]],
};

function rowwise(kernel, tuning, N, sizes) {
  const { constants, groups } = rows_shape(tuning, N);
  return [kernel, { ...constants, ...sizes }, groups];
}

function headwise(kernel, tuning, [B, T, C, H]) {
  const { constants, groups } = attention_shape(tuning, { B, T, H, D: C / H });
  return [kernel, constants, groups];
}

function elementwise(kernel, SIZE) {
  const groups = Math.min(4096, Math.ceil(SIZE / 256));
  return [kernel, { SIZE, STRIDE: groups * 64 }, [groups]];
}

function operation_of({ name, sizes, operands }, { is_fallback }) {
  const dispatches = OPERATIONS[name];
  if (!dispatches) {
    throw new ArmError("unsupported", `operation ${name}: apart, this arm has ${Object.keys(OPERATIONS).join(", ")}`);
  }
  const D = name.startsWith("attention") ? sizes[2] / sizes[3] : 1;
  const tuning = tune({}, { D }, 64, is_fallback === true);
  return {
    label: name,
    operands,
    dispatches: dispatches(sizes, tuning).map(([kernel, constants, groups]) => ({ label: name, kernel, constants, groups, flops: 0 })),
  };
}

const asked_of = ({ kernel, operation }, adapter, f16) =>
  kernel ? product_of(kernel, adapter, f16) : operation_of(operation, adapter);

const plan_of = ({ label, operands }) =>
  Object.fromEntries(
    operands.map(({ name, size_bytes }) => [`${name} of ${label}`, { floats: pad(size_bytes / 4), binding: pad(size_bytes / 4) }]),
  );

// What a program's kernels and operations need of the adapter.
export function needs_apart(program, sources, adapter, f16) {
  const asked = program.filter(({ kernel, operation }) => kernel || operation).map((op) => asked_of(op, adapter, f16));
  const plan = Object.assign({}, ...asked.map(plan_of));
  return needs_of(plan, asked.flatMap(({ dispatches }) => dispatches), sources);
}

// ------------------------------------------------------------------------------ running it

export function workbench(gpu, sources, flops_per_submit, f16) {
  const { device, adapter } = gpu;
  const { STORAGE, UNIFORM, COPY_SRC, COPY_DST, MAP_READ } = GPUBufferUsage;
  const modules = new Map();
  const pipelines = new Map();
  let held = null; // what is in place
  let triad = null; // {bytes, commands, buffers}
  const madd = [null, null]; // the same, by number of chains
  const ended = device.createBuffer({ label: "ended", size: 16, usage: MAP_READ | COPY_DST });
  const empty = device.createBuffer({ label: "empty", size: 16, usage: STORAGE | COPY_SRC });

  const buffer_of = (label, floats) =>
    device.createBuffer({ label, size: pad(floats) * 4, usage: STORAGE | UNIFORM | COPY_SRC | COPY_DST });

  async function pipeline_of({ kernel, constants }) {
    const file = `${kernel}.wgsl`;
    const key = `${kernel} ${JSON.stringify(constants)}`;
    if (!pipelines.has(key)) {
      if (!modules.has(file)) modules.set(file, await gpu.module(file, sources.get(file).text));
      pipelines.set(key, await gpu.pipeline(file, modules.get(file), constants));
    }
    return pipelines.get(key);
  }

  // Dispatches → what a pass needs. A binding gets the buffer of its name, or of another where `named` says so;
  // those that `buffers` lacks are left out by the kernel's flags.
  async function commands_of(dispatches, buffers) {
    const commands = [];
    for (const dispatch of dispatches) {
      const pipeline = await pipeline_of(dispatch);
      const entries = Object.entries(sources.get(`${dispatch.kernel}.wgsl`).bindings).map(([bound, binding]) => {
        const name = dispatch.named?.[bound] ?? bound;
        buffers[name] ??= buffer_of(name, NONE);
        return { binding, resource: { buffer: buffers[name] } };
      });
      const group = device.createBindGroup({ label: dispatch.label, layout: pipeline.getBindGroupLayout(0), entries });
      commands.push({ pipeline, group, groups: dispatch.groups, flops: dispatch.flops });
    }
    return commands;
  }

  const free = (placed) => placed && Object.values(placed.buffers).forEach((buffer) => buffer.destroy());

  // Puts operands in place: those that are read get their bytes, the others are NaN until written.
  function put({ label, operands, dispatches }, bytes_by_name) {
    free(held);
    held = null;
    return gpu.scoped(label, async () => {
      const buffers = {};
      for (const { name, role, size_bytes, halves } of operands) {
        buffers[name] = buffer_of(name, size_bytes / 4);
        const bytes = role === "out" ? new Uint8Array(size_bytes).fill(255) : bytes_by_name[name];
        if (role !== "scratch") device.queue.writeBuffer(buffers[name], 0, bytes);
        if (halves) buffers[name] = await packed(name, buffers[name]);
      }
      held = { operands, buffers, given: bytes_by_name, dispatches, commands: await commands_of(dispatches, buffers) };
    });
  }

  // A buffer of floats → one of as many halves, as the step packs them.
  async function packed(name, floats) {
    const count = floats.size / 4;
    const param16 = buffer_of(name, count / 2);
    const clip = buffer_of("clip", NONE);
    const dispatches = packing_of(count, "storage");
    await timed(await commands_of(dispatches, { clip, param: floats, param16 }), 1);
    floats.destroy();
    clip.destroy();
    return param16;
  }

  // Milliseconds of `times` calls of the commands, until their results could be mapped.
  async function timed(commands, times) {
    const flops = commands.reduce((sum, command) => sum + command.flops, 0);
    const at_once = Math.max(1, Math.min(CALLS_PER_SUBMIT, Math.floor(flops_per_submit / Math.max(flops, 1))));
    const began = performance.now();
    for (let left = times; left > 0; left -= at_once) {
      const encoder = device.createCommandEncoder();
      const pass = encoder.beginComputePass();
      for (let i = Math.min(left, at_once); i > 0; i--) {
        for (const { pipeline, group, groups } of commands) {
          pass.setPipeline(pipeline);
          pass.setBindGroup(0, group);
          pass.dispatchWorkgroups(...groups);
        }
      }
      pass.end();
      device.queue.submit([encoder.finish()]);
    }
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(empty, 0, ended, 0, 16);
    device.queue.submit([encoder.finish()]);
    await gpu.guard(ended.mapAsync(GPUMapMode.READ));
    ended.unmap();
    return performance.now() - began;
  }

  // The first `bytes` of a buffer.
  async function bytes_of(buffer, bytes) {
    const copy = device.createBuffer({ label: "results", size: bytes, usage: MAP_READ | COPY_DST });
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(buffer, 0, copy, 0, bytes);
    device.queue.submit([encoder.finish()]);
    await gpu.guard(copy.mapAsync(GPUMapMode.READ));
    const found = new Uint8Array(copy.getMappedRange().slice(0));
    copy.destroy();
    return found;
  }

  // Chains end where they have to, or nothing was computed and no time says anything.
  async function check_sums(sums, many) {
    const [sum] = new Float32Array((await bytes_of(sums, 16)).buffer);
    const expected = many ? 8 : 21.5; // all eight chains at 1; two of them there, six where they began
    if (Math.abs(sum - expected) > 1e-3) {
      throw new ArmError("internal", `the adapter's multiply-adds end at ${sum}, expected ${expected}`);
    }
  }

  const bench = {
    is_device: true,
    flavour: "fma of vec4f in WGSL",
    threads: 1, // a device has one queue
    chains: (many) => (many ? 32 : 8),

    // One product's operands: A and B.
    load(kernel, a, b) {
      const asked = product_of(kernel, adapter, f16);
      const [left, right] = asked.operands;
      return put(asked, { [left.name]: a, [right.name]: b });
    },

    // One operation's operands: `inputs` holds the bytes of those that are read, one after another.
    place: (operation, inputs) => put(operation_of(operation, adapter), given_of(operation, inputs)),

    // What a run writes over is as it was at first.
    restore() {
      for (const { name, role } of held.operands) {
        if (role === "inout") device.queue.writeBuffer(held.buffers[name], 0, held.given[name]);
      }
    },

    run: (times) => gpu.scoped("running apart", () => timed(held?.commands ?? [], times)),
    product: (_, times) => bench.run(times),
    operate: (times) => bench.run(times),

    // Dispatches and workgroups of one call.
    async dispatched(run) {
      await run();
      const workgroups = ({ groups }) => groups.reduce((all, n) => all * n, 1);
      return { forks: held.dispatches.length, chunks: held.dispatches.reduce((sum, one) => sum + workgroups(one), 0) };
    },

    // The bytes of all that it writes, one operand after another.
    async results() {
      const parts = [];
      for (const { name, role, size_bytes } of held.operands) {
        if (["out", "inout"].includes(role)) parts.push(await bytes_of(held.buffers[name], size_bytes));
      }
      return new Uint8Array(await new Blob(parts).arrayBuffer());
    },

    output: async () => new Float32Array((await bench.results()).buffer),

    operand_bytes: () => held.operands.reduce((sum, { size_bytes }) => sum + size_bytes, 0),
    triad_bytes: () => TRIAD_BYTES,

    // Three arrays for a triad, `bytes` altogether; → what one pass moves, counted as STREAM does.
    async prepare_triad(bytes) {
      const floats = pad(Math.ceil(bytes / 12));
      if (triad?.floats !== floats) {
        free(triad);
        const buffers = {};
        await gpu.scoped("triad", async () => {
          for (const name of ["a", "b", "c"]) buffers[name] = buffer_of(name, floats);
          const groups = fold(floats / 4 / 256);
          const dispatch = { label: "triad", kernel: "roofline_triad", constants: { VECTORS: floats / 4 }, groups, flops: 0 };
          triad = { floats, buffers, commands: await commands_of([dispatch], buffers) };
        });
      }
      return 12 * floats;
    },
    triad: (times) => gpu.scoped("triad", () => timed(triad.commands, times)),

    // Multiply-adds on registers; → FLOPs of one call. How many invocations fill this adapter is measured: its
    // speed is what tells a GPU from a program, so nothing that it says of itself may choose the work.
    async prepare_madds(many) {
      madd[many] ??= await gpu.scoped("multiply-adds", async () => {
        const [least, most] = MADD_INVOCATIONS;
        const buffers = { operands: buffer_of("operands", 12), sums: buffer_of("sums", 4 * most) };
        device.queue.writeBuffer(buffers.operands, 0, new Float32Array([1, 1, 1, 1, ...Array(8).fill(0.5)]));
        const constants = { STEPS: MADD_STEPS, MANY: many };
        const [command] = await commands_of([{ label: "madds", kernel: "roofline_madds", constants }], buffers);
        const call_of = (invocations) => {
          const flops = invocations * MADD_STEPS * 2 * bench.chains(many);
          return [{ ...command, groups: [invocations / 64], flops }];
        };
        const calls = 16; // their time beside that of none: a readback may take longer than a call
        await timed(call_of(least), 1);
        const readback_ms = await timed(call_of(least), 0);
        let invocations = least;
        while (invocations < most && (await timed(call_of(invocations), calls)) - readback_ms < calls * MADD_MS) {
          invocations *= 4;
        }
        await check_sums(buffers.sums, many);
        return { buffers, commands: call_of(invocations), flops: call_of(invocations)[0].flops };
      });
      return madd[many].flops;
    },
    madds: (many, times) => gpu.scoped("multiply-adds", () => timed(madd[many].commands, times)),
  };
  return bench;
}
