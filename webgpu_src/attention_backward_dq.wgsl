// dq of causal attention, into the first third of dqkv (B, T, 3C). Probabilities are computed again from
// lse: p = exp(q·k/sqrt(D) - lse), ds = p·(dout·v - delta), dq = ds·k/sqrt(D), delta each row's dout·out
// (Dao et al. 2022). Also delta (B, H, T) for attention_backward_dkv, there with the row's sum of ds added:
// it is 0 but for what p and out were rounded to, and what is left of it would be the key bias's gradient.
// One invocation per 4 query rows × up to 16 of a head's D dimensions (32 when WIDE, which computes fewer
// scores twice and needs twice the registers); it walks over blocks of 4 keys.
// From the fastest: chunk of dimensions, tile of rows, head, batch; workgroups are folded into two
// dimensions. A matrix here holds four rows as its columns.

override B: u32;
override T: u32;
override H: u32;
override D: u32;
override VEC4: bool = false;  // D is a multiple of 4
override WIDE: bool = false;
override WG: u32 = 64u;

@group(0) @binding(0) var<storage, read> qkv: array<vec4f>;   // (B, T, 3C)
@group(0) @binding(1) var<storage, read> out: array<vec4f>;   // (B, T, C)
@group(0) @binding(2) var<storage, read> dout: array<vec4f>;  // (B, T, C)
@group(0) @binding(3) var<storage, read> lse: array<f32>;     // (B, H, T)
@group(0) @binding(4) var<storage, read_write> delta: array<f32>;
@group(0) @binding(5) var<storage, read_write> dqkv: array<f32>;

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

fn out_rows(i: vec4u, d: u32) -> mat4x4f {
  if (VEC4) {
    let at = (i + d) / 4u;
    return mat4x4f(out[at.x], out[at.y], out[at.z], out[at.w]);
  }
  return transpose(mat4x4f(out_at(i, d), out_at(i, d + 1u), out_at(i, d + 2u), out_at(i, d + 3u)));
}

fn out_at(i: vec4u, d: u32) -> vec4f {
  let at = i + min(d, D - 1u);
  let j = at / 4u;
  let k = at % 4u;
  return select(vec4f(), vec4f(out[j.x][k.x], out[j.y][k.y], out[j.z][k.z], out[j.w][k.w]), d < D);
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
  let row0 = rest % tiles * 4u;
  rest /= tiles;
  let head = rest % H;
  let batch = rest / H;
  if (batch >= B) { return; }

  let C = H * D;
  let lanes = vec4u(0u, 1u, 2u, 3u);
  let rows = row0 + lanes;
  let real_rows = min(rows, vec4u(T - 1u));
  let first = batch * T * 3u * C + head * D;
  let q = first + real_rows * 3u * C;
  let o = (batch * T + real_rows) * C + head * D;
  let stats = (batch * H + head) * T + real_rows;
  let scale = 1.0 / sqrt(f32(D));
  let log_sum = vec4f(lse[stats.x], lse[stats.y], lse[stats.z], lse[stats.w]);

  var dots = vec4f();
  for (var d = 0u; d < D; d += 4u) {
    let x = out_rows(o, d);
    let dx = dout_rows(o, d);
    dots += vec4f(dot(x[0], dx[0]), dot(x[1], dx[1]), dot(x[2], dx[2]), dot(x[3], dx[3]));
  }

  var left = vec4f();
  var dq0 = mat4x4f();
  var dq1 = mat4x4f();
  var dq2 = mat4x4f();
  var dq3 = mat4x4f();
  var dq4 = mat4x4f();
  var dq5 = mat4x4f();
  var dq6 = mat4x4f();
  var dq7 = mat4x4f();
  for (var key0 = 0u; key0 <= row0; key0 += 4u) {
    let keys = key0 + lanes;
    let k = first + C + min(keys, vec4u(T - 1u)) * 3u * C;
    let v = k + C;
    var s = mat4x4f();
    var dp = mat4x4f();
    for (var d = 0u; d < D; d += 4u) {
      s += transpose(qkv_rows(k, d)) * qkv_rows(q, d);
      dp += transpose(qkv_rows(v, d)) * dout_rows(o, d);
    }
    let ds = mat4x4f(
      weights(s[0] * scale - log_sum.x, keys <= vec4u(rows.x)) * (dp[0] - dots.x),
      weights(s[1] * scale - log_sum.y, keys <= vec4u(rows.y)) * (dp[1] - dots.y),
      weights(s[2] * scale - log_sum.z, keys <= vec4u(rows.z)) * (dp[2] - dots.z),
      weights(s[3] * scale - log_sum.w, keys <= vec4u(rows.w)) * (dp[3] - dots.w),
    );
    left += vec4f(1.0) * ds;
    add(&dq0, k, dim, ds);
    add(&dq1, k, dim + 4u, ds);
    add(&dq2, k, dim + 8u, ds);
    add(&dq3, k, dim + 12u, ds);
    if (WIDE) {
      add(&dq4, k, dim + 16u, ds);
      add(&dq5, k, dim + 20u, ds);
      add(&dq6, k, dim + 24u, ds);
      add(&dq7, k, dim + 28u, ds);
    }
  }

  for (var r = 0u; r < 4u && row0 + r < T; r++) {
    if (dim == 0u) { delta[stats[r]] = dots[r] + left[r]; }
    store4(q[r], dim, dq0[r] * scale);
    store4(q[r], dim + 4u, dq1[r] * scale);
    store4(q[r], dim + 8u, dq2[r] * scale);
    store4(q[r], dim + 12u, dq3[r] * scale);
    if (WIDE) {
      store4(q[r], dim + 16u, dq4[r] * scale);
      store4(q[r], dim + 20u, dq5[r] * scale);
      store4(q[r], dim + 24u, dq6[r] * scale);
      store4(q[r], dim + 28u, dq7[r] * scale);
    }
  }
}

// sum += (four keys at dimensions d …)·ds, where there are such dimensions.
fn add(sum: ptr<function, mat4x4f>, k: vec4u, d: u32, ds: mat4x4f) {
  if (d < D) { *sum += qkv_rows(k, d) * ds; }
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
