// Four float lanes, with or without SIMD: clang's vectors become v128 instructions where the module has
// them and plain floats where it does not, so one source gives every feature level. Elementwise results
// do not depend on where a lane stands; that is why tails are loaded into padded vectors and not
// computed by other code.
#ifndef VEC_H
#define VEC_H

#include <stddef.h>
#include <stdint.h>
#ifdef __wasm_simd128__
#include <wasm_simd128.h>
#endif

typedef float f4 __attribute__((vector_size(16), may_alias));
typedef float f4_any __attribute__((vector_size(16), aligned(4), may_alias)); // at any float
typedef int32_t i4 __attribute__((vector_size(16)));
typedef double d2 __attribute__((vector_size(16)));

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("clang loop unroll(full)")

// The compiler computes `value` here, neither earlier nor later; it costs no instruction.
#ifdef __wasm_simd128__
#define KEEP(value) __extension__({ __asm__ volatile("" : "+r"(value) : : "memory"); })
#else
#define KEEP(value) (void)0
#endif

INLINE f4 load4(const float *p) { return *(const f4_any *)p; }
INLINE void store4(float *p, f4 v) { *(f4_any *)p = v; }
INLINE f4 splat4(float x) { return (f4){x, x, x, x}; }

// The first n floats at p (n may exceed 4), the other lanes `rest`.
INLINE f4 load_some(const float *p, size_t n, float rest) {
  if (n >= 4) return load4(p);
  f4 v = splat4(rest);
  for (size_t i = 0; i < n; i++) v[i] = p[i];
  return v;
}

INLINE void store_some(float *p, size_t n, f4 v) {
  if (n >= 4) {
    store4(p, v);
    return;
  }
  for (size_t i = 0; i < n; i++) p[i] = v[i];
}

// a·b + c: the one multiply-add of a module. Fused (rounded once) under relaxed SIMD where the machine
// can, else rounded twice.
INLINE f4 madd4(f4 a, f4 b, f4 c) {
#ifdef __wasm_relaxed_simd__
  return (f4)wasm_f32x4_relaxed_madd((v128_t)a, (v128_t)b, (v128_t)c);
#else
  return a * b + c;
#endif
}

INLINE float madd(float a, float b, float c) {
#ifdef __wasm_relaxed_simd__
  return madd4(splat4(a), splat4(b), splat4(c))[0];
#else
  return a * b + c;
#endif
}

INLINE f4 select4(i4 mask, f4 yes, f4 no) {
  return (f4)(((i4)yes & mask) | ((i4)no & ~mask));
}

// NaN in b stays: a comparison with it is false.
INLINE f4 max4(f4 a, f4 b) { return select4(a > b, a, b); }

INLINE float sum_lanes(f4 v) { return (v[0] + v[2]) + (v[1] + v[3]); }

INLINE float max_lanes(f4 v) {
  float m = v[0];
  for (int i = 1; i < 4; i++) m = m > v[i] ? m : v[i];
  return m;
}

// e^x for x ≤ 88, relative error about 1e-7; below −87 it stays at e^−87.
// x = n·ln2 + r with |r| ≤ ln2/2; n by adding 1.5·2^23, whose low mantissa bits then hold it; e^r by a
// polynomial fitted for the least relative error (3e-9 before rounding).
INLINE f4 exp4(f4 x) {
  x = max4(splat4(-87.0f), x);
  const f4 magic = splat4(12582912.0f);
  f4 t = x * 1.44269504f + magic;
  f4 n = t - magic;
  f4 r = x - n * 0.693359375f; // ln2 in two parts; the first has few bits, so the product is exact
  r = r - n * -2.12194440e-4f;
  f4 p = splat4(0.001381388f);
  p = madd4(p, r, splat4(0.008369064f));
  p = madd4(p, r, splat4(0.041668423f));
  p = madd4(p, r, splat4(0.16666518f));
  p = madd4(p, r, splat4(0.49999994f));
  p = madd4(p * r, r, r) + 1.0f;
  return (f4)((i4)p + ((i4)t << 23));
}

// Natural logarithm of a positive finite double: 2·atanh((m−1)/(m+1)) + e·ln2. NaN for anything else, so
// that a sum spoilt by a NaN never looks like a loss. Once per row: clarity before speed.
INLINE double log_double(double x) {
  if (!(x > 0 && x <= 0x1.fffffffffffffp1023)) return __builtin_nan("");
  union {
    double value;
    uint64_t bits;
  } u = {x};
  int e = (int)(u.bits >> 52) - 1023;
  u.bits = (u.bits & 0xfffffffffffffull) | 0x3ff0000000000000ull; // m in [1, 2)
  if (u.value > 1.4142135623730951) {
    u.value *= 0.5;
    e++;
  }
  double s = (u.value - 1) / (u.value + 1), s2 = s * s, series = 0;
  for (int k = 21; k > 0; k -= 2) series = series * s2 + 1.0 / k;
  return 2 * s * series + e * 0.6931471805599453;
}

#endif
