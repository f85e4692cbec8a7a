// Causal attention per head: softmax(q·kᵀ/sqrt(D))·v. qkv (B,T,3C): q, k, v side by side, heads contiguous.
//
// One chunk is one head of one sequence, made of register tiles. What lies above the diagonal is not
// computed, but for the corners of tiles on it. Nothing of size T×T outlives a chunk: forward keeps each
// row's largest score and the inverse of its sum of exponentials, from which backward makes the same
// probabilities again.

#include "tile.h"

typedef struct {
  float *out, *row_top, *row_inverse;
  const float *qkv;
  float *dqkv;
  const float *dout;
  size_t B, T, C, H, D;
} Args;

// A thread's scratch: operands in panels, and matrices over (query t, key u). Panels are named for what
// they hold and for the index that runs along them (k of the product).
typedef struct {
  size_t square_row;                       // row length of p and dp
  float *q_along_d, *dout_along_d;         // A panels (D, TILE_ROWS queries)
  float *k_along_d, *v_along_d;            // B panels (D, TILE_COLUMNS keys)
  float *q_along_t, *dout_along_t, *k_along_u, *v_along_u; // B panels (T, TILE_COLUMNS of D)
  float *rows;                             // A panel (T keys, TILE_ROWS queries) of p or dp
  float *p, *dp;                           // (T,T): probabilities and their gradient
} Scratch;

EDGE_OF(default_edge, HERE, TILE_ROWS, TILE_COLUMNS)

#define EDGE 8 // a multiple of every tile's sides

// 16 floats more than needed, so that a column's elements do not all fall into the same few cache sets.
static uint64_t square_row(uint64_t T) { return round_up64(T, 16) + 16; }

uint64_t attention_thread_floats(uint64_t T, uint64_t D) {
  uint64_t Tp = round_up64(T, EDGE), Dp = round_up64(D, EDGE);
  return 8 * Tp * Dp + EDGE * Tp + 2 * Tp * square_row(T);
}

static Scratch scratch_of(size_t thread, size_t T, size_t D) {
  size_t Tp = round_up(T, EDGE), Dp = round_up(D, EDGE);
  float *at = work.thread_scratch + thread * work.thread_floats;
  Scratch s = {.square_row = (size_t)square_row(T)};
  float **panels[] = {&s.q_along_d, &s.dout_along_d, &s.k_along_d, &s.v_along_d,
                      &s.q_along_t, &s.dout_along_t, &s.k_along_u, &s.v_along_u};
  for (size_t i = 0; i < sizeof panels / sizeof *panels; i++, at += Tp * Dp) *panels[i] = at;
  s.rows = at, at += EDGE * Tp;
  s.p = at, at += Tp * s.square_row;
  s.dp = at;
  return s;
}

// from (T,D) with rows of `row` floats → A panels along D
static void pack_a(float *to, const float *from, size_t row, size_t T, size_t D) {
  for (size_t t = 0; t < T; t += TILE_ROWS)
    pack_panel(HERE, to + t * D, from + t * row, row, 1, at_most(TILE_ROWS, T - t), D, TILE_ROWS);
}

// → B panels along D, a panel per TILE_COLUMNS rows
static void pack_b_along_d(float *to, const float *from, size_t row, size_t T, size_t D) {
  for (size_t t = 0; t < T; t += TILE_COLUMNS)
    pack_panel(HERE, to + t * D, from + t * row, row, 1, at_most(TILE_COLUMNS, T - t), D, TILE_COLUMNS);
}

// → B panels along T, a panel per TILE_COLUMNS columns
static void pack_b_along_t(float *to, const float *from, size_t row, size_t T, size_t D) {
  for (size_t i = 0; i < D; i += TILE_COLUMNS)
    pack_panel(HERE, to + i * T, from + i, 1, row, at_most(TILE_COLUMNS, D - i), T, TILE_COLUMNS);
}

// Rows t0… of a square matrix = a (queries along D) · b (keys along D), columns 0 to the diagonal's tile.
static void square_rows(float *square, size_t square_row, const float *a, const float *b, size_t t0, size_t D) {
  for (size_t u = 0; u < t0 + TILE_ROWS; u += TILE_COLUMNS)
    tile(HERE, TILE_ROWS, TILE_COLUMNS, FROM_ZERO, 0, D, a + t0 * D, TILE_ROWS, b + u * D, square + t0 * square_row + u,
         square_row);
}

// Rows m… of C (rows of c_row floats, D columns) = a (K, TILE_ROWS) · B panels along K, of which each is
// `length` long and is entered at `from`.
static void output_rows(float *c, size_t c_row, size_t rows, size_t D, size_t K, const float *a, size_t a_step,
                        const float *b, size_t length, size_t from) {
  for (size_t i = 0; i < D; i += TILE_COLUMNS) {
    const float *panel = b + i * length + from * TILE_COLUMNS;
    if (rows < TILE_ROWS || i + TILE_COLUMNS > D)
      default_edge(FROM_ZERO, 0, K, a, a_step, panel, c + i, c_row, rows, D - i);
    else
      tile(HERE, TILE_ROWS, TILE_COLUMNS, FROM_ZERO, 0, K, a, a_step, panel, c + i, c_row);
  }
}

// Lanes u… that are at most t.
INLINE i4 up_to(size_t u, size_t t) {
  return (i4){0, 1, 2, 3} <= (int32_t)(t - u);
}

// ------------------------------------------------------------------------------ forward

static void forward_head(void *args, size_t chunk, size_t thread) {
  const Args *a = args;
  size_t T = a->T, C = a->C, D = a->D, b = chunk / a->H, h = chunk % a->H;
  Scratch s = scratch_of(thread, T, D);
  const float *q = a->qkv + b * T * 3 * C + h * D, *k = q + C, *v = k + C;
  float *out = a->out + b * T * C + h * D;
  float scale = 1.0f / __builtin_sqrtf((float)D);
  pack_a(s.q_along_d, q, 3 * C, T, D);
  pack_b_along_d(s.k_along_d, k, 3 * C, T, D);
  pack_b_along_t(s.v_along_u, v, 3 * C, T, D);
  for (size_t t0 = 0; t0 < T; t0 += TILE_ROWS) {
    size_t rows = at_most(TILE_ROWS, T - t0);
    square_rows(s.p, s.square_row, s.q_along_d, s.k_along_d, t0, D);
    for (size_t r = 0; r < rows; r++) { // softmax without the division
      size_t t = t0 + r, last = t / 4 * 4, u;
      float *p = s.p + t * s.square_row;
      const f4 lowest = splat4(-__builtin_inff());
      f4 high = lowest;
      for (u = 0; u < last; u += 4) high = max4(high, load4(p + u));
      f4 end = select4(up_to(last, t), load4(p + last), lowest);
      float top = max_lanes(max4(high, end)) * scale;
      f4 sum = splat4(0);
      for (u = 0; u < last; u += 4) {
        f4 e = exp4(load4(p + u) * scale - top);
        store4(p + u, e);
        sum += e;
      }
      f4 e = select4(up_to(last, t), exp4(end * scale - top), splat4(0));
      store4(p + last, e);
      a->row_top[chunk * T + t] = top;
      a->row_inverse[chunk * T + t] = 1.0f / sum_lanes(sum + e);
    }
    // A row of the tile that ends earlier than the last is 0 from its end on.
    size_t keys = at_most(t0 + TILE_ROWS, T);
    pack_panel(HERE, s.rows, s.p + t0 * s.square_row, s.square_row, 1, rows, keys, TILE_ROWS);
    output_rows(out + t0 * C, C, rows, D, keys, s.rows, TILE_ROWS, s.v_along_u, T, 0);
    for (size_t r = 0; r < rows; r++) {
      float *o = out + (t0 + r) * C, inverse = a->row_inverse[chunk * T + t0 + r];
      for (size_t i = 0; i < D; i += 4) store_some(o + i, D - i, load_some(o + i, D - i, 0) * inverse);
    }
  }
}

// out (B,T,C); row_top, row_inverse (B,H,T); qkv (B,T,3C)
void attention_forward(float *out, float *row_top, float *row_inverse, const float *qkv, size_t B, size_t T,
                       size_t C, size_t H) {
  Args args = {.out = out, .row_top = row_top, .row_inverse = row_inverse, .qkv = qkv,
               .B = B, .T = T, .C = C, .H = H, .D = C / H};
  pool_run(forward_head, &args, B * H);
}

// ------------------------------------------------------------------------------ backward

// dp = dout·vᵀ, ds = p·(dp − Σ p·dp)/sqrt(D); dq = ds·k, dk = dsᵀ·q, dv = pᵀ·dout. ds takes dp's place.
// Σ p·dp is Σ dout·out as well, but then a row of ds sums to 0 less exactly, and small gradients of q and k,
// of which AdamW makes large steps, suffer.
static void backward_head(void *args, size_t chunk, size_t thread) {
  const Args *a = args;
  size_t T = a->T, C = a->C, D = a->D, b = chunk / a->H, h = chunk % a->H;
  Scratch s = scratch_of(thread, T, D);
  const float *q = a->qkv + b * T * 3 * C + h * D, *k = q + C, *v = k + C;
  const float *dout = a->dout + b * T * C + h * D;
  float *dq = a->dqkv + b * T * 3 * C + h * D, *dk = dq + C, *dv = dk + C;
  float scale = 1.0f / __builtin_sqrtf((float)D);
  pack_a(s.q_along_d, q, 3 * C, T, D);
  pack_a(s.dout_along_d, dout, C, T, D);
  pack_b_along_d(s.k_along_d, k, 3 * C, T, D);
  pack_b_along_d(s.v_along_d, v, 3 * C, T, D);
  pack_b_along_t(s.q_along_t, q, 3 * C, T, D);
  pack_b_along_t(s.k_along_u, k, 3 * C, T, D);
  pack_b_along_t(s.dout_along_t, dout, C, T, D);

  for (size_t t0 = 0; t0 < T; t0 += TILE_ROWS) {
    size_t rows = at_most(TILE_ROWS, T - t0);
    square_rows(s.p, s.square_row, s.q_along_d, s.k_along_d, t0, D);
    square_rows(s.dp, s.square_row, s.dout_along_d, s.v_along_d, t0, D);
    for (size_t r = 0; r < rows; r++) {
      size_t t = t0 + r, last = t / 4 * 4, u;
      float top = a->row_top[chunk * T + t], inverse = a->row_inverse[chunk * T + t];
      float *p = s.p + t * s.square_row, *dp = s.dp + t * s.square_row;
      f4 sum = splat4(0);
      for (u = 0; u < last; u += 4) {
        f4 e = exp4(load4(p + u) * scale - top) * inverse;
        store4(p + u, e);
        sum = madd4(e, load4(dp + u), sum);
      }
      i4 mask = up_to(last, t);
      f4 e = select4(mask, exp4(load4(p + last) * scale - top) * inverse, splat4(0));
      store4(p + last, e);
      f4 d = select4(mask, load4(dp + last), splat4(0));
      float mean = sum_lanes(madd4(e, d, sum));
      for (u = 0; u < last; u += 4) store4(dp + u, load4(p + u) * (load4(dp + u) - mean) * scale);
      store4(dp + last, e * (d - mean) * scale);
    }
    size_t keys = at_most(t0 + TILE_ROWS, T);
    pack_panel(HERE, s.rows, s.dp + t0 * s.square_row, s.square_row, 1, rows, keys, TILE_ROWS);
    output_rows(dq + t0 * 3 * C, 3 * C, rows, D, keys, s.rows, TILE_ROWS, s.k_along_u, T, 0);
  }

  // A key is seen by the queries from it on; a column of p or ds steps from row to row.
  for (size_t u0 = 0; u0 < T; u0 += TILE_ROWS) {
    size_t rows = at_most(TILE_ROWS, T - u0), at = u0 * s.square_row + u0;
    output_rows(dk + u0 * 3 * C, 3 * C, rows, D, T - u0, s.dp + at, s.square_row, s.q_along_t, T, u0);
    output_rows(dv + u0 * 3 * C, 3 * C, rows, D, T - u0, s.p + at, s.square_row, s.dout_along_t, T, u0);
  }
}

// dqkv, qkv (B,T,3C); dout (B,T,C); row_top, row_inverse (B,H,T)
void attention_backward(float *dqkv, const float *dout, const float *row_top, const float *row_inverse,
                        const float *qkv, size_t B, size_t T, size_t C, size_t H) {
  Args args = {.dqkv = dqkv, .dout = dout, .row_top = (float *)row_top, .row_inverse = (float *)row_inverse,
               .qkv = qkv, .B = B, .T = T, .C = C, .H = H, .D = C / H};
  pool_run(backward_head, &args, B * H);
}
