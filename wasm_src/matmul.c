// Matrix products. y = x·w + b with x (N,I), w (I,O), y (N,O); backward dx = dy·wᵀ (dA) and dw = xᵀ·dy
// (dB). All of them, and the tied head's, are one strided product C = A·B.
//
// Every output is one chain of multiply-adds, k ascending, that starts at the bias (or 0). Tiles, cache
// blocks, chunks and packing only choose which chains run side by side, so all kernels of a module give
// the same bits; `naive` is the oracle.

#include "tile.h"

// ------------------------------------------------------------------------------ what follows a product

// What a product does to its rows m0…m1 and columns n0…n1 once their chains are complete: the block is still
// in a near cache then.
static void finish(const Product *p, size_t m0, size_t m1, size_t n0, size_t n1) {
  if (!p->add && !p->gelu && !p->slope) return;
  size_t width = n1 - n0;
  for (size_t m = m0; m < m1; m++) {
    size_t at = m * p->N + n0;
    float *c = p->c + at;
    if (p->add)
      for (size_t n = 0; n < width; n += 4)
        store_some(c + n, width - n, load_some(c + n, width - n, 0) + load_some(p->add + at + n, width - n, 0));
    if (p->slope)
      for (size_t n = 0; n < width; n += 4)
        store_some(c + n, width - n, load_some(c + n, width - n, 0) * load_some(p->slope + at + n, width - n, 0));
    if (p->gelu) gelu_row(p->gelu + at, c, c, width);
  }
}

// ------------------------------------------------------------------------------ naive

#define NAIVE_ROWS 4 // rows of C in a chunk

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
  finish(p, from, to, 0, p->N);
}

// ------------------------------------------------------------------------------ blocked

// One operand, the smaller, is packed into panels by all threads first (`shared`). Then each chunk takes
// a strip of the other, packs it piece by piece into its thread's scratch, where it stays in the nearest
// cache, and multiplies it with all of the shared one. So everything is packed exactly once.
//
// Panels of A are (K, rows), of B (K, columns), for a tile of rows × columns; the last of each is padded
// with zeros. What follows is inlined into one pair of tasks per tile, in which both are constants.

#define STRIP 96  // most lines of a chunk's strip
#define STRIPS 8 // a thread's, if a product is too small for more: a slow core delays the join by one
#define DEPTH 512 // of a strip's piece: 36 KiB at most, and beside it a shared panel's piece of 8 KiB
#define PACK_DEPTH 32 // of a packing chunk

typedef struct {
  const Product *p;
  int shared_a;
  size_t strip; // lines of a chunk
} Blocked;

// Lines `from` to `to` of an operand (`from` at a panel's start) in panels of `side` lines, k from k to
// k+depth; panels lie `panel` floats apart. A few k at a time: so a source whose rows are a power of two
// apart still stays in the nearest cache.
INLINE void pack(const size_t side, float *to, size_t panel, const float *src, size_t line, size_t step,
                 size_t from, size_t end, size_t k, size_t depth) {
  for (size_t i = 0; i < depth; i += PACK_DEPTH)
    for (size_t at = from; at < end; at += side)
      pack_panel(PANELS, to + (at - from) / side * panel + i * side, src + at * line + (k + i) * step, line, step,
                 at_most(side, end - at), at_most(PACK_DEPTH, depth - i), side);
}

INLINE void pack_a(const size_t rows, float *to, size_t panel, const Product *p, size_t from, size_t end, size_t k,
                   size_t depth) {
  pack(rows, to, panel, p->a, p->a_row, p->a_col, from, end, k, depth);
}

INLINE void pack_b(const size_t columns, float *to, size_t panel, const Product *p, size_t from, size_t end,
                   size_t k, size_t depth) {
  pack(columns, to, panel, p->b, p->b_col, p->b_row, from, end, k, depth);
}

INLINE void pack_shared(const size_t rows, const size_t columns, const Blocked *blocked, size_t chunk) {
  const Product *p = blocked->p;
  size_t k = chunk * PACK_DEPTH, depth = at_most(PACK_DEPTH, p->K - k);
  if (blocked->shared_a)
    pack_a(rows, work.packed + k * rows, p->K * rows, p, 0, p->M, k, depth);
  else
    pack_b(columns, work.packed + k * columns, p->K * columns, p, 0, p->N, k, depth);
}

// Rows m0…m1 and columns n0…n1 of C, k from k to k+depth. a and b are the panels of that range; the
// panels of each lie a_panel and b_panel floats apart. The strip stays in the nearest cache; a panel of
// the shared operand comes from farther away and meets all of the strip before the next one.
INLINE void multiply(const size_t rows, const size_t columns, const Edge edge, const Blocked *blocked, size_t m0,
                     size_t m1, size_t n0, size_t n1, size_t k, size_t depth, const float *a, size_t a_panel,
                     const float *b, size_t b_panel) {
  const Product *p = blocked->p;
  Start start = k ? FROM_C : p->bias ? FROM_ROW : FROM_ZERO;
  size_t down = chunks_of(m1 - m0, rows), across = chunks_of(n1 - n0, columns);
  size_t outer = blocked->shared_a ? down : across, inner = blocked->shared_a ? across : down;
  for (size_t o = 0; o < outer; o++)
    for (size_t i = 0; i < inner; i++) {
      size_t r = blocked->shared_a ? o : i, v = blocked->shared_a ? i : o;
      size_t m = m0 + r * rows, n = n0 + v * columns;
      const float *left = a + r * a_panel, *right = b + v * b_panel, *row = p->bias ? p->bias + n : 0;
      float *c = p->c + m * p->N + n;
      if (m + rows > m1 || n + columns > n1)
        edge(start, row, depth, left, rows, right, c, p->N, m1 - m, n1 - n);
      else
        tile(PANELS, rows, columns, start, row, depth, left, rows, right, c, p->N);
    }
}

INLINE void multiply_strip(const size_t rows, const size_t columns, const Edge edge, const Blocked *blocked,
                           size_t chunk, size_t thread) {
  const Product *p = blocked->p;
  float *own = work.own_panels + thread * work.own_floats;
  int shared_a = blocked->shared_a;
  size_t from = chunk * blocked->strip, to = at_most(from + blocked->strip, shared_a ? p->N : p->M);
  size_t m0 = shared_a ? 0 : from, m1 = shared_a ? p->M : to;
  size_t n0 = shared_a ? from : 0, n1 = shared_a ? to : p->N;
  for (size_t k = 0; k < p->K; k += DEPTH) {
    size_t depth = at_most(DEPTH, p->K - k);
    const float *a = own, *b = own;
    size_t a_panel = depth * rows, b_panel = depth * columns;
    if (shared_a) {
      pack_b(columns, own, b_panel, p, from, to, k, depth);
      a = work.packed + k * rows, a_panel = p->K * rows;
    } else {
      pack_a(rows, own, a_panel, p, from, to, k, depth);
      b = work.packed + k * columns, b_panel = p->K * columns;
    }
    multiply(rows, columns, edge, blocked, m0, m1, n0, n1, k, depth, a, a_panel, b, b_panel);
  }
  finish(p, m0, m1, n0, n1);
}

#define TASKS(index, rows, columns)                                                                 \
  EDGE_OF(edge_##rows##x##columns, PANELS, rows, columns)                                           \
  static void pack_shared_##rows##x##columns(void *args, size_t chunk, size_t thread) {             \
    (void)thread;                                                                                   \
    pack_shared(rows, columns, args, chunk);                                                        \
  }                                                                                                 \
  static void multiply_strip_##rows##x##columns(void *args, size_t chunk, size_t thread) {          \
    multiply_strip(rows, columns, edge_##rows##x##columns, args, chunk, thread);                    \
  }
TILES(TASKS)

typedef struct {
  size_t rows, columns;
  Task pack, multiply;
} Tile;

#define ENTRY(index, rows, columns) \
  [index] = {rows, columns, pack_shared_##rows##x##columns, multiply_strip_##rows##x##columns},
static const Tile tiles[] = {TILES(ENTRY)};

EXPORT(matmul_tiles) size_t matmul_tiles(void) { return sizeof tiles / sizeof *tiles; }
EXPORT(matmul_tile_rows) size_t matmul_tile_rows(size_t tile) { return tiles[tile].rows; }
EXPORT(matmul_tile_columns) size_t matmul_tile_columns(size_t tile) { return tiles[tile].columns; }

static void matmul_blocked(const Tile *tile, const Product *p) {
  Blocked args = {.p = p, .shared_a = p->M < p->N};
  size_t lines = args.shared_a ? p->N : p->M, side = args.shared_a ? tile->columns : tile->rows;
  args.strip = at_most(STRIP / side * side, round_up(chunks_of(lines, STRIPS * pool_threads()), side));
  pool_run(tile->pack, &args, chunks_of(p->K, PACK_DEPTH));
  pool_run(tile->multiply, &args, chunks_of(lines, args.strip));
}

// The shared operand is the smaller one; its last panel is padded to a tile's side.
uint64_t matmul_packed_floats(uint64_t M, uint64_t N, uint64_t K) { return ((M < N ? M : N) + TILE_MOST - 1) * K; }

uint64_t matmul_thread_floats(void) { return STRIP * DEPTH; }

void matmul(Choice choice, const Product *p) {
  if (choice.kernel == BLOCKED)
    matmul_blocked(&tiles[choice.tile], p);
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

// slope (N,O) = GELU'(x (N,I) · w (I,O) + b (O)), y (N,O) = GELU of the same
void matmul_gelu_forward(float *y, float *slope, const float *x, const float *w, const float *b, size_t N,
                         size_t I, size_t O) {
  matmul(work.forward, &(Product){.M = N, .N = O, .K = I, .a = x, .a_row = I, .a_col = 1,
                                  .b = w, .b_row = O, .b_col = 1, .bias = b, .c = slope, .gelu = y});
}

// dx (N,I) = dy (N,O) · wᵀ [· slope (N,I), element by element]
void matmul_backward_da(float *dx, const float *dy, const float *w, const float *slope, size_t N, size_t I,
                        size_t O) {
  matmul(work.da, &(Product){.M = N, .N = I, .K = O, .a = dy, .a_row = O, .a_col = 1,
                             .b = w, .b_row = 1, .b_col = O, .c = dx, .slope = slope});
}

// dw (I,O) = xᵀ · dy
void matmul_backward_db(float *dw, const float *x, const float *dy, size_t N, size_t I, size_t O) {
  matmul(work.db, &(Product){.M = I, .N = O, .K = N, .a = x, .a_row = 1, .a_col = I,
                             .b = dy, .b_row = O, .b_col = 1, .c = dw});
}

// logits (N,V) = x (N,C) · wteᵀ, wte (V,C)
void head_forward(float *logits, const float *x, const float *wte, size_t N, size_t C, size_t V) {
  matmul(work.forward, &(Product){.M = N, .N = V, .K = C, .a = x, .a_row = C, .a_col = 1,
                                  .b = wte, .b_row = 1, .b_col = C, .c = logits});
}

// dx (N,C) = dlogits (N,V) · wte
void head_backward_da(float *dx, const float *dlogits, const float *wte, size_t N, size_t C, size_t V) {
  matmul(work.da, &(Product){.M = N, .N = C, .K = V, .a = dlogits, .a_row = V, .a_col = 1,
                             .b = wte, .b_row = C, .b_col = 1, .c = dx});
}

// dwte (V,C) = dlogitsᵀ · x
void head_backward_db(float *dwte, const float *x, const float *dlogits, size_t N, size_t C, size_t V) {
  matmul(work.db, &(Product){.M = V, .N = C, .K = N, .a = dlogits, .a_row = 1, .a_col = V,
                             .b = x, .b_row = C, .b_col = 1, .c = dwte});
}

// ------------------------------------------------------------------------------ bias

#define BIAS_ROWS 32 // rows summed into one partial sum
#define BIAS_COLUMNS 32 // of them summed at a time, in registers: two cache lines

typedef struct {
  float *db, *partial;
  const float *dy;
  size_t N, O, chunks;
} BiasArgs;

static void bias_chunk(void *args, size_t chunk, size_t thread) {
  const BiasArgs *a = args;
  (void)thread;
  size_t O = a->O, from = chunk * BIAS_ROWS, to = at_most(from + BIAS_ROWS, a->N), i = 0;
  float *partial = a->partial + chunk * round_up(O, 4);
  for (; i + BIAS_COLUMNS <= O; i += BIAS_COLUMNS) {
    const float *dy = a->dy + from * O + i;
    f4 sum[BIAS_COLUMNS / 4];
    UNROLLED for (size_t v = 0; v < BIAS_COLUMNS / 4; v++) sum[v] = load4(dy + 4 * v);
    for (size_t n = from + 1; n < to; n++) {
      dy += O;
      UNROLLED for (size_t v = 0; v < BIAS_COLUMNS / 4; v++) sum[v] += load4(dy + 4 * v);
    }
    UNROLLED for (size_t v = 0; v < BIAS_COLUMNS / 4; v++) store4(partial + i + 4 * v, sum[v]);
  }
  for (; i < O; i += 4) {
    f4 sum = load_some(a->dy + from * O + i, O - i, 0);
    for (size_t n = from + 1; n < to; n++) sum += load_some(a->dy + n * O + i, O - i, 0);
    store4(partial + i, sum);
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
