// Token and position embedding: x = wte[token] + wpe[position].
// tokens (B, T+1): inputs are columns 0…T−1.

#include "gpt.h"

#define COLUMNS 16 // columns of a backward chunk: one cache line

typedef struct {
  float *x;
  const float *wte, *wpe;
  float *dwte, *dwpe;
  const int32_t *tokens;
  size_t B, T, C;
} Args;

static void forward_rows(void *args, size_t t, size_t thread) {
  const Args *a = args;
  (void)thread;
  size_t C = a->C;
  const float *wpe = a->wpe + t * C;
  for (size_t b = 0; b < a->B; b++) {
    const float *wte = a->wte + (size_t)a->tokens[b * (a->T + 1) + t] * C;
    float *x = a->x + (b * a->T + t) * C;
    for (size_t i = 0; i < C; i += 4)
      store_some(x + i, C - i, load_some(wte + i, C - i, 0) + load_some(wpe + i, C - i, 0));
  }
}

// x (B,T,C), wte (V,C), wpe (T,C)
void encoder_forward(float *x, const int32_t *tokens, const float *wte, const float *wpe, size_t B,
                     size_t T, size_t C) {
  Args args = {.x = x, .wte = wte, .wpe = wpe, .tokens = tokens, .B = B, .T = T, .C = C};
  pool_run(forward_rows, &args, T);
}

// One block of columns over all positions: each sum has one order whatever the threads.
static void backward_columns(void *args, size_t chunk, size_t thread) {
  const Args *a = args;
  (void)thread;
  size_t C = a->C, from = chunk * COLUMNS, to = at_most(from + COLUMNS, C);
  for (size_t b = 0; b < a->B; b++)
    for (size_t t = 0; t < a->T; t++) {
      const float *dx = a->x + (b * a->T + t) * C;
      float *dwte = a->dwte + (size_t)a->tokens[b * (a->T + 1) + t] * C;
      float *dwpe = a->dwpe + t * C;
      for (size_t i = from; i < to; i += 4) {
        f4 d = load_some(dx + i, to - i, 0);
        store_some(dwte + i, to - i, load_some(dwte + i, to - i, 0) + d);
        store_some(dwpe + i, to - i, b ? load_some(dwpe + i, to - i, 0) + d : d);
      }
    }
}

// Adds to dwte (V,C), which holds the head's part; writes dwpe (T,C).
void encoder_backward(float *dwte, float *dwpe, const float *dx, const int32_t *tokens, size_t B,
                      size_t T, size_t C) {
  Args args = {.x = (float *)dx, .dwte = dwte, .dwpe = dwpe, .tokens = tokens, .B = B, .T = T, .C = C};
  pool_run(backward_columns, &args, chunks_of(C, COLUMNS));
}
