// a = b + 0.5·c over VECTORS vectors of four floats: memory traffic and next to no arithmetic, counted as
// STREAM does (McCalpin 1995). One invocation per vector; workgroups of 256 are folded into two dimensions.

override VECTORS: u32;

@group(0) @binding(0) var<storage, read_write> a: array<vec4f>;
@group(0) @binding(1) var<storage, read> b: array<vec4f>;
@group(0) @binding(2) var<storage, read> c: array<vec4f>;

@compute @workgroup_size(256)
fn main(
  @builtin(local_invocation_index) local: u32,
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
) {
  let i = (group.y * groups.x + group.x) * 256u + local;
  if (i < VECTORS) { a[i] = b[i] + 0.5 * c[i]; }
}
