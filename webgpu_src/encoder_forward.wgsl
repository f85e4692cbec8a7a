// x[n, c] = wte[token n, c] + wpe[n mod T, c] for N = B·T positions n and C channels c.
// One invocation per element; workgroups of 256 are folded into two dimensions.

override N: u32;
override T: u32;
override C: u32;

@group(0) @binding(0) var<storage, read> tokens: array<u32>;
@group(0) @binding(1) var<storage, read> wte: array<f32>;
@group(0) @binding(2) var<storage, read> wpe: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(256)
fn main(
  @builtin(local_invocation_index) local: u32,
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
) {
  let i = (group.y * groups.x + group.x) * 256u + local;
  if (i >= N * C) { return; }
  let n = i / C;
  let c = i % C;
  out[i] = wte[tokens[n] * C + c] + wpe[n % T * C + c];
}
