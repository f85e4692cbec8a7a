enable subgroups;

// out (ROWS, COLS) = a (ROWS, INNER) · b (INNER, COLS), then the epilogue.
// One invocation per 8 rows × 4 columns of out: neighbours have neighbouring columns, a workgroup (x) one
// set of rows (y). Each lane of a subgroup loads those rows of `a` at a depth of its own, and all lanes then
// take them from it in turn. Right for any subgroup size: it is asked for, and lanes that are not there are
// not asked. A matrix here holds four rows as its columns.

override ROWS: u32;
override INNER: u32;
override COLS: u32;
override BIAS: bool = false;      // + bias (COLS)
override RESIDUAL: bool = false;  // + residual (ROWS, COLS)
override GELU: bool = false;      // keeps the sum so far in `pre`, puts its GELU in `out`
override WG: u32 = 64u;  // a multiple of the adapter's largest subgroup, or 128

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read> residual: array<f32>;
@group(0) @binding(4) var<storage, read_write> pre: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

// Φ(x), the normal distribution, to 8e-8, given e = exp(-x²/2): near 0 an odd polynomial about 1/2,
// beyond it e times a polynomial in t = 1/(1 + 0.4|x|), so that small tails keep their leading digits.
// Both were fitted to the least maximum error.
fn normal_cdf(x: vec4f, e: vec4f) -> vec4f {
  let s = x * x;
  var p = s * 4.789924901e-7 - 9.065259292e-6;
  p = p * s + 1.150307071e-4;
  p = p * s - 1.187095069e-3;
  p = p * s + 9.973487817e-3;
  p = p * s - 6.649037451e-2;
  p = p * s + 0.3989422917;
  let t = 1.0 / (1.0 + 0.4 * abs(x));
  var r = t * 0.06574288011 - 0.1809769869;
  r = r * t + 0.1005331203;
  r = r * t + 0.05757594854;
  r = r * t + 0.1386210173;
  r = r * t + 0.1591096669;
  r = r * t + 0.1596015394;
  r = r * t - 5.130823979e-7;
  let tail = e * r;
  return select(select(tail, 1.0 - tail, x > vec4f()), 0.5 + x * p, s < vec4f(1.44));
}

// x is cut at ±14 inside, where the tail is below 1e-43: nothing overflows, whatever x.
fn gelu_forward(x: vec4f) -> vec4f {
  let z = clamp(x, vec4f(-14.0), vec4f(14.0));
  return x * normal_cdf(z, exp(-0.5 * z * z));
}

// Four rows r … r+3 of the left side at depth k; zeros beyond the end.
fn a_rows(r: u32, k: u32) -> vec4f {
  return vec4f(a_at(r, k), a_at(r + 1u, k), a_at(r + 2u, k), a_at(r + 3u, k));
}

fn a_at(r: u32, k: u32) -> f32 {
  if (r >= ROWS || k >= INNER) { return 0.0; }
  return a[r * INNER + k];
}

// Four columns c … c+3 of the right side at depth k; columns past the end repeat the last one.
fn b_columns(c: u32, k: u32) -> vec4f {
  return vec4f(b_at(c, k), b_at(c + 1u, k), b_at(c + 2u, k), b_at(c + 3u, k));
}

fn b_at(column: u32, k: u32) -> f32 {
  let c = min(column, COLS - 1u);
  return b[k * COLS + c];
}

@compute @workgroup_size(WG)
fn main(
  @builtin(local_invocation_index) local: u32,
  @builtin(workgroup_id) group: vec3u,
  @builtin(subgroup_invocation_id) lane: u32,
) {
  // Lanes that are there, numbered from 0 without a gap.
  let lanes = subgroupAdd(1u);
  let row = group.y * 8u;
  let column = (group.x * WG + local) * 4u;
  var upper = mat4x4f();
  var lower = mat4x4f();
  for (var k0 = 0u; k0 < INNER; k0 += lanes) {
    let up = a_rows(row, k0 + lane);
    let low = a_rows(row + 4u, k0 + lane);
    let depth = min(lanes, INNER - k0);
    for (var i = 0u; i < depth; i++) {
      let right = b_columns(column, k0 + i);
      let left_up = subgroupShuffle(up, i);
      let left_low = subgroupShuffle(low, i);
      upper += outer(right, left_up);
      lower += outer(right, left_low);
    }
  }
  store_block(row, column, upper);
  store_block(row + 4u, column, lower);
}

fn outer(v: vec4f, by: vec4f) -> mat4x4f {
  return mat4x4f(v * by.x, v * by.y, v * by.z, v * by.w);
}

// The loop runs over a copy: indexing the sums themselves by a variable would put them into memory.
fn store_block(row: u32, column: u32, o: mat4x4f) {
  var rows = o;
  for (var r = 0u; r < 4u && row + r < ROWS; r++) { store_row(row + r, column, rows[r]); }
}

fn store_row(row: u32, column: u32, sums: vec4f) {
  let i = row * COLS + column;
  let left = min(4u, COLS - min(COLS, column));
  var y = sums;
  if (BIAS) { y += vec4f(bias[column], bias[column + 1u], bias[column + 2u], bias[column + 3u]); }
  if (RESIDUAL) { y += vec4f(residual[i], residual[i + 1u], residual[i + 2u], residual[i + 3u]); }
  if (GELU) {
    if (left > 0u) { pre[i] = y.x; }
    if (left > 1u) { pre[i + 1u] = y.y; }
    if (left > 2u) { pre[i + 2u] = y.z; }
    if (left > 3u) { pre[i + 3u] = y.w; }
    y = gelu_forward(y);
  }
  if (left > 0u) { out[i] = y.x; }
  if (left > 1u) { out[i + 1u] = y.y; }
  if (left > 2u) { out[i + 2u] = y.z; }
  if (left > 3u) { out[i + 3u] = y.w; }
}
