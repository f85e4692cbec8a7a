// Matrix products. y = x·w + b with x (N,I), w (I,O), y (N,O); backward dx = dy·wᵀ (dA) and dw = xᵀ·dy
// (dB). All of them, and the tied head's, are one strided product C = A·B.
//
// Every output is one chain of multiply-adds, k ascending, that starts at the bias (or 0). Tiles, cache
// blocks, chunks and packing only choose which chains run side by side, so all kernels of a module give
// the same bits; `naive` is the oracle.

#include "gpt.h"

// ------------------------------------------------------------------------------ naive

#define NAIVE_ROWS 4 // rows of C in a chunk

static void add_rows(const Product *p, size_t from, size_t to) {
  if (!p->add) return;
  for (size_t i = from * p->N; i < to * p->N; i++) p->c[i] += p->add[i];
}

// Rows of B lie contiguous: a row of C is a sum of B's rows.
static void naive_rows(const Product *p, size_t from, size_t to) {
  for (size_t m = from; m < to; m++) {
    float *c = p->c + m * p->N;
    for (size_t n = 0; n < p->N; n++) c[n] = p->bias ? p->bias[n] : 0;
    for (size_t k = 0; k < p->K; k++) {
      float a = p->a[m * p->a_row + k * p->a_col];
      const float *b = p->b + k * p->b_row;
      size_t n = 0;
      for (; n + 4 <= p->N; n += 4) store4(c + n, madd4(splat4(a), load4(b + n), load4(c + n)));
      for (; n < p->N; n++) c[n] = madd(a, b[n], c[n]);
    }
  }
}

// Columns of B lie contiguous: an element of C is a dot product.
static void naive_dots(const Product *p, size_t from, size_t to) {
  for (size_t m = from; m < to; m++)
    for (size_t n = 0; n < p->N; n++) {
      const float *a = p->a + m * p->a_row, *b = p->b + n * p->b_col;
      float sum = p->bias ? p->bias[n] : 0;
      for (size_t k = 0; k < p->K; k++) sum = madd(a[k * p->a_col], b[k], sum);
      p->c[m * p->N + n] = sum;
    }
}

static void naive_chunk(void *args, size_t chunk, size_t thread) {
  const Product *p = args;
  (void)thread;
  size_t from = chunk * NAIVE_ROWS, to = at_most(from + NAIVE_ROWS, p->M);
  if (p->b_col == 1)
    naive_rows(p, from, to);
  else
    naive_dots(p, from, to);
  add_rows(p, from, to);
}

// ------------------------------------------------------------------------------ blocked

#ifdef __wasm_simd128__
#define TILE_ROWS 4
#define TILE_VECTORS 2
#else
#define TILE_ROWS 2
#define TILE_VECTORS 1
#endif
#define TILE_COLUMNS (4 * TILE_VECTORS)
#define BLOCK_ROWS 32 // rows of A packed at once by a thread
#define BLOCK_K 256   // their depth: 32 KiB, and a panel of B of 8 KiB beside it
#define PACK_K 64     // rows of B in a packing chunk

#define UNROLLED _Pragma("clang loop unroll(full)")

// C tile += a (K, TILE_ROWS) · b (K, TILE_COLUMNS), both packed; `c` has rows of c_row floats.
INLINE void tile(size_t K, const float *a, const float *b, float *c, size_t c_row) {
  f4 sum[TILE_ROWS][TILE_VECTORS];
  UNROLLED for (int r = 0; r < TILE_ROWS; r++)
    UNROLLED for (int v = 0; v < TILE_VECTORS; v++) sum[r][v] = load4(c + (size_t)r * c_row + 4 * v);
  for (size_t k = 0; k < K; k++, a += TILE_ROWS, b += TILE_COLUMNS) {
    f4 right[TILE_VECTORS];
    UNROLLED for (int v = 0; v < TILE_VECTORS; v++) right[v] = load4(b + 4 * v);
    UNROLLED for (int r = 0; r < TILE_ROWS; r++) {
      f4 left = splat4(a[r]);
      UNROLLED for (int v = 0; v < TILE_VECTORS; v++) sum[r][v] = madd4(left, right[v], sum[r][v]);
    }
  }
  UNROLLED for (int r = 0; r < TILE_ROWS; r++)
    UNROLLED for (int v = 0; v < TILE_VECTORS; v++) store4(c + (size_t)r * c_row + 4 * v, sum[r][v]);
}

// Four vectors as rows of a 4×4 matrix → its columns.
INLINE void transpose4(f4 r[4]) {
  f4 a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5), b = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
  f4 c = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7), d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
  r[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  r[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  r[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
  r[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

// Packs one panel: `width` lines of `depth` floats → (depth, full); lines beyond `width` are zeros.
// Line i, element k is src[i·line + k·step]; one of the two strides is 1.
INLINE void pack_panel(float *to, const float *src, size_t line, size_t step, size_t width, size_t depth,
                       const size_t full) {
  if (width < full) {
    for (size_t k = 0; k < depth; k++)
      for (size_t i = 0; i < full; i++) to[k * full + i] = i < width ? src[i * line + k * step] : 0;
  } else if (line == 1 && full % 4 == 0) {
    for (size_t k = 0; k < depth; k++)
      UNROLLED for (size_t i = 0; i < full; i += 4) store4(to + k * full + i, load4(src + k * step + i));
  } else if (step == 1 && full % 4 == 0) {
    size_t k = 0;
    for (; k + 4 <= depth; k += 4)
      UNROLLED for (size_t i = 0; i < full; i += 4) {
        f4 r[4];
        for (size_t j = 0; j < 4; j++) r[j] = load4(src + (i + j) * line + k);
        transpose4(r);
        for (size_t j = 0; j < 4; j++) store4(to + (k + j) * full + i, r[j]);
      }
    for (; k < depth; k++)
      for (size_t i = 0; i < full; i++) to[k * full + i] = src[i * line + k];
  } else {
    for (size_t k = 0; k < depth; k++)
      UNROLLED for (size_t i = 0; i < full; i++) to[k * full + i] = src[i * line + k * step];
  }
}

typedef struct {
  const Product *p;
  float *packed;                // B: panels of (K, TILE_COLUMNS)
  size_t block_columns, across; // columns of a chunk of C, chunks in a row of chunks
} Blocked;

static void pack_chunk(void *args, size_t chunk, size_t thread) {
  const Blocked *a = args;
  const Product *p = a->p;
  (void)thread;
  size_t k = chunk * PACK_K, depth = at_most(PACK_K, p->K - k);
  for (size_t n = 0; n < p->N; n += TILE_COLUMNS)
    pack_panel(a->packed + n * p->K + k * TILE_COLUMNS, p->b + n * p->b_col + k * p->b_row, p->b_col,
               p->b_row, at_most(TILE_COLUMNS, p->N - n), depth, TILE_COLUMNS);
}

// A tile at the edge of C goes through a full one.
static void edge_tile(size_t K, const float *a, const float *b, float *c, size_t c_row, size_t rows,
                      size_t columns) {
  float full[TILE_ROWS * TILE_COLUMNS] = {0};
  for (size_t r = 0; r < rows; r++)
    for (size_t n = 0; n < columns; n++) full[r * TILE_COLUMNS + n] = c[r * c_row + n];
  tile(K, a, b, full, TILE_COLUMNS);
  for (size_t r = 0; r < rows; r++)
    for (size_t n = 0; n < columns; n++) c[r * c_row + n] = full[r * TILE_COLUMNS + n];
}

// One block of C: BLOCK_ROWS × block_columns.
static void blocked_chunk(void *args, size_t chunk, size_t thread) {
  const Blocked *blocked = args;
  const Product *p = blocked->p;
  float *left = work.thread_scratch + thread * work.thread_floats;
  size_t m0 = chunk / blocked->across * BLOCK_ROWS, m1 = at_most(m0 + BLOCK_ROWS, p->M);
  size_t n0 = chunk % blocked->across * blocked->block_columns;
  size_t n1 = at_most(n0 + blocked->block_columns, p->N);
  for (size_t m = m0; m < m1; m++)
    for (size_t n = n0; n < n1; n += 4)
      store_some(p->c + m * p->N + n, n1 - n, p->bias ? load_some(p->bias + n, n1 - n, 0) : splat4(0));
  for (size_t k = 0; k < p->K; k += BLOCK_K) {
    size_t depth = at_most(BLOCK_K, p->K - k);
    for (size_t m = m0; m < m1; m += TILE_ROWS)
      pack_panel(left + (m - m0) * depth, p->a + m * p->a_row + k * p->a_col, p->a_row, p->a_col,
                 at_most(TILE_ROWS, m1 - m), depth, TILE_ROWS);
    for (size_t n = n0; n < n1; n += TILE_COLUMNS) {
      const float *right = blocked->packed + n * p->K + k * TILE_COLUMNS;
      for (size_t m = m0; m < m1; m += TILE_ROWS) {
        float *c = p->c + m * p->N + n;
        if (m + TILE_ROWS <= m1 && n + TILE_COLUMNS <= n1)
          tile(depth, left + (m - m0) * depth, right, c, p->N);
        else
          edge_tile(depth, left + (m - m0) * depth, right, c, p->N, at_most(TILE_ROWS, m1 - m),
                    at_most(TILE_COLUMNS, n1 - n));
      }
    }
  }
  if (p->add)
    for (size_t m = m0; m < m1; m++)
      for (size_t n = n0; n < n1; n += 4) {
        float *c = p->c + m * p->N + n;
        store_some(c, n1 - n, load_some(c, n1 - n, 0) + load_some(p->add + m * p->N + n, n1 - n, 0));
      }
}

// Enough chunks for many threads, fixed by the shape.
static void matmul_blocked(const Product *p) {
  size_t down = chunks_of(p->M, BLOCK_ROWS), across = at_most(chunks_of(32, down), chunks_of(p->N, 32));
  Blocked args = {.p = p, .packed = work.packed};
  args.block_columns = round_up(chunks_of(p->N, across), TILE_COLUMNS);
  args.across = chunks_of(p->N, args.block_columns);
  pool_run(pack_chunk, &args, chunks_of(p->K, PACK_K));
  pool_run(blocked_chunk, &args, down * args.across);
}

uint64_t matmul_packed_floats(uint64_t N, uint64_t K) { return round_up64(N, TILE_COLUMNS) * K; }

uint64_t matmul_thread_floats(void) { return BLOCK_ROWS * BLOCK_K; }

void matmul(Kernel kernel, const Product *p) {
  if (kernel == BLOCKED)
    matmul_blocked(p);
  else
    pool_run(naive_chunk, (void *)p, chunks_of(p->M, NAIVE_ROWS));
}

// ------------------------------------------------------------------------------ the layers' products

// y (N,O) = x (N,I) · w (I,O) + b (O) [+ add (N,O)]
void matmul_forward(float *y, const float *x, const float *w, const float *b, const float *add,
                    size_t N, size_t I, size_t O) {
  matmul(work.forward, &(Product){.M = N, .N = O, .K = I, .a = x, .a_row = I, .a_col = 1,
                                  .b = w, .b_row = O, .b_col = 1, .bias = b, .add = add, .c = y});
}

// dx (N,I) = dy (N,O) · wᵀ; w.d (I,O) = xᵀ · dy
void matmul_backward(float *dx, Tensor w, const float *dy, const float *x, size_t N, size_t I, size_t O) {
  matmul(work.da, &(Product){.M = N, .N = I, .K = O, .a = dy, .a_row = O, .a_col = 1,
                             .b = w.w, .b_row = 1, .b_col = O, .c = dx});
  matmul(work.db, &(Product){.M = I, .N = O, .K = N, .a = x, .a_row = 1, .a_col = I,
                             .b = dy, .b_row = O, .b_col = 1, .c = w.d});
}

// logits (N,V) = x (N,C) · wteᵀ, wte (V,C)
void head_forward(float *logits, const float *x, const float *wte, size_t N, size_t C, size_t V) {
  matmul(work.forward, &(Product){.M = N, .N = V, .K = C, .a = x, .a_row = C, .a_col = 1,
                                  .b = wte, .b_row = 1, .b_col = C, .c = logits});
}

// dx (N,C) = dlogits (N,V) · wte; wte.d (V,C) = dlogitsᵀ · x
void head_backward(float *dx, Tensor wte, const float *dlogits, const float *x, size_t N, size_t C,
                   size_t V) {
  matmul(work.da, &(Product){.M = N, .N = C, .K = V, .a = dlogits, .a_row = V, .a_col = 1,
                             .b = wte.w, .b_row = C, .b_col = 1, .c = dx});
  matmul(work.db, &(Product){.M = V, .N = C, .K = N, .a = dlogits, .a_row = 1, .a_col = V,
                             .b = x, .b_row = C, .b_col = 1, .c = wte.d});
}

// ------------------------------------------------------------------------------ bias

#define BIAS_ROWS 32 // rows summed into one partial sum

typedef struct {
  float *db, *partial;
  const float *dy;
  size_t N, O, chunks;
} BiasArgs;

static void bias_chunk(void *args, size_t chunk, size_t thread) {
  const BiasArgs *a = args;
  (void)thread;
  size_t O = a->O, to = at_most((chunk + 1) * BIAS_ROWS, a->N);
  float *sum = a->partial + chunk * round_up(O, 4);
  for (size_t n = chunk * BIAS_ROWS, first = n; n < to; n++)
    for (size_t i = 0; i < O; i += 4) {
      f4 dy = load_some(a->dy + n * O + i, O - i, 0);
      store4(sum + i, n == first ? dy : load4(sum + i) + dy);
    }
}

static void bias_sum(void *args, size_t block, size_t thread) {
  const BiasArgs *a = args;
  (void)thread;
  size_t to = at_most((block + 1) * 64, a->O), row = round_up(a->O, 4);
  for (size_t i = block * 64; i < to; i += 4) {
    f4 sum = splat4(0);
    for (size_t chunk = 0; chunk < a->chunks; chunk++) sum += load4(a->partial + chunk * row + i);
    store_some(a->db + i, to - i, sum);
  }
}

// db (O) = sum of dy (N,O) over N
void bias_backward(float *db, const float *dy, size_t N, size_t O) {
  BiasArgs args = {.db = db, .partial = work.partial, .dy = dy, .N = N, .O = O,
                   .chunks = chunks_of(N, BIAS_ROWS)};
  pool_run(bias_chunk, &args, args.chunks);
  pool_run(bias_sum, &args, chunks_of(O, 64));
}

uint64_t bias_partial_floats(uint64_t N, uint64_t O) {
  return round_up64(N, BIAS_ROWS) / BIAS_ROWS * round_up64(O, 4);
}
