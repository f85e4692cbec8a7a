// The GPT's training step on shared memory: legend, the model, and the prototype of every operation.
//
// Letters: L layers, H heads, C d_model, D = C/H, F d_ff, T context, B batch, V vocab, N = B·T.
// A leading `d` means the gradient of the loss with respect to that value. Shapes stand beside tensors.
//
// Bits. Every number is the same for any number of threads, any tile and both address types of one
// module: an output of a matmul is one chain of multiply-adds with k ascending; every other reduction
// runs over chunks that the shape alone fixes; chunks are claimed by whichever thread is free.
//
// Nothing is allocated in a step: gpt_plan lays out all memory once.
#ifndef GPT_H
#define GPT_H

#include "vec.h"

#define EXPORT(name) __attribute__((export_name(#name)))

// ------------------------------------------------------------------------------ threads (pool.c)

// A piece of work: `chunk` of those given to pool_run, on thread `thread` (0 is the caller).
typedef void (*Task)(void *args, size_t chunk, size_t thread);

// Runs task(args, 0…chunks−1, ·) on all threads and returns when every chunk is done.
void pool_run(Task task, void *args, size_t chunks);
size_t pool_threads(void);

INLINE size_t at_most(size_t a, size_t b) { return a < b ? a : b; }
INLINE size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
INLINE uint64_t round_up64(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }
INLINE size_t chunks_of(size_t n, size_t size) { return (n + size - 1) / size; }

// ------------------------------------------------------------------------------ the model (gpt.c)

typedef struct {
  size_t L, H, C, D, F, T, B, V, N;
  double lr, beta1, beta2, eps, weight_decay, grad_clip;
} Config;

// One tensor of the table that the page received: where it lies in the flat sections.
typedef struct {
  char name[48];
  size_t offset, size; // floats
  int decay;
} Slot;

// A parameter and its gradient.
typedef struct {
  float *w, *d;
} Tensor;

typedef struct {
  Tensor ln1_g, ln1_b, wqkv, bqkv, wo, bo, ln2_g, ln2_b, w1, b1, w2, b2;
  // kept by forward for backward
  float *ln1, *ln1_mean, *ln1_rstd; // (N,C) (N) (N)
  float *qkv;                       // (N,3C)
  float *attn, *attn_top, *attn_inverse; // (N,C) (B,H,T) (B,H,T)
  float *mid;                       // (N,C) residual after attention
  float *ln2, *ln2_mean, *ln2_rstd; // (N,C) (N) (N)
  float *gelu, *gelu_slope;         // (N,F) (N,F)
  float *out;                       // (N,C) residual after the mlp
} Layer;

// ------------------------------------------------------------------------------ operations

// Plain loops, or packed panels and register tiles. Same bits.
typedef enum { NAIVE = 0, BLOCKED = 1 } Kernel;

typedef struct {
  Kernel kernel;
  size_t tile; // of a blocked kernel, an index into the module's tiles
} Choice;

// C (M,N) = [bias (N)] + A (M,K) · B (K,N). Strides in floats; of each operand's two strides one is 1. What has
// M rows has N floats in each. Then, where it is asked for, one of: C += add, C ·= slope, or gelu = GELU(C) and
// C = GELU'(C).
typedef struct {
  size_t M, N, K;
  const float *a;
  size_t a_row, a_col;
  const float *b;
  size_t b_row, b_col;
  float *c;
  const float *bias, *add, *slope; // or NULL
  float *gelu;                     // or NULL
} Product;

typedef struct {
  Choice forward, da, db; // what makes x·w, dy·wᵀ, xᵀ·dy
  float *packed;          // an operand in panels, shared, where panels lie (panels.h)
  float *own_panels;      // the same, one piece per thread
  size_t own_floats;      // its length
  float *thread_scratch;  // one piece per thread
  size_t thread_floats;   // its length
  float *partial;         // rows of partial sums, one per chunk
  float *area;            // for roofline.c and kernels.c, if asked for
} Workspace;

extern Workspace work;

void matmul(Choice choice, const Product *product);
uint64_t matmul_packed_floats(uint64_t M, uint64_t N, uint64_t K);
uint64_t matmul_thread_floats(void);
void matmul_forward(float *y, const float *x, const float *w, const float *b, const float *add,
                    size_t N, size_t I, size_t O);
void matmul_gelu_forward(float *y, float *slope, const float *x, const float *w, const float *b, size_t N,
                         size_t I, size_t O);
void matmul_backward_da(float *dx, const float *dy, const float *w, const float *slope, size_t N, size_t I,
                        size_t O);
void matmul_backward_db(float *dw, const float *x, const float *dy, size_t N, size_t I, size_t O);
void head_forward(float *logits, const float *x, const float *wte, size_t N, size_t C, size_t V);
void head_backward_da(float *dx, const float *dlogits, const float *wte, size_t N, size_t C, size_t V);
void head_backward_db(float *dwte, const float *x, const float *dlogits, size_t N, size_t C, size_t V);
void bias_backward(float *db, const float *dy, size_t N, size_t O);
uint64_t bias_partial_floats(uint64_t N, uint64_t O);

void encoder_forward(float *x, const int32_t *tokens, const float *wte, const float *wpe, size_t B,
                     size_t T, size_t C);
void encoder_backward(float *dwte, float *dwpe, const float *dx, const int32_t *tokens, int32_t *order,
                      int32_t *starts, size_t B, size_t T, size_t C, size_t V);

void layernorm_forward(float *y, float *mean, float *rstd, const float *x, const float *g,
                       const float *b, size_t N, size_t C);
void layernorm_backward(float *dx, int add, Tensor g, Tensor b, const float *dy, const float *x,
                        const float *mean, const float *rstd, size_t N, size_t C);
uint64_t layernorm_partial_floats(uint64_t N, uint64_t C);

void attention_forward(float *out, float *row_top, float *row_inverse, const float *qkv, size_t B, size_t T,
                       size_t C, size_t H);
void attention_backward(float *dqkv, const float *dout, const float *row_top, const float *row_inverse,
                        const float *qkv, size_t B, size_t T, size_t C, size_t H);
uint64_t attention_thread_floats(uint64_t T, uint64_t D);

void gelu_row(float *y, float *slope, const float *x, size_t count);
void gelu_forward(float *y, float *slope, const float *x, size_t count);
void gelu_backward(float *dx, const float *slope, size_t count);

double crossentropy(float *logits, double *losses, const int32_t *tokens, size_t B, size_t T, size_t V);

double grad_norm(const float *grad, double *partial, size_t count);
size_t grad_norm_chunks(size_t count);
void adamw(float *param, const float *grad, float *m, float *v, const Slot *slots, size_t count,
           const Config *config, uint64_t t, double scale);

// ------------------------------------------------------------------------------ profile (profile.c)

// The step's operations, each by the name of its function, in the order in which they first run.
#define OPERATIONS(one)                                                                             \
  one(encoder_forward) one(layernorm_forward) one(matmul_forward) one(attention_forward)            \
  one(matmul_gelu_forward) one(head_forward) one(crossentropy) one(head_backward_da) one(head_backward_db) \
  one(layernorm_backward) one(bias_backward) one(matmul_backward_da) one(matmul_backward_db)        \
  one(attention_backward) one(encoder_backward) one(grad_norm) one(adamw)

#define NUMBER(operation) OP_##operation,
typedef enum { OPERATIONS(NUMBER) OPERATIONS_COUNT } Operation;
#undef NUMBER

// What is timed begins; `operation` has ended.
void profile_begin(void);
void profile_lap(Operation operation);

// Runs one operation of the step. One that returns something is called as it is, with a lap behind it.
#define OP(operation, ...) (operation(__VA_ARGS__), profile_lap(OP_##operation))

#endif
