// The register tile that every fast product is made of, and the packing that feeds it.
//
// TILE_ROWS × TILE_COLUMNS outputs live in vector registers while k runs. One step of k loads one vector of
// A, which holds TILE_ROWS rows side by side, and spreads its lanes with shuffles: three loads for eight
// multiply-adds. Loads are what 64-bit memory makes dearer (each is bounds-checked); with a splat load
// per row the same tile loses a fifth there. Unrolling k by 2 or 4 was slower (spills).
#ifndef TILE_H
#define TILE_H

#include "gpt.h"

#ifdef __wasm_simd128__
#define TILE_ROWS 4
#define TILE_COLUMNS 8
#else // without SIMD fewer values fit into registers
#define TILE_ROWS 2
#define TILE_COLUMNS 4
#endif
#define TILE_VECTORS (TILE_COLUMNS / 4)

typedef enum { FROM_ZERO, FROM_ROW, FROM_C } Start;

// Tile of C = start + a (K, TILE_ROWS) · b (K, TILE_COLUMNS). A step of k is a_step floats in a, b is packed.
// The chains start at 0, at `row` (TILE_COLUMNS floats, the bias) or at what C holds; C's rows are c_row apart.
INLINE void tile(Start start, const float *row, size_t K, const float *a, size_t a_step, const float *b,
                 float *c, size_t c_row) {
  f4 sum[TILE_ROWS][TILE_VECTORS];
  UNROLLED for (size_t r = 0; r < TILE_ROWS; r++)
    UNROLLED for (size_t v = 0; v < TILE_VECTORS; v++)
      sum[r][v] = start == FROM_ZERO ? splat4(0) : load4((start == FROM_ROW ? row : c + r * c_row) + 4 * v);
  for (const float *end = b + K * TILE_COLUMNS; b < end; a += a_step, b += TILE_COLUMNS) {
    f4 right[TILE_VECTORS];
    UNROLLED for (size_t v = 0; v < TILE_VECTORS; v++) right[v] = load4(b + 4 * v);
#if TILE_ROWS == 4
    f4 rows = load4(a);
    const f4 left[] = {__builtin_shufflevector(rows, rows, 0, 0, 0, 0),
                       __builtin_shufflevector(rows, rows, 1, 1, 1, 1),
                       __builtin_shufflevector(rows, rows, 2, 2, 2, 2),
                       __builtin_shufflevector(rows, rows, 3, 3, 3, 3)};
#else
    const f4 left[] = {splat4(a[0]), splat4(a[1])};
#endif
    UNROLLED for (size_t r = 0; r < TILE_ROWS; r++)
      UNROLLED for (size_t v = 0; v < TILE_VECTORS; v++) sum[r][v] = madd4(left[r], right[v], sum[r][v]);
  }
  UNROLLED for (size_t r = 0; r < TILE_ROWS; r++)
    UNROLLED for (size_t v = 0; v < TILE_VECTORS; v++) store4(c + r * c_row + 4 * v, sum[r][v]);
}

// A tile of which only `rows` and `columns` (either may be too large) belong to C goes through a full one.
static inline __attribute__((noinline)) void edge_tile(Start start, const float *row, size_t K, const float *a,
                                                       size_t a_step, const float *b, float *c, size_t c_row,
                                                       size_t rows, size_t columns) {
  float full[TILE_ROWS * TILE_COLUMNS] = {0}, full_row[TILE_COLUMNS] = {0};
  rows = at_most(rows, TILE_ROWS);
  columns = at_most(columns, TILE_COLUMNS);
  for (size_t n = 0; n < columns; n++) {
    if (start == FROM_ROW) full_row[n] = row[n];
    if (start == FROM_C)
      for (size_t r = 0; r < rows; r++) full[r * TILE_COLUMNS + n] = c[r * c_row + n];
  }
  tile(start, full_row, K, a, a_step, b, full, TILE_COLUMNS);
  for (size_t r = 0; r < rows; r++)
    for (size_t n = 0; n < columns; n++) c[r * c_row + n] = full[r * TILE_COLUMNS + n];
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
// Element k of line i is src[i·line + k·step]; one of the two strides is 1. `full` is a constant.
INLINE void pack_panel(float *to, const float *src, size_t line, size_t step, size_t width, size_t depth,
                       const size_t full) {
  if (width < full) {
    for (size_t k = 0; k < depth; k++)
      for (size_t i = 0; i < full; i++) to[k * full + i] = i < width ? src[i * line + k * step] : 0;
    return;
  }
  size_t k = 0;
  if (full % 4 == 0 && line == 1) {
    for (; k < depth; k++)
      UNROLLED for (size_t i = 0; i < full; i += 4) store4(to + k * full + i, load4(src + k * step + i));
  } else if (full % 4 == 0) {
    for (; k + 4 <= depth; k += 4)
      UNROLLED for (size_t i = 0; i < full; i += 4) {
        f4 r[4];
        UNROLLED for (size_t j = 0; j < 4; j++) r[j] = load4(src + (i + j) * line + k);
        transpose4(r);
        UNROLLED for (size_t j = 0; j < 4; j++) store4(to + (k + j) * full + i, r[j]);
      }
  }
  for (; k < depth; k++)
    UNROLLED for (size_t i = 0; i < full; i++) to[k * full + i] = src[i * line + k * step];
}

#endif
