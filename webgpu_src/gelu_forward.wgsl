// out = x·Φ(x), element by element. The step runs this function in matmul_forward's epilogue; this
// file shows and tests it alone.
// Invocation i has elements i, i + STRIDE, i + 2·STRIDE, …; STRIDE is the number of invocations.

override SIZE: u32;
override STRIDE: u32;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

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

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
  for (var i = id.x; i < SIZE; i += STRIDE) {
    out[i] = gelu_forward(vec4f(x[i])).x;
  }
}
