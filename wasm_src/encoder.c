// Token and position embedding: x = wte[token] + wpe[position].
// tokens (B, T+1): inputs are columns 0…T−1.

#include "gpt.h"

#define COLUMNS 16 // columns summed side by side: one cache line
#define RUN 64     // positions of a token that are summed before they join the others
#define TOKENS 8   // tokens of a backward chunk

typedef struct {
  float *x;
  const float *wte, *wpe;
  float *dwte, *dwpe;
  const int32_t *tokens;
  const int32_t *order, *starts;
  size_t B, T, C, V;
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

// Backward sums a token's positions by themselves and adds that to the head's part once: one at a time
// they would be rounded to the head's larger numbers. order (N) lists positions token by token, a token's
// from starts[token] on.
static void sort_by_token(int32_t *order, int32_t *starts, const int32_t *tokens, size_t B, size_t T, size_t V) {
  for (size_t v = 0; v <= V; v++) starts[v] = 0;
  for (size_t b = 0; b < B; b++)
    for (size_t t = 0; t < T; t++) starts[tokens[b * (T + 1) + t] + 1]++;
  for (size_t v = 0; v < V; v++) starts[v + 1] += starts[v];
  // starts[v] walks to the start of v+1 while v's positions are placed, and is shifted back after that.
  for (size_t b = 0; b < B; b++)
    for (size_t t = 0; t < T; t++) order[starts[tokens[b * (T + 1) + t]]++] = (int32_t)(b * T + t);
  for (size_t v = V; v > 0; v--) starts[v] = starts[v - 1];
  starts[0] = 0;
}

// Columns from…from+COLUMNS of one token: runs of RUN positions are summed first, then the runs.
static void add_token(const Args *a, size_t token, size_t from) {
  size_t C = a->C, width = at_most(COLUMNS, C - from);
  float *dwte = a->dwte + token * C + from;
  f4 total[COLUMNS / 4] = {0};
  for (int32_t n = a->starts[token]; n < a->starts[token + 1];) {
    f4 run[COLUMNS / 4] = {0};
    int32_t end = n + RUN < a->starts[token + 1] ? n + RUN : a->starts[token + 1];
    for (; n < end; n++)
      for (size_t i = 0; i < width; i += 4)
        run[i / 4] += load_some(a->x + (size_t)a->order[n] * C + from + i, width - i, 0);
    for (size_t i = 0; i < width; i += 4) total[i / 4] += run[i / 4];
  }
  for (size_t i = 0; i < width; i += 4)
    store_some(dwte + i, width - i, load_some(dwte + i, width - i, 0) + total[i / 4]);
}

static void backward_tokens(void *args, size_t chunk, size_t thread) {
  const Args *a = args;
  (void)thread;
  for (size_t v = chunk * TOKENS; v < at_most((chunk + 1) * TOKENS, a->V); v++)
    if (a->starts[v] < a->starts[v + 1])
      for (size_t from = 0; from < a->C; from += COLUMNS) add_token(a, v, from);
}

static void backward_position(void *args, size_t t, size_t thread) {
  const Args *a = args;
  (void)thread;
  size_t C = a->C;
  float *dwpe = a->dwpe + t * C;
  for (size_t i = 0; i < C; i += 4) {
    f4 sum = splat4(0);
    for (size_t b = 0; b < a->B; b++) sum += load_some(a->x + (b * a->T + t) * C + i, C - i, 0);
    store_some(dwpe + i, C - i, sum);
  }
}

// Adds to dwte (V,C), which holds the head's part; writes dwpe (T,C). order (N) and starts (V+1) are scratch.
void encoder_backward(float *dwte, float *dwpe, const float *dx, const int32_t *tokens, int32_t *order,
                      int32_t *starts, size_t B, size_t T, size_t C, size_t V) {
  Args args = {.x = (float *)dx, .dwte = dwte, .dwpe = dwpe, .order = order, .starts = starts,
               .B = B, .T = T, .C = C, .V = V};
  sort_by_token(order, starts, tokens, B, T, V);
  pool_run(backward_tokens, &args, chunks_of(V, TOKENS));
  pool_run(backward_position, &args, T);
}
