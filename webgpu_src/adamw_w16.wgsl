// One AdamW update of all parameters, and their copy of packed halves, which the products read: adamw with
// one more store. What a half cannot hold is counted in clip.overflows.
// Decoupled decay where the block's bit says so, eps outside the root, the clip factor applied on the way in.
// One invocation per vector of four floats of the flat arrays; workgroups of 64 are folded into two
// dimensions. Tensors start at multiples of 64 floats: bit k of `decay` stands for the floats
// 64·k … 64·k + 63. Gaps hold zeros, and zeros stay zeros.

override VECTORS: u32;  // floats / 4

struct Recipe {
  lr: f32,
  beta1: f32,
  one_minus_beta1: f32,
  beta2: f32,
  one_minus_beta2: f32,
  eps: f32,
  weight_decay: f32,
  grad_clip: f32,
}

// What changes from step to step.
struct Facts {
  slot: u32,
  correction1: f32,  // 1 / (1 - beta1^t)
  correction2: f32,  // 1 / (1 - beta2^t)
}

struct Clip {
  shrink: f32,
  factor: f32,
  overflows: atomic<u32>,
}

@group(0) @binding(0) var<uniform> recipe: Recipe;
@group(0) @binding(1) var<storage, read> facts: Facts;
@group(0) @binding(2) var<storage, read_write> clip: Clip;
@group(0) @binding(3) var<storage, read> decay: array<u32>;
@group(0) @binding(4) var<storage, read> grad: array<vec4f>;
@group(0) @binding(5) var<storage, read_write> param: array<vec4f>;
@group(0) @binding(6) var<storage, read_write> m: array<vec4f>;
@group(0) @binding(7) var<storage, read_write> v: array<vec4f>;
@group(0) @binding(8) var<storage, read_write> param16: array<vec2u>;  // four halves each

// Halves of four floats, the nearest ones, ties to even, subnormal ones too: WGSL's own packing may round
// the other way and flush.
fn halves(x: vec4f) -> vec4u {
  let bits = bitcast<vec4u>(x);
  let size = bits & vec4u(0x7fffffffu);
  let rebased = size - vec4u(0x38000000u);  // exponents count from 15 instead of 127
  let normal = (rebased + vec4u(0xfffu) + ((rebased >> vec4u(13u)) & vec4u(1u))) >> vec4u(13u);
  // Below 2^-14 a half counts units of 2^-24: the significand, shifted by what is missing.
  let shift = vec4u(126u) - clamp(size >> vec4u(23u), vec4u(101u), vec4u(112u));
  let significand = (size & vec4u(0x7fffffu)) | vec4u(0x800000u);
  let units = significand >> shift;
  let rest = significand & ((vec4u(1u) << shift) - vec4u(1u));
  let middle = vec4u(1u) << (shift - vec4u(1u));
  let odd = (units & vec4u(1u)) == vec4u(1u);
  let up = select(vec4u(0u), vec4u(1u), (rest > middle) | ((rest == middle) & odd));
  let small = select(units + up, vec4u(0u), size < vec4u(0x33000000u));  // below 2^-25
  let finite = select(normal, small, size < vec4u(0x38800000u));
  let special = select(vec4u(0x7c00u), vec4u(0x7e00u), size > vec4u(0x7f800000u));
  let magnitude = select(finite, special, size >= vec4u(0x477ff000u));  // 65520
  return magnitude | ((bits >> vec4u(16u)) & vec4u(0x8000u));
}

// Whether each is beyond 65504, the largest half, infinite or not a number.
fn beyond(x: vec4f) -> vec4<bool> {
  return (bitcast<vec4u>(x) & vec4u(0x7fffffffu)) > vec4u(0x477fe000u);
}

@compute @workgroup_size(64)
fn main(
  @builtin(local_invocation_index) local: u32,
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
) {
  let i = (group.y * groups.x + group.x) * 64u + local;
  if (i >= VECTORS) { return; }
  let g = grad[i] * clip.shrink * clip.factor;
  let m_new = recipe.beta1 * m[i] + recipe.one_minus_beta1 * g;
  let v_new = recipe.beta2 * v[i] + recipe.one_minus_beta2 * g * g;
  let m_hat = m_new * facts.correction1;
  let v_hat = v_new * facts.correction2;
  let block = i / 16u;
  let decays = ((decay[block / 32u] >> (block % 32u)) & 1u) == 1u;
  let wd = select(0.0, recipe.weight_decay, decays);
  m[i] = m_new;
  v[i] = v_new;
  let p = param[i];
  let p_new = p - recipe.lr * (m_hat / (sqrt(v_hat) + recipe.eps) + wd * p);
  param[i] = p_new;
  let h = halves(p_new);
  param16[i] = vec2u(h.x | (h.y << 16u), h.z | (h.w << 16u));
  let far = dot(select(vec4u(0u), vec4u(1u), beyond(p_new)), vec4u(1u));
  if (far > 0u) { atomicAdd(&clip.overflows, far); }
}
