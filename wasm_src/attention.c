// Causal attention per head: softmax(q·kᵀ/sqrt(D))·v. qkv (B,T,3C): q, k, v side by side, heads contiguous.
// One chunk is one head of one sequence. Nothing of size T×T outlives a chunk: forward keeps the
// logarithm of each row's sum, from which backward makes the probabilities again.
//
// Inside a chunk every matrix has rows padded to a whole number of vectors, the padding zero.

#include "gpt.h"

typedef struct {
  float *out, *lse;
  const float *qkv;
  float *dqkv;
  const float *dout;
  size_t B, T, C, H, D;
} Args;

// What a thread holds: q, k, v, out and their gradients with padded rows, k and v also transposed,
// probabilities and their gradients.
typedef struct {
  size_t Dp, Tp;                           // padded row lengths
  float *q, *k, *v, *o, *dq, *dk, *dv, *d_o; // (T,Dp)
  float *kt, *vt;                          // (D,Tp)
  float *p, *dp;                           // (T,Tp)
} Scratch;

static Scratch scratch_of(size_t thread, size_t T, size_t D) {
  Scratch s = {.Dp = round_up(D, 4), .Tp = round_up(T, 4)};
  float *at = work.thread_scratch + thread * work.thread_floats;
  float **wide[] = {&s.q, &s.k, &s.v, &s.o, &s.dq, &s.dk, &s.dv, &s.d_o};
  for (size_t i = 0; i < 8; i++, at += T * s.Dp) *wide[i] = at;
  s.kt = at, at += D * s.Tp;
  s.vt = at, at += D * s.Tp;
  s.p = at, at += T * s.Tp;
  s.dp = at;
  return s;
}

uint64_t attention_thread_floats(uint64_t T, uint64_t D) {
  uint64_t Tp = round_up64(T, 4), Dp = round_up64(D, 4);
  return 8 * T * Dp + 2 * D * Tp + 2 * T * Tp;
}

// (T,D) with rows of `row` floats → (T,Dp)
static void gather(float *to, const float *from, size_t row, size_t T, size_t D, size_t Dp) {
  for (size_t t = 0; t < T; t++)
    for (size_t i = 0; i < D; i += 4) store4(to + t * Dp + i, load_some(from + t * row + i, D - i, 0));
}

static void scatter(float *to, const float *from, size_t row, size_t T, size_t D, size_t Dp) {
  for (size_t t = 0; t < T; t++)
    for (size_t i = 0; i < D; i += 4) store_some(to + t * row + i, D - i, load4(from + t * Dp + i));
}

// (T,D) with rows of `row` floats → (D,Tp)
static void gather_transposed(float *to, const float *from, size_t row, size_t T, size_t D, size_t Tp) {
  for (size_t i = 0; i < D; i++)
    for (size_t t = 0; t < Tp; t++) to[i * Tp + t] = t < T ? from[t * row + i] : 0;
}

// c (count) += a · b (count), count a multiple of 4
INLINE void add_multiple(float *c, float a, const float *b, size_t count) {
  for (size_t i = 0; i < count; i += 4) store4(c + i, madd4(splat4(a), load4(b + i), load4(c + i)));
}

static void clear(float *c, size_t count) {
  for (size_t i = 0; i < count; i += 4) store4(c + i, splat4(0));
}

// Row t of scores q·kᵀ·scale: columns 0…t are meant, the rest of the last vector is rubbish.
static void score_row(const Scratch *s, size_t t, size_t D, float scale) {
  size_t count = round_up(t + 1, 4);
  float *p = s->p + t * s->Tp;
  clear(p, count);
  for (size_t i = 0; i < D; i++) add_multiple(p, s->q[t * s->Dp + i] * scale, s->kt + i * s->Tp, count);
}

static void forward_head(void *args, size_t chunk, size_t thread) {
  const Args *a = args;
  size_t T = a->T, D = a->D, b = chunk / a->H, h = chunk % a->H, row = 3 * a->C;
  Scratch s = scratch_of(thread, T, D);
  const float *qkv = a->qkv + b * T * row + h * D;
  float scale = 1.0f / __builtin_sqrtf((float)D);
  gather(s.q, qkv, row, T, D, s.Dp);
  gather_transposed(s.kt, qkv + a->C, row, T, D, s.Tp);
  gather(s.v, qkv + 2 * a->C, row, T, D, s.Dp);
  for (size_t t = 0; t < T; t++) {
    score_row(&s, t, D, scale);
    float *p = s.p + t * s.Tp, lowest = -__builtin_inff();
    f4 high = splat4(lowest);
    for (size_t u = 0; u <= t; u += 4) high = max4(high, load_some(p + u, t + 1 - u, lowest));
    float top = max_lanes(high);
    f4 total = splat4(0);
    for (size_t u = 0; u <= t; u += 4) {
      f4 e = exp4(load4(p + u) - top);
      for (size_t lane = 0; lane < 4; lane++)
        if (u + lane > t) e[lane] = 0;
      store4(p + u, e);
      total += e;
    }
    float sum = sum_lanes(total);
    a->lse[chunk * T + t] = top + (float)log_double(sum);
    float *o = s.o + t * s.Dp;
    clear(o, s.Dp);
    for (size_t u = 0; u <= t; u++) add_multiple(o, p[u], s.v + u * s.Dp, s.Dp);
    for (size_t i = 0; i < s.Dp; i += 4) store4(o + i, load4(o + i) * (1.0f / sum));
  }
  scatter(a->out + b * T * a->C + h * D, s.o, a->C, T, D, s.Dp);
}

// out (B,T,C), lse (B,H,T), qkv (B,T,3C)
void attention_forward(float *out, float *lse, const float *qkv, size_t B, size_t T, size_t C, size_t H) {
  Args args = {.out = out, .lse = lse, .qkv = qkv, .B = B, .T = T, .C = C, .H = H, .D = C / H};
  pool_run(forward_head, &args, B * H);
}

// dp = dout·vᵀ; ds = p·(dp − Σ dout·out); dq = ds·k, dk = dsᵀ·q, dv = pᵀ·dout.
static void backward_head(void *args, size_t chunk, size_t thread) {
  const Args *a = args;
  size_t T = a->T, D = a->D, b = chunk / a->H, h = chunk % a->H, row = 3 * a->C;
  Scratch s = scratch_of(thread, T, D);
  const float *qkv = a->qkv + b * T * row + h * D;
  float scale = 1.0f / __builtin_sqrtf((float)D);
  gather(s.q, qkv, row, T, D, s.Dp);
  gather(s.k, qkv + a->C, row, T, D, s.Dp);
  gather_transposed(s.kt, qkv + a->C, row, T, D, s.Tp);
  gather_transposed(s.vt, qkv + 2 * a->C, row, T, D, s.Tp);
  gather(s.o, a->out + b * T * a->C + h * D, a->C, T, D, s.Dp);
  gather(s.d_o, a->dout + b * T * a->C + h * D, a->C, T, D, s.Dp);
  clear(s.dq, T * s.Dp);
  clear(s.dk, T * s.Dp);
  clear(s.dv, T * s.Dp);
  for (size_t t = 0; t < T; t++) {
    score_row(&s, t, D, scale);
    size_t count = round_up(t + 1, 4);
    float *p = s.p + t * s.Tp, *dp = s.dp + t * s.Tp;
    const float *d_o = s.d_o + t * s.Dp, *o = s.o + t * s.Dp;
    clear(dp, count);
    for (size_t i = 0; i < D; i++) add_multiple(dp, d_o[i], s.vt + i * s.Tp, count);
    f4 dot = splat4(0);
    for (size_t i = 0; i < s.Dp; i += 4) dot = madd4(load4(d_o + i), load4(o + i), dot);
    float shared = sum_lanes(dot), lse = a->lse[chunk * T + t];
    for (size_t u = 0; u <= t; u += 4) {
      f4 e = exp4(load4(p + u) - lse);
      for (size_t lane = 0; lane < 4; lane++)
        if (u + lane > t) e[lane] = 0;
      store4(p + u, e);
      store4(dp + u, e * (load4(dp + u) - shared) * scale);
    }
    for (size_t u = 0; u <= t; u++) {
      add_multiple(s.dq + t * s.Dp, dp[u], s.k + u * s.Dp, s.Dp);
      add_multiple(s.dk + u * s.Dp, dp[u], s.q + t * s.Dp, s.Dp);
      add_multiple(s.dv + u * s.Dp, p[u], d_o, s.Dp);
    }
  }
  float *dqkv = a->dqkv + b * T * row + h * D;
  scatter(dqkv, s.dq, row, T, D, s.Dp);
  scatter(dqkv + a->C, s.dk, row, T, D, s.Dp);
  scatter(dqkv + 2 * a->C, s.dv, row, T, D, s.Dp);
}

// dqkv, qkv (B,T,3C); dout, out (B,T,C); lse (B,H,T)
void attention_backward(float *dqkv, const float *dout, const float *out, const float *lse,
                        const float *qkv, size_t B, size_t T, size_t C, size_t H) {
  Args args = {.dqkv = dqkv, .dout = dout, .out = (float *)out, .lse = (float *)lse, .qkv = qkv,
               .B = B, .T = T, .C = C, .H = H, .D = C / H};
  pool_run(backward_head, &args, B * H);
}
