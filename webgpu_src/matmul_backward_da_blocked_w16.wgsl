// da (ROWS, COLS) = dc (ROWS, INNER) · b (COLS, INNER)ᵀ, then the epilogue; b is packed as halves, all
// arithmetic is float32: matmul_backward_da_blocked with other loads. The tied head is the same
// product: logits (N, V) = x (N, C) · wte (V, C)ᵀ.
// One invocation per tile of 8×8 elements of da (4 rows unless TALL, 4 columns unless WIDE), in
// registers as 4×4 blocks; x runs along tile columns, y along tile rows. A matrix here holds four rows
// of a block as its columns.

override ROWS: u32;
override INNER: u32;
override COLS: u32;
override VEC4: bool = false;  // INNER is a multiple of 4
override TALL: bool = true;
override WIDE: bool = true;
override GELU: bool = false;  // times GELU'(pre), pre (ROWS, COLS)
override SKIP: u32 = 0u;  // halves before b begins: bindings start at multiples of 256 bytes
override WX: u32 = 8u;
override WY: u32 = 8u;

@group(0) @binding(0) var<storage, read> dc: array<vec4f>;
@group(0) @binding(1) var<storage, read> b: array<vec2u>;  // four halves each
@group(0) @binding(2) var<storage, read> pre: array<f32>;
@group(0) @binding(3) var<storage, read_write> da: array<f32>;

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

// dy·(Φ(x) + x·φ(x)); x is cut at ±14 inside, where φ is below 1e-42: nothing overflows, whatever x.
fn gelu_backward(dy: vec4f, x: vec4f) -> vec4f {
  let z = clamp(x, vec4f(-14.0), vec4f(14.0));
  let e = exp(-0.5 * z * z);
  return dy * (normal_cdf(z, e) + z * (0.3989422804 * e));
}

fn dc1(i: u32) -> f32 { return dc[i / 4u][i % 4u]; }

fn dc4(i: u32) -> vec4f {
  if (VEC4) { return dc[i / 4u]; }
  return vec4f(dc1(i), dc1(i + 1u), dc1(i + 2u), dc1(i + 3u));
}

fn b1(i: u32) -> f32 {
  let at = i + SKIP;
  return unpack2x16float(b[at / 4u][at / 2u % 2u])[at % 2u];
}

fn b4(i: u32) -> vec4f {
  if (VEC4) {
    let four = b[(i + SKIP) / 4u];
    return vec4f(unpack2x16float(four.x), unpack2x16float(four.y));
  }
  return vec4f(b1(i), b1(i + 1u), b1(i + 2u), b1(i + 3u));
}

// Rows and columns past the end repeat the last one and are not stored.
@compute @workgroup_size(WX, WY)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let row = id.y * select(4u, 8u, TALL);
  let column = id.x * select(4u, 8u, WIDE);
  if (row >= ROWS || column >= COLS) { return; }
  let upper = min(row + vec4u(0u, 1u, 2u, 3u), vec4u(ROWS - 1u)) * INNER;
  let lower = min(row + vec4u(4u, 5u, 6u, 7u), vec4u(ROWS - 1u)) * INNER;
  let left = min(column + vec4u(0u, 1u, 2u, 3u), vec4u(COLS - 1u)) * INNER;
  let right = min(column + vec4u(4u, 5u, 6u, 7u), vec4u(COLS - 1u)) * INNER;

  var o00 = mat4x4f();
  var o01 = mat4x4f();
  var o10 = mat4x4f();
  var o11 = mat4x4f();
  let whole = INNER / 4u * 4u;
  for (var k = 0u; k < whole; k += 4u) {
    let dc_up = mat4x4f(dc4(upper.x + k), dc4(upper.y + k), dc4(upper.z + k), dc4(upper.w + k));
    let b_left =
      transpose(mat4x4f(b4(left.x + k), b4(left.y + k), b4(left.z + k), b4(left.w + k)));
    o00 += b_left * dc_up;
    var dc_low = mat4x4f();
    if (TALL) {
      dc_low = mat4x4f(dc4(lower.x + k), dc4(lower.y + k), dc4(lower.z + k), dc4(lower.w + k));
      o10 += b_left * dc_low;
    }
    if (WIDE) {
      let b_right =
        transpose(mat4x4f(b4(right.x + k), b4(right.y + k), b4(right.z + k), b4(right.w + k)));
      o01 += b_right * dc_up;
      if (TALL) { o11 += b_right * dc_low; }
    }
  }
  for (var k = whole; k < INNER; k++) {
    let dc_up = vec4f(dc1(upper.x + k), dc1(upper.y + k), dc1(upper.z + k), dc1(upper.w + k));
    let dc_low = vec4f(dc1(lower.x + k), dc1(lower.y + k), dc1(lower.z + k), dc1(lower.w + k));
    let b_left = vec4f(b1(left.x + k), b1(left.y + k), b1(left.z + k), b1(left.w + k));
    let b_right = vec4f(b1(right.x + k), b1(right.y + k), b1(right.z + k), b1(right.w + k));
    o00 += outer(b_left, dc_up);
    o01 += outer(b_right, dc_up);
    o10 += outer(b_left, dc_low);
    o11 += outer(b_right, dc_low);
  }

  store_block(row, column, o00);
  if (WIDE) { store_block(row, column + 4u, o01); }
  if (TALL) { store_block(row + 4u, column, o10); }
  if (TALL && WIDE) { store_block(row + 4u, column + 4u, o11); }
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
  if (GELU) { y = gelu_backward(y, vec4f(pre[i], pre[i + 1u], pre[i + 2u], pre[i + 3u])); }
  if (left > 0u) { da[i] = y.x; }
  if (left > 1u) { da[i + 1u] = y.y; }
  if (left > 2u) { da[i + 2u] = y.z; }
  if (left > 3u) { da[i + 3u] = y.w; }
}
