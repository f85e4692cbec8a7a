// The step's scalars: mean loss, global gradient norm, clip factor. The gradients themselves stay as
// they are; adamw multiplies by the factor.
// One workgroup of 256: every invocation sums a strided share of the losses (ROWS) and of the partial
// squares (PARTIALS); the shares are then added in halves.

override ROWS: u32;
override PARTIALS: u32;

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
  slot: u32,         // where in the ring this step's results go
  correction1: f32,  // 1 / (1 - beta1^t)
  correction2: f32,  // 1 / (1 - beta2^t)
}

@group(0) @binding(0) var<uniform> recipe: Recipe;
@group(0) @binding(1) var<storage, read> facts: Facts;
@group(0) @binding(2) var<storage, read> losses: array<f32>;
@group(0) @binding(3) var<storage, read> partials: array<f32>;
@group(0) @binding(4) var<storage, read_write> clip: array<f32>;
@group(0) @binding(5) var<storage, read_write> results: array<vec2f>;  // (loss, norm), a ring

var<workgroup> parts: array<vec2f, 256>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) local: u32) {
  var share = vec2f();
  for (var i = local; i < ROWS; i += 256u) { share.x += losses[i]; }
  for (var i = local; i < PARTIALS; i += 256u) { share.y += partials[i]; }
  parts[local] = share;
  for (var half = 128u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (local < half) { parts[local] += parts[local + half]; }
  }
  if (local == 0u) {
    let norm = sqrt(parts[0].y);
    var factor = 1.0;
    if (recipe.grad_clip > 0.0 && norm > recipe.grad_clip) {
      factor = recipe.grad_clip / (norm + 1e-6);
    }
    clip[0] = factor;
    results[facts.slot] = vec2f(parts[0].x / f32(ROWS), norm);
  }
}
