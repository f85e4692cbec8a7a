// Multiply-adds on registers and nothing else: what the adapter could reach at most. Every invocation runs
// STEPS steps of 2 independent chains of vec4f, or of 8 when MANY, each x = x·factor + addend; 8 FLOPs a
// chain and step. The operands come from memory, so nothing can be computed beforehand; with 0.5 and 0.5 all
// chains stay at 1.

override STEPS: u32;
override MANY: bool = false;

@group(0) @binding(0) var<storage, read> operands: array<vec4f>;  // start, factor, addend
@group(0) @binding(1) var<storage, read_write> sums: array<vec4f>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let factor = operands[1];
  let addend = operands[2];
  var x0 = operands[0];
  var x1 = x0 + addend;
  var x2 = x1 + addend;
  var x3 = x2 + addend;
  var x4 = x3 + addend;
  var x5 = x4 + addend;
  var x6 = x5 + addend;
  var x7 = x6 + addend;
  for (var i = 0u; i < STEPS; i++) {
    x0 = fma(x0, factor, addend);
    x1 = fma(x1, factor, addend);
    if (MANY) {
      x2 = fma(x2, factor, addend);
      x3 = fma(x3, factor, addend);
      x4 = fma(x4, factor, addend);
      x5 = fma(x5, factor, addend);
      x6 = fma(x6, factor, addend);
      x7 = fma(x7, factor, addend);
    }
  }
  sums[id.x] = ((x0 + x1) + (x2 + x3)) + ((x4 + x5) + (x6 + x7));
}
