// Exact GELU: x·Φ(x), Φ the normal distribution. Forward makes the slope Φ(x) + x·φ(x) in the same pass,
// since both need e^(−x²/2), so that backward is one product.

#include "gpt.h"

#define CHUNK 8192 // floats

typedef struct {
  float *x, *slope;
  size_t count;
} Args;

// Φ(−|x|) = e^(−x²/2)·q(t), t = 1/(1 + 0.28·|x|): q fitted so that GELU's absolute error is 5e-9 before
// rounding. x·Φ(x) is max(x,0) − |x|·Φ(−|x|) for either sign, which rounds only once for large x.
INLINE void gelu4(f4 x, f4 *y, f4 *slope) {
  f4 a = (f4)((i4)x & 0x7fffffff);
  f4 e = exp4(a * a * -0.5f);
  f4 t = 1.0f / (a * 0.28f + 1.0f);
  f4 q = splat4(-0.10703207f);
  q = madd4(q, t, splat4(0.39492441f));
  q = madd4(q, t, splat4(-0.2452763f));
  q = madd4(q, t, splat4(0.2756566f));
  q = madd4(q, t, splat4(0.06476839f));
  q = madd4(q, t, splat4(0.11695895f));
  f4 below = e * (q * t);
  i4 positive = x > splat4(0);
  f4 phi = select4(positive, 1.0f - below, below);
  *y = max4(splat4(0), x) - a * below;
  *slope = phi + x * (e * 0.39894228f);
}

static void forward_chunk(void *args, size_t chunk, size_t thread) {
  const Args *a = args;
  (void)thread;
  size_t to = at_most((chunk + 1) * CHUNK, a->count);
  for (size_t i = chunk * CHUNK; i < to; i += 4) {
    f4 y, slope;
    gelu4(load_some(a->x + i, to - i, 0), &y, &slope);
    store_some(a->x + i, to - i, y);
    store_some(a->slope + i, to - i, slope);
  }
}

// x ← GELU(x) in place, slope ← GELU'(x); `count` floats each.
void gelu_forward(float *x, float *slope, size_t count) {
  Args args = {.x = x, .slope = slope, .count = count};
  pool_run(forward_chunk, &args, chunks_of(count, CHUNK));
}

static void backward_chunk(void *args, size_t chunk, size_t thread) {
  const Args *a = args;
  (void)thread;
  size_t to = at_most((chunk + 1) * CHUNK, a->count);
  for (size_t i = chunk * CHUNK; i < to; i += 4)
    store_some(a->x + i, to - i, load_some(a->x + i, to - i, 0) * load_some(a->slope + i, to - i, 0));
}

// dx ← dx·slope in place.
void gelu_backward(float *dx, const float *slope, size_t count) {
  Args args = {.x = dx, .slope = (float *)slope, .count = count};
  pool_run(backward_chunk, &args, chunks_of(count, CHUNK));
}
