// partials[i] = sum of the squares of the gradients in the vectors i, i + PARTIALS, i + 2·PARTIALS, …
// One invocation per partial sum. Gaps between tensors hold zeros and change nothing.

override VECTORS: u32;  // floats / 4
override PARTIALS: u32;

@group(0) @binding(0) var<storage, read> grad: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> partials: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
  if (id.x >= PARTIALS) { return; }
  var sum = 0.0;
  for (var i = id.x; i < VECTORS; i += PARTIALS) { sum += dot(grad[i], grad[i]); }
  partials[id.x] = sum;
}
