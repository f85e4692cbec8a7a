// Where packed panels lie.
//
// An engine checks every access to a 64-bit memory with a compare and a branch, which take slots from the
// multiply-adds; a 32-bit memory lies in a reservation that no index can leave, and costs nothing. So modules with
// 64-bit addresses keep the panels of their products, which are all that the inner loop reads, in a second memory
// with 32-bit addresses. C compilers know one memory only: the instructions are written byte by byte, the import
// is added to the linked module by driver/build.py, which defines PANELS_APART.
#ifndef PANELS_H
#define PANELS_H

#include "gpt.h"

// HERE: the module's own memory. PANELS: where panels lie; a pointer to a panel is an index into that memory. Always
// a constant where it is used.
typedef enum { HERE, PANELS } Memory;

#ifdef PANELS_APART
// memarg: alignment 2^0 with bit 6, which announces the memory's index; memory 1; the offset in bytes.
#define MEMORY_1 "0x40, 0x01\n.uleb128 "
#define INDEX(p) ((uint32_t)(size_t)(p))

INLINE f4 panels_load4(const float *p, const size_t at) { // v128.load
  f4 v;
  __asm__ volatile("local.get %1\n.byte 0xfd, 0x00, " MEMORY_1 "%2\nlocal.set %0"
                   : "=r"(v) : "r"(INDEX(p)), "i"(sizeof *p * at));
  return v;
}

INLINE f4 panels_splat4(const float *p, const size_t at) { // v128.load32_splat
  f4 v;
  __asm__ volatile("local.get %1\n.byte 0xfd, 0x09, " MEMORY_1 "%2\nlocal.set %0"
                   : "=r"(v) : "r"(INDEX(p)), "i"(sizeof *p * at));
  return v;
}

INLINE void panels_store4(float *p, const size_t at, f4 v) { // v128.store
  __asm__ volatile("local.get %0\nlocal.get %1\n.byte 0xfd, 0x0b, " MEMORY_1 "%2"
                   : : "r"(INDEX(p)), "r"(v), "i"(sizeof *p * at) : "memory");
}

INLINE void panels_store(float *p, float v) { // f32.store
  __asm__ volatile("local.get %0\nlocal.get %1\n.byte 0x38, " MEMORY_1 "0"
                   : : "r"(INDEX(p)), "r"(v) : "memory");
}
#else
INLINE f4 panels_load4(const float *p, const size_t at) { return load4(p + at); }
INLINE void panels_store4(float *p, const size_t at, f4 v) { store4(p + at, v); }
INLINE void panels_store(float *p, float v) { *p = v; }
#ifdef __wasm_simd128__
INLINE f4 panels_splat4(const float *p, const size_t at) { return (f4)wasm_v128_load32_splat(p + at); }
#endif
#endif

// Four floats from p[at] on. `at` is a constant, so that it becomes a field of the load.
INLINE f4 get4(const Memory memory, const float *p, const size_t at) {
  return memory == PANELS ? panels_load4(p, at) : load4(p + at);
}

#ifdef __wasm_simd128__
// p[at] on all lanes.
INLINE f4 get_splat4(const Memory memory, const float *p, const size_t at) {
  return memory == PANELS ? panels_splat4(p, at) : (f4)wasm_v128_load32_splat(p + at);
}
#endif

INLINE void put4(const Memory memory, float *p, const size_t at, f4 v) {
  if (memory == PANELS)
    panels_store4(p, at, v);
  else
    store4(p + at, v);
}

INLINE void put(const Memory memory, float *p, float v) {
  if (memory == PANELS)
    panels_store(p, v);
  else
    *p = v;
}

#endif
