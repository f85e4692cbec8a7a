// dgain = column sums of dout·x̂, dshift = column sums of dout, over ROWS rows of C; x̂ = (x - mean)·rstd.
// A workgroup has 16 columns and 16 lanes: x is the column within it, y the lane, which sums the rows
// y, y + 16, …; the lanes are then added in halves, the upper through workgroup memory to the lower.

override ROWS: u32;
override C: u32;

@group(0) @binding(0) var<storage, read> dout: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> stats: array<vec2f>;
@group(0) @binding(3) var<storage, read_write> dgain: array<f32>;
@group(0) @binding(4) var<storage, read_write> dshift: array<f32>;

var<workgroup> parts: array<vec2f, 128>;

@compute @workgroup_size(16, 16)
fn main(
  @builtin(local_invocation_id) local: vec3u,
  @builtin(workgroup_id) group: vec3u,
) {
  let column = group.x * 16u + local.x;
  var sums = vec2f();
  if (column < C) {
    for (var row = local.y; row < ROWS; row += 16u) {
      let i = row * C + column;
      sums += dout[i] * vec2f((x[i] - stats[row].x) * stats[row].y, 1.0);
    }
  }
  for (var half = 8u; half > 0u; half /= 2u) {
    let own = (local.y % half) * 16u + local.x;
    if (local.y >= half && local.y < 2u * half) { parts[own] = sums; }
    workgroupBarrier();
    if (local.y < half) { sums += parts[own]; }
    workgroupBarrier();
  }
  if (local.y == 0u && column < C) {
    dgain[column] = sums.x;
    dshift[column] = sums.y;
  }
}
