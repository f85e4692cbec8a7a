// Gradient norm and AdamW, both in one pass over the flat sections.

#include "gpt.h"

#define CHUNK 16384 // floats

// ------------------------------------------------------------------------------ norm

typedef struct {
  const float *grad;
  double *partial;
  size_t count;
} NormArgs;

static void norm_chunk(void *args, size_t chunk, size_t thread) {
  const NormArgs *a = args;
  (void)thread;
  size_t to = at_most((chunk + 1) * CHUNK, a->count);
  d2 low = {0, 0}, high = {0, 0}; // count is a multiple of 64: no tail
  for (size_t i = chunk * CHUNK; i < to; i += 4) {
    f4 g = load4(a->grad + i);
    d2 x = {g[0], g[1]}, y = {g[2], g[3]};
    low += x * x;
    high += y * y;
  }
  a->partial[chunk] = (low[0] + low[1]) + (high[0] + high[1]);
}

size_t grad_norm_chunks(size_t count) { return chunks_of(count, CHUNK); }

// Global L2 norm of the flat gradients; the gaps between tensors are zero.
double grad_norm(const float *grad, double *partial, size_t count) {
  NormArgs args = {.grad = grad, .partial = partial, .count = count};
  size_t chunks = grad_norm_chunks(count);
  pool_run(norm_chunk, &args, chunks);
  double sum = 0;
  for (size_t i = 0; i < chunks; i++) sum += partial[i];
  return __builtin_sqrt(sum);
}

// ------------------------------------------------------------------------------ update

typedef struct {
  float *param, *m, *v;
  const float *grad;
  const Slot *slots;
  size_t count; // slots
  // one value per step, made in double and rounded once
  float scale, beta1, rest1, beta2, rest2, correct1, correct2, eps, lr, decay;
} Args;

// p −= lr·(m̂/(sqrt(v̂) + eps) + wd·p). The gradient is scaled on the way and stays as it is in memory.
static void update(const Args *a, size_t from, size_t to, float decay) {
  for (size_t i = from; i < to; i += 4) {
    size_t n = to - i;
    f4 p = load_some(a->param + i, n, 0), g = load_some(a->grad + i, n, 0) * a->scale;
    f4 m = madd4(load_some(a->m + i, n, 0), splat4(a->beta1), g * a->rest1);
    f4 v = madd4(load_some(a->v + i, n, 0), splat4(a->beta2), g * g * a->rest2);
    f4 root = __builtin_elementwise_sqrt(v * a->correct2) + a->eps;
    f4 change = madd4(splat4(decay), p, m * a->correct1 / root);
    store_some(a->m + i, n, m);
    store_some(a->v + i, n, v);
    store_some(a->param + i, n, p - change * a->lr);
  }
}

// A chunk is a range of the flat sections; it may hold parts of several tensors.
static void update_chunk(void *args, size_t chunk, size_t thread) {
  const Args *a = args;
  (void)thread;
  size_t from = chunk * CHUNK, to = from + CHUNK;
  for (size_t s = 0; s < a->count; s++) {
    size_t begin = a->slots[s].offset, end = begin + a->slots[s].size;
    if (begin < from) begin = from;
    if (end > to) end = to;
    if (begin < end) update(a, begin, end, a->slots[s].decay ? a->decay : 0);
  }
}

static double power(double base, uint64_t exponent) {
  double result = 1;
  for (; exponent; exponent >>= 1, base *= base)
    if (exponent & 1) result *= base;
  return result;
}

// One step, the t-th; gradients are multiplied by `scale` first. Sections are flat, slots in order.
void adamw(float *param, const float *grad, float *m, float *v, const Slot *slots, size_t count,
           const Config *c, uint64_t t, double scale) {
  Args args = {.param = param, .grad = grad, .m = m, .v = v, .slots = slots, .count = count,
               .scale = (float)scale,
               .beta1 = (float)c->beta1, .rest1 = (float)(1 - c->beta1),
               .beta2 = (float)c->beta2, .rest2 = (float)(1 - c->beta2),
               .correct1 = (float)(1 / (1 - power(c->beta1, t))),
               .correct2 = (float)(1 / (1 - power(c->beta2, t))),
               .eps = (float)c->eps, .lr = (float)c->lr, .decay = (float)c->weight_decay};
  const Slot *last = &slots[count - 1];
  pool_run(update_chunk, &args, chunks_of(last->offset + last->size, CHUNK));
}
