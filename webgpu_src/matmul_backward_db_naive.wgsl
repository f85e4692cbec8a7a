// db (ROWS, COLS) = a (INNER, ROWS)ᵀ · dc (INNER, COLS); and dbias (COLS), the column sums of dc.
// One invocation per element of db: x runs along its columns, y along its rows. Row 0 sums dbias.

override ROWS: u32;
override INNER: u32;
override COLS: u32;
override BIAS: bool = false;  // dbias is asked for
override WX: u32 = 8u;
override WY: u32 = 8u;

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> dc: array<f32>;
@group(0) @binding(2) var<storage, read_write> db: array<f32>;
@group(0) @binding(3) var<storage, read_write> dbias: array<f32>;

@compute @workgroup_size(WX, WY)
fn main(@builtin(global_invocation_id) id: vec3u) {
  if (id.y >= ROWS || id.x >= COLS) { return; }
  var sum = 0.0;
  for (var k = 0u; k < INNER; k++) {
    sum += a[k * ROWS + id.y] * dc[k * COLS + id.x];
  }
  db[id.y * COLS + id.x] = sum;
  if (BIAS && id.y == 0u) {
    var total = 0.0;
    for (var k = 0u; k < INNER; k++) {
      total += dc[k * COLS + id.x];
    }
    dbias[id.x] = total;
  }
}
