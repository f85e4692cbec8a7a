// db (ROWS, COLS) and dbias (COLS) of a product whose depth was cut (matmul_backward_db_blocked.wgsl): the sums
// of PARTS parts, from the first to the last, so that they are the same bits every time.
// One invocation per vector of four floats of db, then of dbias; workgroups of 64 are folded into two
// dimensions. What lies beyond the last float, up to a whole vector, becomes 0, as the gaps are.

override ROWS: u32;
override COLS: u32;
override PARTS: u32;
override BIAS: bool = false;  // dbias is asked for

@group(0) @binding(0) var<storage, read> parts: array<vec4f>;  // of db, each a whole number of vectors
@group(0) @binding(1) var<storage, read> part_sums: array<vec4f>;  // of dbias, likewise
@group(0) @binding(2) var<storage, read_write> db: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> dbias: array<vec4f>;

@compute @workgroup_size(64)
fn main(
  @builtin(local_invocation_index) local: u32,
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
) {
  let i = (group.y * groups.x + group.x) * 64u + local;
  let vectors = (ROWS * COLS + 3u) / 4u;
  if (i < vectors) {
    var sum = parts[i];
    for (var part = 1u; part < PARTS; part++) { sum += parts[part * vectors + i]; }
    db[i] = within(sum, i, ROWS * COLS);
    return;
  }
  let j = i - vectors;
  let bias_vectors = (COLS + 3u) / 4u;
  if (BIAS && j < bias_vectors) {
    var sum = part_sums[j];
    for (var part = 1u; part < PARTS; part++) { sum += part_sums[part * bias_vectors + j]; }
    dbias[j] = within(sum, j, COLS);
  }
}

// Vector i of an array, 0 where it goes beyond the array's floats.
fn within(v: vec4f, i: u32, floats: u32) -> vec4f {
  return select(vec4f(), v, vec4u(4u * i) + vec4u(0u, 1u, 2u, 3u) < vec4u(floats));
}
