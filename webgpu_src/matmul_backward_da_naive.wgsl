// da (ROWS, COLS) = dc (ROWS, INNER) · b (COLS, INNER)ᵀ, then the epilogue. The tied head is the
// same product: logits (N, V) = x (N, C) · wte (V, C)ᵀ.
// One invocation per element of da: x runs along its columns, y along its rows.

override ROWS: u32;
override INNER: u32;
override COLS: u32;
override GELU: bool = false;  // times GELU'(pre), pre (ROWS, COLS)
override WX: u32 = 8u;
override WY: u32 = 8u;

@group(0) @binding(0) var<storage, read> dc: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
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

@compute @workgroup_size(WX, WY)
fn main(@builtin(global_invocation_id) id: vec3u) {
  if (id.y >= ROWS || id.x >= COLS) { return; }
  var sum = 0.0;
  for (var k = 0u; k < INNER; k++) {
    sum += dc[id.y * INNER + k] * b[id.x * INNER + k];
  }
  let i = id.y * COLS + id.x;
  if (GELU) { sum = gelu_backward(vec4f(sum), vec4f(pre[i])).x; }
  da[i] = sum;
}
