// What a piece of work asks of WebGPU, counted on the prototypes, so that no arm can leave anything out.

const COUNTED = [
  ["GPUDevice", "createBuffer"],
  ["GPUDevice", "createBindGroup"],
  ["GPUDevice", "createShaderModule"],
  ["GPUDevice", "createComputePipeline"],
  ["GPUDevice", "createComputePipelineAsync"],
  ["GPUDevice", "createQuerySet"],
  ["GPUQueue", "submit"],
  ["GPUComputePassEncoder", "dispatchWorkgroups"],
  ["GPUComputePassEncoder", "dispatchWorkgroupsIndirect"],
];

// → calls by name while `work` ran.
export async function calls_of(work) {
  const calls = Object.fromEntries(COUNTED.map(([, name]) => [name, 0]));
  const real = COUNTED.map(([type, name]) => self[type].prototype[name]);
  COUNTED.forEach(([type, name], i) => {
    self[type].prototype[name] = function (...given) {
      calls[name] += 1;
      return real[i].apply(this, given);
    };
  });
  try {
    await work();
  } finally {
    COUNTED.forEach(([type, name], i) => { self[type].prototype[name] = real[i]; });
  }
  return calls;
}
