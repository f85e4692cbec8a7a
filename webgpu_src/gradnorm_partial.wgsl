// partials[i] = the sum of the squares of the gradients in the vectors i, i + PARTIALS, i + 2·PARTIALS, …
// in three parts, x² of small gradients scaled up, of ordinary ones, and of large ones scaled down, so
// that nothing over- or underflows where the norm itself does not (Blue 1978, as in LAPACK's slassq).
// One invocation per partial sum. Gaps between tensors hold zeros and change nothing.

override VECTORS: u32;  // floats / 4
override PARTIALS: u32;

@group(0) @binding(0) var<storage, read> grad: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> partials: array<vec4f>;  // (small, ordinary, large, 0)

// Squares up to 2^92 of 2^32 gradients have a finite sum, as have the large ones times 2^-80 and the small
// ones times 2^75. Beside squares of 2^-100 and more, those that underflow are nothing.
const SMALL = 0x1p-63f;
const LARGE = 0x1p46f;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
  if (id.x >= PARTIALS) { return; }
  var sums = vec4f();
  for (var i = id.x; i < VECTORS; i += PARTIALS) {
    let x = abs(grad[i]);
    let square = dot(x, x);
    if (square >= 0x1p-100f && square <= 0x1p92f) {
      sums.y += square;
      continue;
    }
    let small = select(vec4f(), x * 0x1p75f, x < vec4f(SMALL));
    let large = select(vec4f(), x * 0x1p-80f, x > vec4f(LARGE));
    let ordinary = select(x, vec4f(), (x < vec4f(SMALL)) | (x > vec4f(LARGE)));
    sums += vec4f(dot(small, small), dot(ordinary, ordinary), dot(large, large), 0.0);
  }
  partials[id.x] = sums;
}
