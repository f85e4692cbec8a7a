// The register tile that every fast product is made of, and the packing that feeds it.
//
// ROWS × COLUMNS outputs live in vector registers while k runs; both are constants wherever a tile is used, so
// one description gives every tile. What an engine makes of a step of k decides its speed, so its order is
// pinned with empty asm statements (KEEP), without which the compiler gathers the multiply-adds of several k
// per output, and the engine's registers run over. Measured in Chromium 156 on x86-64, 256³, relaxed
// multiply-add, as a share of the roofline: 4×8 from 0.85 (no order) to 0.94, 6×8 from 0.65 to 0.97; in 64-bit
// memory 4×8 from 0.82 to 0.87, 5×8 0.91. Turning A instead of spreading it was slower there (0.81).
#ifndef TILE_H
#define TILE_H

#include "panels.h"

// Tiles of the products, the first is the default: X(index, rows, columns). The best one depends on the number
// of vector registers (16 on x86-64, 32 on arm64) and on what the engine makes of them.
#ifdef __wasm_simd128__
#define TILE_ROWS 4
#define TILE_COLUMNS 8
#define TILES(X) X(0, 4, 8) X(1, 5, 8) X(2, 6, 8) X(3, 8, 8) X(4, 4, 12)
#else // without SIMD fewer values fit into registers
#define TILE_ROWS 2
#define TILE_COLUMNS 4
#define TILES(X) X(0, 2, 4) X(1, 4, 4)
#endif
#define TILE_MOST 12 // rows or columns

#define UNROLL 4
typedef enum { FROM_ZERO, FROM_ROW, FROM_C } Start;

// Lane 0 to 3 of a vector, on all lanes.
INLINE f4 spread(f4 v, size_t lane) {
  if (lane == 0) return __builtin_shufflevector(v, v, 0, 0, 0, 0);
  if (lane == 1) return __builtin_shufflevector(v, v, 1, 1, 1, 1);
  if (lane == 2) return __builtin_shufflevector(v, v, 2, 2, 2, 2);
  return __builtin_shufflevector(v, v, 3, 3, 3, 3);
}

// A tile of more than ten vectors leaves 16 registers no room for more than one spread row.
#define TIGHT(rows, columns) ((rows) * (columns) > 40)

// Steps of k in one turn of the loop. In 64-bit memory each access is checked against a constant of its own
// for each offset, so a turn with few of them is better there, unless more steps save loads.
#ifdef __wasm64__
#define STEPS(memory, rows) ((memory) == PANELS || (rows) == 5 ? 4 : 2)
#else
#define STEPS(memory, rows) 4
#endif

// Row r of step i, on all lanes, of `steps` steps of k whose `rows` stand side by side, a_step floats apart (in
// packed panels a_step = rows). Four rows share one load, which costs shuffles; rows of a tight tile have one each,
// which needs the fewest registers; five rows come from packed panels alone, of which any four floats share one
// load: the fewest loads, where each is checked.
INLINE f4 left_row(const Memory memory, f4 *four, const float *a, size_t a_step, size_t i, size_t r,
                   const size_t rows, const size_t steps) {
#ifdef __wasm_simd128__
  size_t at = i * (memory == PANELS ? rows : a_step) + r;
  if (rows == 5 && steps % 4 == 0) {
    if (at % 4 == 0) *four = get4(memory, a, at);
    return spread(*four, at % 4);
  }
  if (rows % 4) return get_splat4(memory, a, at);
  if (r % 4 == 0) *four = get4(memory, a, at);
  return spread(*four, r % 4);
#else
  (void)memory, (void)four, (void)rows, (void)steps;
  return splat4(a[i * a_step + r]);
#endif
}

// sum (rows, columns) += a (steps, rows) · b (steps, columns)
INLINE void tile_steps(const Memory memory, const size_t rows, const size_t columns, f4 sum[TILE_MOST][TILE_MOST / 4], const float *a,
                       size_t a_step, const float *b, const size_t steps) {
  f4 four = splat4(0), right[TILE_MOST / 4];
  UNROLLED for (size_t i = 0; i < steps; i++) {
    UNROLLED for (size_t v = 0; v < columns / 4; v++) right[v] = get4(memory, b, i * columns + 4 * v);
    UNROLLED for (size_t r = 0; r < rows; r++) {
      f4 left = left_row(memory, &four, a, a_step, i, r, rows, steps);
      UNROLLED for (size_t v = 0; v < columns / 4; v++) {
        sum[r][v] = madd4(left, right[v], sum[r][v]);
        if (TIGHT(rows, columns)) KEEP(sum[r][v]);
      }
    }
    if (TIGHT(rows, columns)) continue;
    UNROLLED for (size_t r = 0; r < rows; r++)
      UNROLLED for (size_t v = 0; v < columns / 4; v++) KEEP(sum[r][v]);
  }
}

// Tile of C = start + a (K, rows) · b (K, columns); a and b lie in `memory`, C in the module's own. A step of k is a_step floats in a, b is packed. The chains
// start at 0, at `row` (the bias of each column) or at what C holds; C's rows are c_row apart.
INLINE void tile(const Memory memory, const size_t rows, const size_t columns, Start start, const float *row, size_t K, const float *a,
                 size_t a_step, const float *b, float *c, size_t c_row) {
  f4 sum[TILE_MOST][TILE_MOST / 4];
  UNROLLED for (size_t r = 0; r < rows; r++)
    UNROLLED for (size_t v = 0; v < columns / 4; v++)
      sum[r][v] = start == FROM_ZERO ? splat4(0) : load4((start == FROM_ROW ? row : c + r * c_row) + 4 * v);
  const size_t steps = STEPS(memory, rows);
  size_t k = 0;
  for (; k + steps <= K; k += steps, a += steps * a_step, b += steps * columns) {
    KEEP(a), KEEP(b); // as pointers: constants added to them become fields of the loads
    tile_steps(memory, rows, columns, sum, a, a_step, b, steps);
  }
  for (; k < K; k++, a += a_step, b += columns) tile_steps(memory, rows, columns, sum, a, a_step, b, 1);
  UNROLLED for (size_t r = 0; r < rows; r++)
    UNROLLED for (size_t v = 0; v < columns / 4; v++) store4(c + r * c_row + 4 * v, sum[r][v]);
}

// A tile of which only `height` rows and `width` columns (either may be too large) belong to C goes through a
// full one.
INLINE void edge_tile(const Memory memory, const size_t rows, const size_t columns, Start start, const float *row, size_t K,
                      const float *a, size_t a_step, const float *b, float *c, size_t c_row, size_t height,
                      size_t width) {
  float full[TILE_MOST * TILE_MOST] = {0}, full_row[TILE_MOST] = {0};
  height = at_most(height, rows);
  width = at_most(width, columns);
  for (size_t n = 0; n < width; n++) {
    if (start == FROM_ROW) full_row[n] = row[n];
    if (start == FROM_C)
      for (size_t r = 0; r < height; r++) full[r * columns + n] = c[r * c_row + n];
  }
  tile(memory, rows, columns, start, full_row, K, a, a_step, b, full, columns);
  for (size_t r = 0; r < height; r++)
    for (size_t n = 0; n < width; n++) c[r * c_row + n] = full[r * columns + n];
}

typedef void (*Edge)(Start start, const float *row, size_t K, const float *a, size_t a_step, const float *b,
                     float *c, size_t c_row, size_t height, size_t width);

// edge_tile of one tile as a function: too much code to repeat wherever it is used.
#define EDGE_OF(name, memory, rows, columns)                                                                \
  static __attribute__((noinline)) void name(Start start, const float *row, size_t K, const float *a, \
                                             size_t a_step, const float *b, float *c, size_t c_row, \
                                             size_t height, size_t width) {                         \
    edge_tile(memory, rows, columns, start, row, K, a, a_step, b, c, c_row, height, width);                 \
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

// Packs one panel: `width` lines of `depth` floats → (depth, full); lines beyond `width` become zeros.
// Element k of line i is src[i·line + k·step]; one of the two strides is 1. The panel lies in `memory`, the source
// in the module's own. `full` is a constant.
INLINE void pack_panel(const Memory memory, float *to, const float *src, size_t line, size_t step, size_t width, size_t depth,
                       const size_t full) {
  if (width < full) {
    for (size_t k = 0; k < depth; k++)
      for (size_t i = 0; i < full; i++) put(memory, to + k * full + i, i < width ? src[i * line + k * step] : 0);
    return;
  }
  size_t k = 0;
  if (full % 4 == 0 && line == 1) {
    for (; k < depth; k++)
      UNROLLED for (size_t i = 0; i < full; i += 4) put4(memory, to + k * full, i, load4(src + k * step + i));
  } else if (full % 4 == 0) {
    for (; k + 4 <= depth; k += 4)
      UNROLLED for (size_t i = 0; i < full; i += 4) {
        f4 r[4];
        UNROLLED for (size_t j = 0; j < 4; j++) r[j] = load4(src + (i + j) * line + k);
        transpose4(r);
        UNROLLED for (size_t j = 0; j < 4; j++) put4(memory, to + k * full, j * full + i, r[j]);
      }
  }
  for (; k < depth; k++)
    UNROLLED for (size_t i = 0; i < full; i++) put(memory, to + k * full + i, src[i * line + k * step]);
}

#endif
