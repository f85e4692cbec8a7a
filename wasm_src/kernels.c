// Single kernels apart from the step, on inputs of the page's: to check one and to time it.

#include "gpt.h"

// ------------------------------------------------------------------------------ products

// The area holds A, B and C, one after another.
typedef enum { FORWARD = 0, DA = 1, DB = 2 } Layout;

static size_t apart(size_t floats) { return round_up(floats, 64); }

EXPORT(kernel_floats) double kernel_floats(double M, double N, double K) { return M * K + K * N + M * N + 3 * 64; }

EXPORT(kernel_packed_floats) double kernel_packed_floats(double M, double N, double K) {
  return (double)matmul_packed_floats((uint64_t)M, (uint64_t)N, (uint64_t)K);
}

EXPORT(kernel_operand) float *kernel_operand(int operand, size_t M, size_t N, size_t K) {
  const size_t before[] = {0, apart(M * K), apart(M * K) + apart(K * N)};
  return work.area + before[operand];
}

// C (M,N) = A·B, `times` times. As in the step: forward has A (M,K) and B (K,N), dA has B as (N,K), dB has A
// as (K,M).
EXPORT(kernel_product) void kernel_product(int layout, int kernel, size_t tile, size_t M, size_t N, size_t K,
                                           size_t times) {
  Product p = {.M = M, .N = N, .K = K, .a = kernel_operand(0, M, N, K), .a_row = layout == DB ? 1 : K,
               .a_col = layout == DB ? M : 1, .b = kernel_operand(1, M, N, K), .b_row = layout == DA ? 1 : N,
               .b_col = layout == DA ? K : 1, .c = kernel_operand(2, M, N, K)};
  for (size_t i = 0; i < times; i++) matmul((Choice){(Kernel)kernel, tile}, &p);
}

// ------------------------------------------------------------------------------ the step's other operations

// One call of an operation. The page places operands (p) and scratch in the area; operands and sizes (n)
// come in the order of driver/kernels/operations.py, results first.
typedef struct {
  float **p;
  const size_t *n;
  float *scratch;
} Call;

#define OPERANDS 8
#define SIZES 4

static float *placed[OPERANDS + 1]; // the last is the scratch

static const int32_t *tokens_of(const float *operand) { return (const int32_t *)operand; }

static void run_encoder_forward(Call c) { // n: B T C
  encoder_forward(c.p[0], tokens_of(c.p[1]), c.p[2], c.p[3], c.n[0], c.n[1], c.n[2]);
}

static void run_encoder_backward(Call c) { // n: B T C V
  int32_t *order = (int32_t *)c.scratch, *starts = order + c.n[0] * c.n[1];
  encoder_backward(c.p[0], c.p[1], c.p[2], tokens_of(c.p[3]), order, starts, c.n[0], c.n[1], c.n[2], c.n[3]);
}

static void run_layernorm_forward(Call c) { // n: N C
  layernorm_forward(c.p[0], c.p[1], c.p[2], c.p[3], c.p[4], c.p[5], c.n[0], c.n[1]);
}

static void run_layernorm_backward(Call c) { // n: N C
  work.partial = c.scratch;
  layernorm_backward(c.p[0], 1, (Tensor){c.p[3], c.p[1]}, (Tensor){0, c.p[2]}, c.p[4], c.p[5], c.p[6], c.p[7],
                     c.n[0], c.n[1]);
}

static void share_scratch(Call c) {
  work.thread_scratch = c.scratch;
  work.thread_floats = (size_t)round_up64(attention_thread_floats(c.n[1], c.n[2] / c.n[3]), 64);
}

static void run_attention_forward(Call c) { // n: B T C H
  share_scratch(c);
  attention_forward(c.p[0], c.p[1], c.p[2], c.p[3], c.n[0], c.n[1], c.n[2], c.n[3]);
}

static void run_attention_backward(Call c) { // n: B T C H
  share_scratch(c);
  attention_backward(c.p[0], c.p[1], c.p[2], c.p[3], c.p[4], c.n[0], c.n[1], c.n[2], c.n[3]);
}

static void run_gelu_forward(Call c) { // n: N F
  gelu_forward(c.p[0], c.p[1], c.p[2], c.n[0] * c.n[1]);
}

static void run_gelu_backward(Call c) { // n: N F
  gelu_backward(c.p[0], c.p[1], c.n[0] * c.n[1]);
}

static void run_crossentropy(Call c) { // n: B T V
  *(double *)(void *)c.p[1] =
      crossentropy(c.p[0], (double *)(void *)c.scratch, tokens_of(c.p[2]), c.n[0], c.n[1], c.n[2]);
}

static void run_bias_backward(Call c) { // n: N O
  work.partial = c.scratch;
  bias_backward(c.p[0], c.p[1], c.n[0], c.n[1]);
}

static void run_grad_norm(Call c) { // n: floats
  *(double *)(void *)c.p[0] = grad_norm(c.p[1], (double *)(void *)c.scratch, c.n[0]);
}

// p: param m v, grad, the tensors as (offset, size, decay), the recipe in doubles. n: floats, tensors
static void run_adamw(Call c) {
  Slot *slots = (Slot *)(void *)c.scratch;
  const int32_t *rows = tokens_of(c.p[4]);
  for (size_t i = 0; i < c.n[1]; i++, rows += 3)
    slots[i].offset = (size_t)rows[0], slots[i].size = (size_t)rows[1], slots[i].decay = rows[2];
  const double *recipe = (const double *)(const void *)c.p[5];
  Config config = {.lr = recipe[0], .beta1 = recipe[1], .beta2 = recipe[2], .eps = recipe[3],
                   .weight_decay = recipe[4]};
  adamw(c.p[0], c.p[3], c.p[1], c.p[2], slots, c.n[1], &config, (uint64_t)recipe[5], recipe[6]);
}

// Scratch in floats, from sizes and threads.
static uint64_t no_scratch(const uint64_t *n, uint64_t threads) { return (void)n, (void)threads, 0; }
static uint64_t encoder_scratch(const uint64_t *n, uint64_t threads) { return (void)threads, n[0] * n[1] + n[3] + 1; }
static uint64_t layernorm_scratch(const uint64_t *n, uint64_t threads) {
  return (void)threads, layernorm_partial_floats(n[0], n[1]);
}
static uint64_t attention_scratch(const uint64_t *n, uint64_t threads) {
  return threads * round_up64(attention_thread_floats(n[1], n[2] / n[3]), 64);
}
static uint64_t losses_scratch(const uint64_t *n, uint64_t threads) { return (void)threads, 2 * n[0] * n[1]; }
static uint64_t bias_scratch(const uint64_t *n, uint64_t threads) {
  return (void)threads, bias_partial_floats(n[0], n[1]);
}
static uint64_t norm_scratch(const uint64_t *n, uint64_t threads) {
  return (void)threads, 2 * grad_norm_chunks((size_t)n[0]);
}
static uint64_t slots_scratch(const uint64_t *n, uint64_t threads) {
  return (void)threads, n[1] * sizeof(Slot) / sizeof(float);
}

static const struct {
  const char *name;
  void (*run)(Call);
  uint64_t (*scratch)(const uint64_t *n, uint64_t threads);
} operations[] = {
    {"encoder_forward", run_encoder_forward, no_scratch},
    {"encoder_backward", run_encoder_backward, encoder_scratch},
    {"layernorm_forward", run_layernorm_forward, no_scratch},
    {"layernorm_backward", run_layernorm_backward, layernorm_scratch},
    {"attention_forward", run_attention_forward, attention_scratch},
    {"attention_backward", run_attention_backward, attention_scratch},
    {"gelu_forward", run_gelu_forward, no_scratch},
    {"gelu_backward", run_gelu_backward, no_scratch},
    {"crossentropy", run_crossentropy, losses_scratch},
    {"bias_backward", run_bias_backward, bias_scratch},
    {"grad_norm", run_grad_norm, norm_scratch},
    {"adamw", run_adamw, slots_scratch},
};

EXPORT(operation_count) size_t operation_count(void) { return sizeof operations / sizeof *operations; }
EXPORT(operation_name) const char *operation_name(size_t operation) { return operations[operation].name; }

EXPORT(operation_scratch_floats) double operation_scratch_floats(size_t operation, double n0, double n1, double n2,
                                                                 double n3, double threads) {
  const uint64_t n[SIZES] = {(uint64_t)n0, (uint64_t)n1, (uint64_t)n2, (uint64_t)n3};
  return (double)operations[operation].scratch(n, (uint64_t)threads);
}

// Where an operand (or, as number 8, the scratch) lies: so many floats into the area.
EXPORT(operation_place) float *operation_place(size_t operand, size_t floats) {
  return placed[operand] = work.area + floats;
}

EXPORT(operation_run) void operation_run(size_t operation, size_t n0, size_t n1, size_t n2, size_t n3, size_t times) {
  const size_t n[SIZES] = {n0, n1, n2, n3};
  Workspace kept = work;
  for (size_t i = 0; i < times; i++) operations[operation].run((Call){placed, n, placed[OPERANDS]});
  work = kept;
}
