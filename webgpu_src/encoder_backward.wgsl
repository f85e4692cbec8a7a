// dwte[v, c] += sum of dx over the positions whose token is v (dwte already holds the tied head's part);
// dwpe[t, c] = sum of dx over the batch at position t.
// `order` lists the positions by token, `starts` (V+1) says where each token's positions begin in it:
// a counting sort of the batch. Every sum runs in the order of positions, without atomics.
// One invocation per element of dwte, then of dwpe; workgroups of 256 are folded into two dimensions.

override B: u32;
override T: u32;
override C: u32;
override V: u32;

@group(0) @binding(0) var<storage, read> order: array<u32>;
@group(0) @binding(1) var<storage, read> starts: array<u32>;
@group(0) @binding(2) var<storage, read> dx: array<f32>;
@group(0) @binding(3) var<storage, read_write> dwte: array<f32>;
@group(0) @binding(4) var<storage, read_write> dwpe: array<f32>;

@compute @workgroup_size(256)
fn main(
  @builtin(local_invocation_index) local: u32,
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
) {
  let i = (group.y * groups.x + group.x) * 256u + local;
  let c = i % C;
  let row = i / C;
  var sum = 0.0;
  if (row < V) {
    for (var k = starts[row]; k < starts[row + 1u]; k++) {
      sum += dx[order[k] * C + c];
    }
    dwte[i] += sum;
  } else if (row < V + T) {
    let t = row - V;
    for (var batch = 0u; batch < B; batch++) {
      sum += dx[(batch * T + t) * C + c];
    }
    dwpe[t * C + c] = sum;
  }
}
