// For each of ROWS rows of V logits: losses[row] = log(sum of exp) - logit of the target, and in place
// of the logits their gradient (softmax - onehot(target)) / ROWS (crossentropy_backward), so that the
// probabilities never exist.
// LANES invocations share a row, GROUP rows share a workgroup: x is the lane, y the row within it.

override ROWS: u32;
override V: u32;
override LANES: u32 = 1u;  // a power of two; LANES·GROUP at most 256
override GROUP: u32 = 64u;

@group(0) @binding(0) var<storage, read> targets: array<u32>;
@group(0) @binding(1) var<storage, read_write> logits: array<f32>;
@group(0) @binding(2) var<storage, read_write> losses: array<f32>;

var<workgroup> parts: array<f32, 256>;

@compute @workgroup_size(LANES, GROUP)
fn main(
  @builtin(local_invocation_id) local: vec3u,
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
) {
  let asked = (group.y * groups.x + group.x) * GROUP + local.y;
  let row = min(asked, ROWS - 1u);
  let start = row * V;
  var top = logits[start];
  for (var v = local.x; v < V; v += LANES) { top = max(top, logits[start + v]); }
  top = row_max(top, local);
  var sum = 0.0;
  for (var v = local.x; v < V; v += LANES) { sum += exp(logits[start + v] - top); }
  sum = row_sum(sum, local);
  let hit = targets[row];
  if (asked < ROWS && local.x == hit % LANES) {
    losses[row] = log(sum) - (logits[start + hit] - top);
  }
  if (asked >= ROWS) { return; }
  crossentropy_backward(start, local.x, hit, top, sum);
}

// A lane overwrites only the logits that it alone reads from here on.
fn crossentropy_backward(start: u32, lane: u32, hit: u32, top: f32, sum: f32) {
  for (var v = lane; v < V; v += LANES) {
    let p = exp(logits[start + v] - top) / sum;
    logits[start + v] = (p - select(0.0, 1.0, v == hit)) / f32(ROWS);
  }
}

fn row_max(part: f32, local: vec3u) -> f32 {
  if (LANES == 1u) { return part; }
  let own = local.y * LANES + local.x;
  parts[own] = part;
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (local.x < half) { parts[own] = max(parts[own], parts[own + half]); }
  }
  workgroupBarrier();
  let top = parts[local.y * LANES];
  workgroupBarrier();
  return top;
}

// The sum over a row's lanes, the same in all of them, always added in the same order.
fn row_sum(part: f32, local: vec3u) -> f32 {
  if (LANES == 1u) { return part; }
  let own = local.y * LANES + local.x;
  parts[own] = part;
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (local.x < half) { parts[own] += parts[own + half]; }
  }
  workgroupBarrier();
  return parts[local.y * LANES];
}
