// out = (x - mean)·rstd·gain + shift for each of ROWS rows of C; keeps (mean, rstd) of every row.
// LANES invocations share a row, GROUP rows share a workgroup: x is the lane, y the row within it.

override ROWS: u32;
override C: u32;
override LANES: u32 = 1u;  // a power of two; LANES·GROUP at most 256
override GROUP: u32 = 64u;
override EPS: f32 = 1e-5;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gain: array<f32>;
@group(0) @binding(2) var<storage, read> shift: array<f32>;
@group(0) @binding(3) var<storage, read_write> stats: array<vec2f>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

var<workgroup> parts: array<f32, 256>;

@compute @workgroup_size(LANES, GROUP)
fn main(
  @builtin(local_invocation_id) local: vec3u,
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
) {
  let asked = (group.y * groups.x + group.x) * GROUP + local.y;
  let row = min(asked, ROWS - 1u);
  let start = row * C;
  var sum = 0.0;
  for (var c = local.x; c < C; c += LANES) { sum += x[start + c]; }
  let mean = row_sum(sum, local) / f32(C);
  var squares = 0.0;
  for (var c = local.x; c < C; c += LANES) {
    let centred = x[start + c] - mean;
    squares += centred * centred;
  }
  let rstd = 1.0 / sqrt(row_sum(squares, local) / f32(C) + EPS);
  if (asked >= ROWS) { return; }
  if (local.x == 0u) { stats[row] = vec2f(mean, rstd); }
  for (var c = local.x; c < C; c += LANES) {
    out[start + c] = (x[start + c] - mean) * rstd * gain[c] + shift[c];
  }
}

// The sum over a row's lanes, the same in all of them, always added in the same order.
fn row_sum(part: f32, local: vec3u) -> f32 {
  if (LANES == 1u) { return part; }
  let own = local.y * LANES + local.x;
  parts[own] = part;
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (local.x < half) { parts[own] += parts[own + half]; }
  }
  workgroupBarrier();
  let total = parts[local.y * LANES];
  workgroupBarrier();
  return total;
}
