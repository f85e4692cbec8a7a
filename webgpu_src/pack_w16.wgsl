// The copy of packed halves from the float32 parameters, after they were written from outside; the step
// itself keeps it up to date in adamw_w16.
// One invocation per vector of four floats; workgroups of 64 are folded into two dimensions. What a half
// cannot hold is counted in clip.overflows.

override VECTORS: u32;  // floats / 4

struct Clip {
  shrink: f32,
  factor: f32,
  overflows: atomic<u32>,
}

@group(0) @binding(0) var<storage, read_write> clip: Clip;
@group(0) @binding(1) var<storage, read> param: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> param16: array<vec2u>;  // four halves each

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
  let h = halves(param[i]);
  param16[i] = vec2u(h.x | (h.y << 16u), h.z | (h.w << 16u));
  let far = dot(select(vec4u(0u), vec4u(1u), beyond(param[i])), vec4u(1u));
  if (far > 0u) { atomicAdd(&clip.overflows, far); }
}
