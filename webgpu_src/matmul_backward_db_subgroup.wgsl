enable subgroups;

// db (ROWS, COLS) = a (INNER, ROWS)ᵀ · dc (INNER, COLS); and dbias (COLS), the column sums of dc.
// One invocation per 8 rows × 4 columns of db: neighbours have neighbouring columns, a workgroup (x) one
// set of rows (y). Each lane of a subgroup loads those rows of aᵀ at a depth of its own, and all lanes then
// take them from it in turn. Right for any subgroup size: it is asked for, and lanes that are not there are
// not asked. The first set of rows sums dbias. A matrix here holds four rows as its columns.

override ROWS: u32;
override INNER: u32;
override COLS: u32;
override BIAS: bool = false;  // dbias is asked for
override WG: u32 = 64u;  // a multiple of the adapter's largest subgroup, or 128

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> dc: array<f32>;
@group(0) @binding(2) var<storage, read_write> db: array<f32>;
@group(0) @binding(3) var<storage, read_write> dbias: array<f32>;

// Four rows r … r+3 of the left side at depth k; zeros beyond the end.
fn a_rows(r: u32, k: u32) -> vec4f {
  return vec4f(a_at(r, k), a_at(r + 1u, k), a_at(r + 2u, k), a_at(r + 3u, k));
}

fn a_at(r: u32, k: u32) -> f32 {
  if (r >= ROWS || k >= INNER) { return 0.0; }
  return a[k * ROWS + r];
}

// Four columns c … c+3 of the right side at depth k; columns past the end repeat the last one.
fn dc_columns(c: u32, k: u32) -> vec4f {
  return vec4f(dc_at(c, k), dc_at(c + 1u, k), dc_at(c + 2u, k), dc_at(c + 3u, k));
}

fn dc_at(column: u32, k: u32) -> f32 {
  let c = min(column, COLS - 1u);
  return dc[k * COLS + c];
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
  var sums = vec4f();
  for (var k0 = 0u; k0 < INNER; k0 += lanes) {
    let up = a_rows(row, k0 + lane);
    let low = a_rows(row + 4u, k0 + lane);
    let depth = min(lanes, INNER - k0);
    for (var i = 0u; i < depth; i++) {
      let right = dc_columns(column, k0 + i);
      let left_up = subgroupShuffle(up, i);
      let left_low = subgroupShuffle(low, i);
      upper += outer(right, left_up);
      lower += outer(right, left_low);
      sums += right;
    }
  }
  store_block(row, column, upper);
  store_block(row + 4u, column, lower);
  if (BIAS && row == 0u) { store_sums(column, sums); }
}

fn outer(v: vec4f, by: vec4f) -> mat4x4f {
  return mat4x4f(v * by.x, v * by.y, v * by.z, v * by.w);
}

fn store_block(row: u32, column: u32, o: mat4x4f) {
  store_row(row, column, o[0]);
  store_row(row + 1u, column, o[1]);
  store_row(row + 2u, column, o[2]);
  store_row(row + 3u, column, o[3]);
}

fn store_row(row: u32, column: u32, v: vec4f) {
  if (row >= ROWS) { return; }
  let i = row * COLS + column;
  if (column < COLS) { db[i] = v.x; }
  if (column + 1u < COLS) { db[i + 1u] = v.y; }
  if (column + 2u < COLS) { db[i + 2u] = v.z; }
  if (column + 3u < COLS) { db[i + 3u] = v.w; }
}

fn store_sums(column: u32, v: vec4f) {
  if (column < COLS) { dbias[column] = v.x; }
  if (column + 1u < COLS) { dbias[column + 1u] = v.y; }
  if (column + 2u < COLS) { dbias[column + 2u] = v.z; }
  if (column + 3u < COLS) { dbias[column + 3u] = v.w; }
}
