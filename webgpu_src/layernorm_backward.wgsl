// dx = rstd·(dx̂ - mean(dx̂) - x̂·mean(dx̂·x̂)) with dx̂ = dout·gain, x̂ = (x - mean)·rstd, for each of
// ROWS rows of C; added to what dx holds when ADD (the residual path), else stored.
// LANES invocations share a row, GROUP rows share a workgroup: x is the lane, y the row within it.

override ROWS: u32;
override C: u32;
override ADD: bool = false;
override LANES: u32 = 1u;  // a power of two; LANES·GROUP at most 256
override GROUP: u32 = 64u;

@group(0) @binding(0) var<storage, read> dout: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> gain: array<f32>;
@group(0) @binding(3) var<storage, read> stats: array<vec2f>;
@group(0) @binding(4) var<storage, read_write> dx: array<f32>;

var<workgroup> parts: array<vec2f, 256>;

@compute @workgroup_size(LANES, GROUP)
fn main(
  @builtin(local_invocation_id) local: vec3u,
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
) {
  let asked = (group.y * groups.x + group.x) * GROUP + local.y;
  let row = min(asked, ROWS - 1u);
  let start = row * C;
  let mean = stats[row].x;
  let rstd = stats[row].y;
  var sums = vec2f();
  for (var c = local.x; c < C; c += LANES) {
    let dxhat = dout[start + c] * gain[c];
    sums += vec2f(dxhat, dxhat * (x[start + c] - mean) * rstd);
  }
  let means = row_sum(sums, local) / f32(C);
  if (asked >= ROWS) { return; }
  for (var c = local.x; c < C; c += LANES) {
    let i = start + c;
    let xhat = (x[i] - mean) * rstd;
    let grad = rstd * (dout[i] * gain[c] - means.x - xhat * means.y);
    dx[i] = select(grad, dx[i] + grad, ADD);
  }
}

// The sum over a row's lanes, the same in all of them, always added in the same order.
fn row_sum(part: vec2f, local: vec3u) -> vec2f {
  if (LANES == 1u) { return part; }
  let own = local.y * LANES + local.x;
  parts[own] = part;
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (local.x < half) { parts[own] += parts[own + half]; }
  }
  workgroupBarrier();
  return parts[local.y * LANES];
}
