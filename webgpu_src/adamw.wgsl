// One AdamW update of all parameters: decoupled decay where the block's bit says so, eps outside the
// root, the clip factor applied on the way in.
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

@group(0) @binding(0) var<uniform> recipe: Recipe;
@group(0) @binding(1) var<storage, read> facts: Facts;
@group(0) @binding(2) var<storage, read> clip: array<f32>;  // two factors
@group(0) @binding(3) var<storage, read> decay: array<u32>;
@group(0) @binding(4) var<storage, read> grad: array<vec4f>;
@group(0) @binding(5) var<storage, read_write> param: array<vec4f>;
@group(0) @binding(6) var<storage, read_write> m: array<vec4f>;
@group(0) @binding(7) var<storage, read_write> v: array<vec4f>;

@compute @workgroup_size(64)
fn main(
  @builtin(local_invocation_index) local: u32,
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
) {
  let i = (group.y * groups.x + group.x) * 64u + local;
  if (i >= VECTORS) { return; }
  let g = grad[i] * clip[0] * clip[1];
  let m_new = recipe.beta1 * m[i] + recipe.one_minus_beta1 * g;
  let v_new = recipe.beta2 * v[i] + recipe.one_minus_beta2 * g * g;
  let m_hat = m_new * facts.correction1;
  let v_hat = v_new * facts.correction2;
  let block = i / 16u;
  let decays = ((decay[block / 32u] >> (block % 32u)) & 1u) == 1u;
  let wd = select(0.0, recipe.weight_decay, decays);
  m[i] = m_new;
  v[i] = v_new;
  param[i] -= recipe.lr * (m_hat / (sqrt(v_hat) + recipe.eps) + wd * param[i]);
}
