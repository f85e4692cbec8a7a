// dk and dv of causal attention, into the last two thirds of dqkv (B, T, 3C). Probabilities are computed
// again from lse: p = exp(q·k/sqrt(D) - lse), ds = p·(dout·v - delta), dv = pᵀ·dout, dk = dsᵀ·q/sqrt(D)
// (Dao et al. 2022).
// One invocation per 4 keys × up to 16 of a head's D dimensions (32 when WIDE, which computes fewer scores
// twice and needs twice the registers); it walks over blocks of 4 query rows.
// From the fastest: chunk of dimensions, tile of keys, head, batch; workgroups are folded into two
// dimensions. A matrix here holds four rows as its columns.

override B: u32;
override T: u32;
override H: u32;
override D: u32;
override VEC4: bool = false;  // D is a multiple of 4
override WIDE: bool = false;
override WG: u32 = 64u;

@group(0) @binding(0) var<storage, read> qkv: array<vec4f>;   // (B, T, 3C)
@group(0) @binding(1) var<storage, read> dout: array<vec4f>;  // (B, T, C)
@group(0) @binding(2) var<storage, read> lse: array<f32>;     // (B, H, T)
@group(0) @binding(3) var<storage, read> delta: array<f32>;   // (B, H, T)
@group(0) @binding(4) var<storage, read_write> dqkv: array<f32>;

// Dimensions d … d+3 of four vectors that begin at floats i; zeros beyond D.
fn qkv_rows(i: vec4u, d: u32) -> mat4x4f {
  if (VEC4) {
    let at = (i + d) / 4u;
    return mat4x4f(qkv[at.x], qkv[at.y], qkv[at.z], qkv[at.w]);
  }
  return transpose(mat4x4f(qkv_at(i, d), qkv_at(i, d + 1u), qkv_at(i, d + 2u), qkv_at(i, d + 3u)));
}

fn qkv_at(i: vec4u, d: u32) -> vec4f {
  let at = i + min(d, D - 1u);
  let j = at / 4u;
  let k = at % 4u;
  return select(vec4f(), vec4f(qkv[j.x][k.x], qkv[j.y][k.y], qkv[j.z][k.z], qkv[j.w][k.w]), d < D);
}

fn dout_rows(i: vec4u, d: u32) -> mat4x4f {
  if (VEC4) {
    let at = (i + d) / 4u;
    return mat4x4f(dout[at.x], dout[at.y], dout[at.z], dout[at.w]);
  }
  return transpose(
    mat4x4f(dout_at(i, d), dout_at(i, d + 1u), dout_at(i, d + 2u), dout_at(i, d + 3u)));
}

fn dout_at(i: vec4u, d: u32) -> vec4f {
  let at = i + min(d, D - 1u);
  let j = at / 4u;
  let k = at % 4u;
  return select(
    vec4f(), vec4f(dout[j.x][k.x], dout[j.y][k.y], dout[j.z][k.z], dout[j.w][k.w]), d < D);
}

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
  let key0 = rest % tiles * 4u;
  rest /= tiles;
  let head = rest % H;
  let batch = rest / H;
  if (batch >= B) { return; }

  let C = H * D;
  let lanes = vec4u(0u, 1u, 2u, 3u);
  let keys = key0 + lanes;
  let first = batch * T * 3u * C + head * D;
  let k = first + C + min(keys, vec4u(T - 1u)) * 3u * C;
  let v = k + C;
  let scale = 1.0 / sqrt(f32(D));

  var dk0 = mat4x4f();
  var dk1 = mat4x4f();
  var dk2 = mat4x4f();
  var dk3 = mat4x4f();
  var dk4 = mat4x4f();
  var dk5 = mat4x4f();
  var dk6 = mat4x4f();
  var dk7 = mat4x4f();
  var dv0 = mat4x4f();
  var dv1 = mat4x4f();
  var dv2 = mat4x4f();
  var dv3 = mat4x4f();
  var dv4 = mat4x4f();
  var dv5 = mat4x4f();
  var dv6 = mat4x4f();
  var dv7 = mat4x4f();
  for (var row0 = key0; row0 < T; row0 += 4u) {
    let rows = row0 + lanes;
    let real_rows = min(rows, vec4u(T - 1u));
    let q = first + real_rows * 3u * C;
    let o = (batch * T + real_rows) * C + head * D;
    let stats = (batch * H + head) * T + real_rows;
    let log_sum = vec4f(lse[stats.x], lse[stats.y], lse[stats.z], lse[stats.w]);
    let dots = vec4f(delta[stats.x], delta[stats.y], delta[stats.z], delta[stats.w]);
    // Row r of a block is column r here; rows past T allow no key.
    var s = mat4x4f();
    var dp = mat4x4f();
    for (var d = 0u; d < D; d += 4u) {
      s += transpose(qkv_rows(k, d)) * qkv_rows(q, d);
      dp += transpose(qkv_rows(v, d)) * dout_rows(o, d);
    }
    let last = select(vec4u(), rows + 1u, rows < vec4u(T));
    let p = mat4x4f(
      weights(s[0] * scale - log_sum.x, keys < vec4u(last.x)),
      weights(s[1] * scale - log_sum.y, keys < vec4u(last.y)),
      weights(s[2] * scale - log_sum.z, keys < vec4u(last.z)),
      weights(s[3] * scale - log_sum.w, keys < vec4u(last.w)),
    );
    let ds = transpose(mat4x4f(
      p[0] * (dp[0] - dots.x),
      p[1] * (dp[1] - dots.y),
      p[2] * (dp[2] - dots.z),
      p[3] * (dp[3] - dots.w),
    ));
    let pt = transpose(p);
    add(&dk0, &dv0, q, o, dim, ds, pt);
    add(&dk1, &dv1, q, o, dim + 4u, ds, pt);
    add(&dk2, &dv2, q, o, dim + 8u, ds, pt);
    add(&dk3, &dv3, q, o, dim + 12u, ds, pt);
    if (WIDE) {
      add(&dk4, &dv4, q, o, dim + 16u, ds, pt);
      add(&dk5, &dv5, q, o, dim + 20u, ds, pt);
      add(&dk6, &dv6, q, o, dim + 24u, ds, pt);
      add(&dk7, &dv7, q, o, dim + 28u, ds, pt);
    }
  }

  for (var c = 0u; c < 4u && key0 + c < T; c++) {
    store4(k[c], dim, dk0[c] * scale);
    store4(v[c], dim, dv0[c]);
    store4(k[c], dim + 4u, dk1[c] * scale);
    store4(v[c], dim + 4u, dv1[c]);
    store4(k[c], dim + 8u, dk2[c] * scale);
    store4(v[c], dim + 8u, dv2[c]);
    store4(k[c], dim + 12u, dk3[c] * scale);
    store4(v[c], dim + 12u, dv3[c]);
    if (WIDE) {
      store4(k[c], dim + 16u, dk4[c] * scale);
      store4(v[c], dim + 16u, dv4[c]);
      store4(k[c], dim + 20u, dk5[c] * scale);
      store4(v[c], dim + 20u, dv5[c]);
      store4(k[c], dim + 24u, dk6[c] * scale);
      store4(v[c], dim + 24u, dv6[c]);
      store4(k[c], dim + 28u, dk7[c] * scale);
      store4(v[c], dim + 28u, dv7[c]);
    }
  }
}

// dk += (four queries at dimensions d …)·ds and dv += (four dout)·p, where there are such dimensions.
fn add(
  dk: ptr<function, mat4x4f>, dv: ptr<function, mat4x4f>,
  q: vec4u, o: vec4u, d: u32, ds: mat4x4f, pt: mat4x4f,
) {
  if (d < D) {
    *dk += qkv_rows(q, d) * ds;
    *dv += dout_rows(o, d) * pt;
  }
}

// exp(x) where the mask allows it, else 0.
fn weights(x: vec4f, allowed: vec4<bool>) -> vec4f {
  return select(vec4f(), exp(min(x, vec4f(80.0))), allowed);
}

fn store4(to: u32, d: u32, v: vec4f) {
  if (d < D) { dqkv[to + d] = v.x; }
  if (d + 1u < D) { dqkv[to + d + 1u] = v.y; }
  if (d + 2u < D) { dqkv[to + d + 2u] = v.z; }
  if (d + 3u < D) { dqkv[to + d + 3u] = v.w; }
}
