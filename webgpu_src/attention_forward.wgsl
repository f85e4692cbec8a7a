// out = causal softmax(q·kᵀ/sqrt(D))·v for every head, and lse (B, H, T), the log of each row's sum of
// exponentials: all that backward needs besides q, k and v. No T×T buffer exists: the softmax runs online
// (Milakov and Gimelshein 2018).
// One invocation per 4 query rows × up to 16 of a head's D dimensions (32 when WIDE, which computes fewer
// scores twice and needs twice the registers); it walks over blocks of 4 keys.
// From the fastest: chunk of dimensions, tile of rows, head, batch; workgroups are folded into two
// dimensions. qkv is (B, T, 3C): q, k, v side by side, heads contiguous. A matrix here holds four rows
// as its columns.

override B: u32;
override T: u32;
override H: u32;
override D: u32;
override VEC4: bool = false;  // D is a multiple of 4
override WIDE: bool = false;
override WG: u32 = 64u;

@group(0) @binding(0) var<storage, read> qkv: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<storage, read_write> lse: array<f32>;

const LOW = -1e30;  // stands for -inf, which WGSL lets implementations ignore

// Dimensions d … d+3 of the vector that begins at float i; zeros beyond D.
fn load4(i: u32, d: u32) -> vec4f {
  if (VEC4) { return qkv[(i + d) / 4u]; }
  return vec4f(load1(i, d), load1(i, d + 1u), load1(i, d + 2u), load1(i, d + 3u));
}

fn load1(i: u32, d: u32) -> f32 {
  let at = i + min(d, D - 1u);
  return select(0.0, qkv[at / 4u][at % 4u], d < D);
}

fn rows4(i: vec4u, d: u32) -> mat4x4f {
  return mat4x4f(load4(i.x, d), load4(i.y, d), load4(i.z, d), load4(i.w, d));
}

fn top(s: vec4f) -> f32 { return max(max(s.x, s.y), max(s.z, s.w)); }

@compute @workgroup_size(WG)
fn main(
  @builtin(local_invocation_index) local: u32,
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
) {
  let width = select(16u, 32u, WIDE);
  let chunks = (D + width - 1u) / width;
  let tiles = (T + 3u) / 4u;
  var rest = (group.y * groups.x + group.x) * WG + local;
  let dim = rest % chunks * width;
  rest /= chunks;
  let row0 = rest % tiles * 4u;
  rest /= tiles;
  let head = rest % H;
  let batch = rest / H;
  if (batch >= B) { return; }

  let C = H * D;
  let lanes = vec4u(0u, 1u, 2u, 3u);
  let rows = row0 + lanes;
  let first = batch * T * 3u * C + head * D;
  let q = first + min(rows, vec4u(T - 1u)) * 3u * C;
  let scale = 1.0 / sqrt(f32(D));

  var o0 = mat4x4f();
  var o1 = mat4x4f();
  var o2 = mat4x4f();
  var o3 = mat4x4f();
  var o4 = mat4x4f();
  var o5 = mat4x4f();
  var o6 = mat4x4f();
  var o7 = mat4x4f();
  var peak = vec4f(LOW);
  var sum = vec4f();
  for (var key0 = 0u; key0 <= row0; key0 += 4u) {
    let keys = key0 + lanes;
    let k = first + C + min(keys, vec4u(T - 1u)) * 3u * C;
    var s = mat4x4f();
    for (var d = 0u; d < D; d += 4u) { s += transpose(rows4(k, d)) * rows4(q, d); }
    s = mat4x4f(
      select(vec4f(LOW), s[0] * scale, keys <= vec4u(rows.x)),
      select(vec4f(LOW), s[1] * scale, keys <= vec4u(rows.y)),
      select(vec4f(LOW), s[2] * scale, keys <= vec4u(rows.z)),
      select(vec4f(LOW), s[3] * scale, keys <= vec4u(rows.w)),
    );
    let new_peak = max(peak, vec4f(top(s[0]), top(s[1]), top(s[2]), top(s[3])));
    let fade = exp(max(peak - new_peak, vec4f(-100.0)));
    let p = mat4x4f(
      weights(s[0], new_peak.x),
      weights(s[1], new_peak.y),
      weights(s[2], new_peak.z),
      weights(s[3], new_peak.w),
    );
    sum = sum * fade + vec4f(1.0) * p;
    peak = new_peak;
    let v = k + C;
    add(&o0, fade, v, dim, p);
    add(&o1, fade, v, dim + 4u, p);
    add(&o2, fade, v, dim + 8u, p);
    add(&o3, fade, v, dim + 12u, p);
    if (WIDE) {
      add(&o4, fade, v, dim + 16u, p);
      add(&o5, fade, v, dim + 20u, p);
      add(&o6, fade, v, dim + 24u, p);
      add(&o7, fade, v, dim + 28u, p);
    }
  }

  for (var r = 0u; r < 4u && row0 + r < T; r++) {
    let row = row0 + r;
    if (dim == 0u) { lse[(batch * H + head) * T + row] = peak[r] + log(sum[r]); }
    let to = (batch * T + row) * C + head * D;
    store4(to, dim, o0[r] / sum[r]);
    store4(to, dim + 4u, o1[r] / sum[r]);
    store4(to, dim + 8u, o2[r] / sum[r]);
    store4(to, dim + 12u, o3[r] / sum[r]);
    if (WIDE) {
      store4(to, dim + 16u, o4[r] / sum[r]);
      store4(to, dim + 20u, o5[r] / sum[r]);
      store4(to, dim + 24u, o6[r] / sum[r]);
      store4(to, dim + 28u, o7[r] / sum[r]);
    }
  }
}

// o = o·fade + (four values at dimensions d …)·p, where there are such dimensions.
fn add(o: ptr<function, mat4x4f>, fade: vec4f, v: vec4u, d: u32, p: mat4x4f) {
  if (d >= D) { return; }
  let faded = mat4x4f((*o)[0] * fade.x, (*o)[1] * fade.y, (*o)[2] * fade.z, (*o)[3] * fade.w);
  *o = faded + rows4(v, d) * p;
}

// exp(s - peak), and 0 where the mask stands.
fn weights(s: vec4f, peak: f32) -> vec4f {
  return select(vec4f(), exp(s - peak), s > vec4f(0.5 * LOW));
}

fn store4(to: u32, d: u32, v: vec4f) {
  if (d < D) { out[to + d] = v.x; }
  if (d + 1u < D) { out[to + d + 1u] = v.y; }
  if (d + 2u < D) { out[to + d + 2u] = v.z; }
  if (d + 3u < D) { out[to + d + 3u] = v.w; }
}
