// Softmax and mean cross-entropy; the gradient takes the logits' place.
// tokens (B, T+1): targets are columns 1…T.

#include "gpt.h"

#define ROWS 8 // positions of a chunk

typedef struct {
  float *logits;
  double *losses;
  const int32_t *tokens;
  size_t T, V, N;
} Args;

static void rows(void *args, size_t chunk, size_t thread) {
  const Args *a = args;
  (void)thread;
  size_t V = a->V, to = at_most((chunk + 1) * ROWS, a->N);
  for (size_t n = chunk * ROWS; n < to; n++) {
    float *x = a->logits + n * V;
    size_t target = (size_t)a->tokens[n / a->T * (a->T + 1) + n % a->T + 1];
    float lowest = -__builtin_inff();
    f4 high = splat4(lowest);
    for (size_t i = 0; i < V; i += 4) high = max4(high, load_some(x + i, V - i, lowest));
    float top = max_lanes(high);
    double at_target = x[target];
    f4 sum = splat4(0);
    for (size_t i = 0; i < V; i += 4) {
      f4 e = exp4(load_some(x + i, V - i, lowest) - top);
      if (V - i < 4) // lanes beyond V hold e^−87, not 0
        for (size_t lane = V - i; lane < 4; lane++) e[lane] = 0;
      store_some(x + i, V - i, e);
      sum += e;
    }
    float total = sum_lanes(sum);
    a->losses[n] = log_double(total) + ((double)top - at_target);
    float scale = 1.0f / (total * (float)a->N);
    for (size_t i = 0; i < V; i += 4) store_some(x + i, V - i, load_some(x + i, V - i, 0) * scale);
    x[target] -= 1.0f / (float)a->N;
  }
}

// logits (N,V) ← (softmax − one at the target)/N; losses (N). Returns the mean loss.
double crossentropy(float *logits, double *losses, const int32_t *tokens, size_t B, size_t T, size_t V) {
  Args args = {.logits = logits, .losses = losses, .tokens = tokens, .T = T, .V = V, .N = B * T};
  pool_run(rows, &args, chunks_of(args.N, ROWS));
  double sum = 0;
  for (size_t n = 0; n < args.N; n++) sum += losses[n];
  return sum / (double)args.N;
}
