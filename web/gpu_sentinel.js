// A fixed piece of work that measures the GPU itself: one invocation, one dependent chain of float32
// multiplications and additions, on a device of its own. Its time is latency times the GPU's clock rate plus
// one way there and back, so it shows a throttled or shared GPU and nothing of memory or occupancy.

import { open_device } from "./device.js";
import { ArmError } from "./errors.js";

const ROUNDS = 1_000_000;
const CODE = `
  @group(0) @binding(0) var<storage, read> rounds: u32;
  @group(0) @binding(1) var<storage, read_write> result: f32;

  @compute @workgroup_size(1)
  fn main() {
    var x = 1.0;
    for (var i = 0u; i < rounds; i++) { x = x * 0.5 + 0.75; }
    result = x;
  }
`;

export async function gpu_sentinel(count) {
  const gpu = await open_device(() => ({}));
  try {
    return await gpu.scoped("the GPU's sentinel", () => samples(gpu, count));
  } finally {
    gpu.close();
  }
}

async function samples(gpu, count) {
  const { device } = gpu;
  const pipeline = await gpu.pipeline("sentinel", await gpu.module("sentinel", CODE), {});
  const { STORAGE, COPY_SRC, COPY_DST, MAP_READ } = GPUBufferUsage;
  const [rounds, result, readable] = [STORAGE | COPY_DST, STORAGE | COPY_SRC, COPY_DST | MAP_READ].map(
    (usage) => device.createBuffer({ size: 4, usage }),
  );
  device.queue.writeBuffer(rounds, 0, new Uint32Array([ROUNDS]));
  const entries = [rounds, result].map((buffer, binding) => ({ binding, resource: { buffer } }));
  const group = device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries });
  const values_ms = [];
  for (let i = -1; i < count; i++) { // the first run may still compile
    const began = performance.now();
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(1);
    pass.end();
    encoder.copyBufferToBuffer(result, 0, readable, 0, 4);
    device.queue.submit([encoder.finish()]);
    await gpu.guard(readable.mapAsync(GPUMapMode.READ));
    const [x] = new Float32Array(readable.getMappedRange());
    readable.unmap();
    if (i >= 0) values_ms.push(performance.now() - began);
    if (x !== 1.5) throw new ArmError("internal", `the GPU's sentinel computed ${x}, not 1.5`);
  }
  return values_ms;
}
