// The step's scalars: mean loss, global gradient norm, clip factor. The gradients themselves stay as
// they are; adamw multiplies by the two parts of the factor, whose product may be too small for a float.
// One workgroup of 256: every invocation sums a strided share of the losses (ROWS) and of the partial
// squares (PARTIALS); the first 64 then take the others' shares, and add theirs in halves. Workgroup memory
// is no larger than that needs: filling it with zeros, which WebGPU asks for, is code to compile on some.

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
@group(0) @binding(3) var<storage, read> partials: array<vec4f>;        // as from gradnorm_partial
@group(0) @binding(4) var<storage, read_write> clip: array<f32>;       // two factors
@group(0) @binding(5) var<storage, read_write> results: array<vec2f>;  // (loss, norm), a ring

var<workgroup> parts: array<vec4f, 64>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) local: u32) {
  var share = vec4f();
  for (var i = local; i < PARTIALS; i += 256u) { share += partials[i]; }
  for (var i = local; i < ROWS; i += 256u) { share.w += losses[i]; }
  for (var quarter = 3u; quarter > 0u; quarter--) {
    if (local / 64u == quarter) { parts[local % 64u] = share; }
    workgroupBarrier();
    if (local < 64u) { share += parts[local]; }
    workgroupBarrier();
  }
  if (local < 64u) { parts[local] = share; }
  for (var half = 32u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (local < half) { parts[local] += parts[local + half]; }
  }
  if (local == 0u) {
    let norm = root(parts[0].xyz);
    var factor = 1.0;
    var shrink = 1.0;
    if (recipe.grad_clip > 0.0 && norm > recipe.grad_clip) {
      shrink = select(1.0, 0x1p-64f, norm > 0x1p64f);
      factor = recipe.grad_clip / ((norm + 1e-6) * shrink);
    }
    clip[0] = shrink;
    clip[1] = factor;
    results[facts.slot] = vec2f(parts[0].w / f32(ROWS), norm);
  }
}

// The norm from the squares of small gradients · 2^75, of ordinary ones, and of large ones / 2^80. Those of
// each kind are nothing beside enough of the next. A NaN is an ordinary one and comes through. Ordinary ones
// are scaled before they are squared: compilers fold two factors into one that no float holds.
fn root(squares: vec3f) -> f32 {
  let ordinary = sqrt(squares.y);
  if (squares.z > 0.0) {
    let down = ordinary * 0x1p-80f;
    return sqrt(squares.z + down * down) * 0x1p80f;
  }
  if (!(squares.y < 0x1p-40f)) { return ordinary; }
  let up = ordinary * 0x1p75f;
  return sqrt(squares.x + up * up) * 0x1p-75f;
}
