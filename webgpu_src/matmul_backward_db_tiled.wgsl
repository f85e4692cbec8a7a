// db (ROWS, COLS) = a (INNER, ROWS)ᵀ · dc (INNER, COLS); and dbias (COLS), the column sums of dc.
// One workgroup of 16×16 per tile of 64×64 elements of db, 4×4 per invocation; x runs along tile columns,
// y along tile rows. Tiles of the inputs, 16 deep, are staged in workgroup memory as vectors of four rows
// (a) or columns (dc), zeros beyond the end. A matrix here holds four rows as its columns.

override ROWS: u32;
override INNER: u32;
override COLS: u32;
override BIAS: bool = false;  // dbias is asked for

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> dc: array<f32>;
@group(0) @binding(2) var<storage, read_write> db: array<f32>;
@group(0) @binding(3) var<storage, read_write> dbias: array<f32>;

var<workgroup> rows: array<vec4f, 256>;     // [k][row / 4]
var<workgroup> columns: array<vec4f, 256>;  // [k][column / 4]

// Four columns c … c+3 at depth k of an (INNER, columns) matrix: rows of the product.
fn a_rows(c: u32, k: u32) -> vec4f {
  return vec4f(a_at(c, k), a_at(c + 1u, k), a_at(c + 2u, k), a_at(c + 3u, k));
}

fn a_at(c: u32, k: u32) -> f32 {
  if (c >= ROWS || k >= INNER) { return 0.0; }
  return a[k * ROWS + c];
}

// Four columns c … c+3 at depth k of an (INNER, columns) matrix.
fn dc_columns(c: u32, k: u32) -> vec4f {
  return vec4f(dc_at(c, k), dc_at(c + 1u, k), dc_at(c + 2u, k), dc_at(c + 3u, k));
}

fn dc_at(c: u32, k: u32) -> f32 {
  if (c >= COLS || k >= INNER) { return 0.0; }
  return dc[k * COLS + c];
}

@compute @workgroup_size(16, 16)
fn main(
  @builtin(local_invocation_id) local: vec3u,
  @builtin(local_invocation_index) index: u32,
  @builtin(workgroup_id) group: vec3u,
) {
  let row0 = group.y * 64u;
  let column0 = group.x * 64u;
  let fast = index % 16u;
  let slow = index / 16u;
  var o = mat4x4f();
  var sums = vec4f();
  for (var k0 = 0u; k0 < INNER; k0 += 16u) {
    // Neighbouring invocations load neighbouring floats.
    rows[slow * 16u + fast] = a_rows(row0 + fast * 4u, k0 + slow);
    columns[slow * 16u + fast] = dc_columns(column0 + fast * 4u, k0 + slow);
    workgroupBarrier();
    for (var k = 0u; k < 16u; k++) {
      let right = columns[k * 16u + local.x];
      let left = rows[k * 16u + local.y];
      o += mat4x4f(right * left.x, right * left.y, right * left.z, right * left.w);
      if (BIAS) { sums += right; }
    }
    workgroupBarrier();
  }
  store_block(row0 + local.y * 4u, column0 + local.x * 4u, o);
  if (BIAS && group.y == 0u && local.y == 0u) { store_sums(column0 + local.x * 4u, sums); }
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
