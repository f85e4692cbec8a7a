// db (ROWS, COLS) = a (INNER, ROWS)ᵀ · dc (INNER, COLS); and dbias (COLS), the column sums of dc.
// One invocation per tile of 8×8 elements of db (4 rows unless TALL, 4 columns unless WIDE), in
// registers as 4×4 blocks; x runs along tile columns, y along tile rows. The first tile row sums dbias.
// A matrix here holds four rows of a block as its columns.
// With PARTS > 1 the depth is cut: z is the part, db and dbias hold every part's own sums one after another,
// each beginning at a multiple of four floats, and matmul_backward_db_sum.wgsl adds them.

override ROWS: u32;
override INNER: u32;
override COLS: u32;
override VEC4: bool = false;  // ROWS and COLS are multiples of 4
override TALL: bool = true;
override WIDE: bool = true;
override BIAS: bool = false;  // dbias is asked for
override PARTS: u32 = 1u;  // the last of them may be empty
override WX: u32 = 8u;
override WY: u32 = 8u;

@group(0) @binding(0) var<storage, read> a: array<vec4f>;
@group(0) @binding(1) var<storage, read> dc: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> db: array<f32>;
@group(0) @binding(3) var<storage, read_write> dbias: array<f32>;

fn a1(i: u32) -> f32 { return a[i / 4u][i % 4u]; }

fn a4(i: u32) -> vec4f {
  if (VEC4) { return a[i / 4u]; }
  return vec4f(a1(i), a1(i + 1u), a1(i + 2u), a1(i + 3u));
}

fn dc1(i: u32) -> f32 { return dc[i / 4u][i % 4u]; }

fn dc4(i: u32) -> vec4f {
  if (VEC4) { return dc[i / 4u]; }
  return vec4f(dc1(i), dc1(i + 1u), dc1(i + 2u), dc1(i + 3u));
}

// Rows and columns past the end load what lies there and are not stored.
@compute @workgroup_size(WX, WY)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let row = id.y * select(4u, 8u, TALL);
  let column = id.x * select(4u, 8u, WIDE);
  if (row >= ROWS || column >= COLS) { return; }

  var o00 = mat4x4f();
  var o01 = mat4x4f();
  var o10 = mat4x4f();
  var o11 = mat4x4f();
  var sum_left = vec4f();
  var sum_right = vec4f();
  let sums = BIAS && row == 0u;
  // Parts begin at multiples of four, but for those that the depth leaves nothing.
  let depth = (INNER + 4u * PARTS - 1u) / (4u * PARTS) * 4u;
  let begin = select(0u, min(id.z * depth, INNER), PARTS > 1u);
  let end = min(begin + depth, INNER);
  let whole = end / 4u * 4u;
  var at_a = begin * ROWS + row;
  var at = begin * COLS + column;
  for (var k = begin; k < whole; k += 4u) {
    let a_up =
      transpose(mat4x4f(a4(at_a), a4(at_a + ROWS), a4(at_a + 2u * ROWS), a4(at_a + 3u * ROWS)));
    let dc_left = mat4x4f(dc4(at), dc4(at + COLS), dc4(at + 2u * COLS), dc4(at + 3u * COLS));
    o00 += dc_left * a_up;
    if (sums) { sum_left += (dc_left[0] + dc_left[1]) + (dc_left[2] + dc_left[3]); }
    var a_low = mat4x4f();
    if (TALL) {
      let low = at_a + 4u;
      a_low = transpose(mat4x4f(a4(low), a4(low + ROWS), a4(low + 2u * ROWS), a4(low + 3u * ROWS)));
      o10 += dc_left * a_low;
    }
    if (WIDE) {
      let right = at + 4u;
      let dc_right =
        mat4x4f(dc4(right), dc4(right + COLS), dc4(right + 2u * COLS), dc4(right + 3u * COLS));
      o01 += dc_right * a_up;
      if (sums) { sum_right += (dc_right[0] + dc_right[1]) + (dc_right[2] + dc_right[3]); }
      if (TALL) { o11 += dc_right * a_low; }
    }
    at_a += 4u * ROWS;
    at += 4u * COLS;
  }
  for (var k = max(begin, whole); k < end; k++) {
    let a_up = a4(at_a);
    let a_low = a4(at_a + 4u);
    let dc_left = dc4(at);
    let dc_right = dc4(at + 4u);
    o00 += outer(dc_left, a_up);
    o01 += outer(dc_right, a_up);
    o10 += outer(dc_left, a_low);
    o11 += outer(dc_right, a_low);
    sum_left += dc_left;
    sum_right += dc_right;
    at_a += ROWS;
    at += COLS;
  }

  let db_at = id.z * vectors(ROWS * COLS);
  store_block(db_at, row, column, o00);
  if (WIDE) { store_block(db_at, row, column + 4u, o01); }
  if (TALL) { store_block(db_at, row + 4u, column, o10); }
  if (TALL && WIDE) { store_block(db_at, row + 4u, column + 4u, o11); }
  if (sums) {
    let dbias_at = id.z * vectors(COLS);
    store_sums(dbias_at, column, sum_left);
    if (WIDE) { store_sums(dbias_at, column + 4u, sum_right); }
  }
}

// So many floats, up to whole vectors.
fn vectors(floats: u32) -> u32 { return (floats + 3u) / 4u * 4u; }

fn outer(v: vec4f, by: vec4f) -> mat4x4f {
  return mat4x4f(v * by.x, v * by.y, v * by.z, v * by.w);
}

fn store_block(at: u32, row: u32, column: u32, o: mat4x4f) {
  store_row(at, row, column, o[0]);
  store_row(at, row + 1u, column, o[1]);
  store_row(at, row + 2u, column, o[2]);
  store_row(at, row + 3u, column, o[3]);
}

fn store_row(at: u32, row: u32, column: u32, v: vec4f) {
  if (row >= ROWS) { return; }
  let i = at + row * COLS + column;
  if (column < COLS) { db[i] = v.x; }
  if (column + 1u < COLS) { db[i + 1u] = v.y; }
  if (column + 2u < COLS) { db[i + 2u] = v.z; }
  if (column + 3u < COLS) { db[i + 3u] = v.w; }
}

fn store_sums(at: u32, column: u32, v: vec4f) {
  let i = at + column;
  if (column < COLS) { dbias[i] = v.x; }
  if (column + 1u < COLS) { dbias[i + 1u] = v.y; }
  if (column + 2u < COLS) { dbias[i + 2u] = v.z; }
  if (column + 3u < COLS) { dbias[i + 3u] = v.w; }
}
