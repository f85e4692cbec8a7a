// Layer norm over C: y = (x − mean)·rstd·g + b, biased variance, eps 1e-5.

#include "gpt.h"

#define EPS 1e-5
#define ROWS 16 // positions of a chunk; backward keeps one row of partial sums per BACKWARD_ROWS
#define BACKWARD_ROWS 32

typedef struct {
  float *y, *mean_out, *rstd_out;
  const float *x, *g, *b;
  float *dx, *partial;
  const float *dy, *mean, *rstd;
  Tensor dg, db;
  int add;
  size_t N, C, chunks;
} Args;

static void forward_rows(void *args, size_t chunk, size_t thread) {
  const Args *a = args;
  (void)thread;
  size_t C = a->C, to = at_most((chunk + 1) * ROWS, a->N);
  for (size_t n = chunk * ROWS; n < to; n++) {
    const float *x = a->x + n * C;
    float *y = a->y + n * C;
    f4 sum = splat4(0);
    for (size_t i = 0; i < C; i += 4) sum += load_some(x + i, C - i, 0);
    float mean = sum_lanes(sum) / (float)C;
    f4 square = splat4(0);
    for (size_t i = 0; i < C; i += 4) {
      f4 d = load_some(x + i, C - i, mean) - mean;
      square = madd4(d, d, square);
    }
    float rstd = 1.0f / __builtin_sqrtf(sum_lanes(square) / (float)C + (float)EPS);
    for (size_t i = 0; i < C; i += 4) {
      f4 xhat = (load_some(x + i, C - i, 0) - mean) * rstd;
      store_some(y + i, C - i, madd4(xhat, load_some(a->g + i, C - i, 0), load_some(a->b + i, C - i, 0)));
    }
    a->mean_out[n] = mean;
    a->rstd_out[n] = rstd;
  }
}

// y, x (N,C); mean, rstd (N); g, b (C)
void layernorm_forward(float *y, float *mean, float *rstd, const float *x, const float *g,
                       const float *b, size_t N, size_t C) {
  Args args = {.y = y, .mean_out = mean, .rstd_out = rstd, .x = x, .g = g, .b = b, .N = N, .C = C};
  pool_run(forward_rows, &args, chunks_of(N, ROWS));
}

// dx = rstd·(dx̂ − mean(dx̂) − x̂·mean(dx̂·x̂)) with dx̂ = dy·g; this chunk's part of dg and db.
static void backward_rows(void *args, size_t chunk, size_t thread) {
  const Args *a = args;
  (void)thread;
  size_t C = a->C, Cp = round_up(C, 4), to = at_most((chunk + 1) * BACKWARD_ROWS, a->N);
  float *dg = a->partial + chunk * 2 * Cp, *db = dg + Cp;
  for (size_t i = 0; i < 2 * Cp; i += 4) store4(dg + i, splat4(0));
  for (size_t n = chunk * BACKWARD_ROWS; n < to; n++) {
    const float *x = a->x + n * C, *dy = a->dy + n * C;
    float *dx = a->dx + n * C;
    float mean = a->mean[n], rstd = a->rstd[n];
    f4 sum = splat4(0), sum_xhat = splat4(0);
    for (size_t i = 0; i < C; i += 4) {
      f4 d = load_some(dy + i, C - i, 0);
      f4 xhat = (load_some(x + i, C - i, mean) - mean) * rstd;
      f4 dxhat = d * load_some(a->g + i, C - i, 0);
      store4(dg + i, madd4(d, xhat, load4(dg + i)));
      store4(db + i, load4(db + i) + d);
      sum += dxhat;
      sum_xhat = madd4(dxhat, xhat, sum_xhat);
    }
    float mean_d = sum_lanes(sum) / (float)C, mean_dx = sum_lanes(sum_xhat) / (float)C;
    for (size_t i = 0; i < C; i += 4) {
      f4 xhat = (load_some(x + i, C - i, mean) - mean) * rstd;
      f4 dxhat = load_some(dy + i, C - i, 0) * load_some(a->g + i, C - i, 0);
      f4 d = (dxhat - mean_d - xhat * mean_dx) * rstd;
      store_some(dx + i, C - i, a->add ? load_some(dx + i, C - i, 0) + d : d);
    }
  }
}

// Adds the chunks' parts in order, a block of columns at a time.
static void backward_sum(void *args, size_t block, size_t thread) {
  const Args *a = args;
  (void)thread;
  size_t C = a->C, Cp = round_up(C, 4), to = at_most((block + 1) * 64, C);
  for (size_t i = block * 64; i < to; i += 4) {
    f4 dg = splat4(0), db = splat4(0);
    for (size_t chunk = 0; chunk < a->chunks; chunk++) {
      const float *part = a->partial + chunk * 2 * Cp + i;
      dg += load4(part);
      db += load4(part + Cp);
    }
    store_some(a->dg.d + i, to - i, dg);
    store_some(a->db.d + i, to - i, db);
  }
}

// dx (N,C), added to what is there if `add`; dy, x (N,C); mean, rstd (N). Writes g.d and b.d (C).
void layernorm_backward(float *dx, int add, Tensor g, Tensor b, const float *dy, const float *x,
                        const float *mean, const float *rstd, size_t N, size_t C) {
  Args args = {.dx = dx, .add = add, .dy = dy, .x = x, .g = g.w, .mean = mean, .rstd = rstd,
               .dg = g, .db = b, .partial = work.partial, .N = N, .C = C,
               .chunks = chunks_of(N, BACKWARD_ROWS)};
  pool_run(backward_rows, &args, args.chunks);
  pool_run(backward_sum, &args, chunks_of(C, 64));
}

uint64_t layernorm_partial_floats(uint64_t N, uint64_t C) {
  return round_up64(N, BACKWARD_ROWS) / BACKWARD_ROWS * 2 * round_up64(C, 4);
}
