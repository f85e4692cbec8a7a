// What a GPUAdapter says of itself, as plain values; the probe and the arm that trains give the same keys.

export function adapter_facts(adapter) {
  const { info } = adapter;
  return {
    available: true,
    vendor: info.vendor,
    architecture: info.architecture,
    device: info.device,
    description: info.description,
    // Older browsers have the flag on the adapter.
    is_fallback: info.isFallbackAdapter ?? adapter.isFallbackAdapter ?? null,
    subgroup_min_size: info.subgroupMinSize ?? null,
    subgroup_max_size: info.subgroupMaxSize ?? null,
    features: [...adapter.features].sort(),
    limits: numbers(adapter.limits),
  };
}

// GPUSupportedLimits has its values as getters of its prototype.
function numbers(limits) {
  const names = Object.getOwnPropertyNames(Object.getPrototypeOf(limits));
  return Object.fromEntries(names.filter((name) => typeof limits[name] === "number").map((name) => [name, limits[name]]));
}
