// Single products apart from the step, on inputs of the page's: to check a kernel and to time it.

#include "gpt.h"

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
