// What a kernel of this module could reach at most on this machine: multiply-adds on registers alone, and
// memory traffic. The page times both.

#include "gpt.h"

// Independent chains: enough to hide a multiply-add's latency, few enough for 16 or for 32 registers. The
// page takes whichever number is faster. Without SIMD a vector is four registers.
#ifdef __wasm_simd128__
#define FEW 12
#define MANY 24
#else
#define FEW 2
#define MANY 4
#endif
#define UNROLL 4 // rounds in one turn of the loop

typedef struct {
  int many;
  size_t rounds, chunks;
  uint32_t begun;
  float one;
  float sums[256]; // one per chunk
} Madds;

// Every chain counts its rounds up by one·one. Where the product is an instruction of its own it must
// depend on the chain, or the compiler takes it out of the loop.
INLINE float madds(const size_t chains, size_t rounds, float one) {
  f4 a = splat4(one), b = splat4(one), sum[MANY];
  UNROLLED for (size_t i = 0; i < chains; i++) sum[i] = splat4(0);
  for (size_t round = 0; round < rounds; round += UNROLL)
    UNROLLED for (size_t turn = 0; turn < UNROLL; turn++)
      UNROLLED for (size_t i = 0; i < chains; i++) {
#ifdef __wasm_relaxed_simd__
        sum[i] = madd4(a, b, sum[i]);
#else
        sum[i] = madd4(sum[i], a, b);
#endif
        KEEP(sum[i]);
      }
  f4 total = splat4(0);
  UNROLLED for (size_t i = 0; i < chains; i++) total += sum[i];
  return sum_lanes(total) / (float)(4 * chains);
}

static void madds_chunk(void *args, size_t chunk, size_t thread) {
  Madds *m = args;
  (void)thread;
  // One chunk per thread: all begin together, else a thread that wakes late leaves its chunk to another and
  // two threads look as fast as one.
  if (m->chunks == pool_threads()) {
    __atomic_add_fetch(&m->begun, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&m->begun, __ATOMIC_SEQ_CST) < (uint32_t)m->chunks) continue;
  }
  float sum = m->many ? madds(MANY, m->rounds, m->one) : madds(FEW, m->rounds, m->one);
  m->sums[chunk] = sum;
}

EXPORT(roofline_chains) size_t roofline_chains(int many) { return many ? MANY : FEW; }

// `chunks` (at most 256) times `rounds` (a power of two, 4 to 2^23: sums stay exact) multiply-adds on every
// chain's four lanes; `one` is 1, which the compiler must not know. Returns 0 if a chain did not count right.
EXPORT(roofline_madds) int roofline_madds(int many, size_t rounds, size_t chunks, float one) {
  Madds m = {.many = many, .rounds = rounds, .chunks = chunks, .one = one};
  pool_run(madds_chunk, &m, chunks);
  for (size_t i = 0; i < chunks; i++)
    if (m.sums[i] != (float)rounds) return 0;
  return 1;
}

typedef struct {
  float *a;
  const float *b, *c;
  size_t floats, chunks;
  float scale;
} Triad;

static void triad_chunk(void *args, size_t chunk, size_t thread) {
  const Triad *t = args;
  (void)thread;
  size_t each = round_up(chunks_of(t->floats, t->chunks), 16);
  size_t from = at_most(chunk * each, t->floats), to = at_most(from + each, t->floats);
  f4 scale = splat4(t->scale);
  for (size_t i = from; i < to; i += 16)
    UNROLLED for (size_t v = 0; v < 16; v += 4)
      store4(t->a + i + v, madd4(scale, load4(t->c + i + v), load4(t->b + i + v)));
}

// a = b + scale·c over three arrays of `floats` (a multiple of 16) in the area, in `chunks` pieces.
// Source: McCalpin 1995, STREAM.
EXPORT(roofline_triad) void roofline_triad(size_t floats, size_t chunks, float scale) {
  Triad t = {.a = work.area, .b = work.area + floats, .c = work.area + 2 * floats, .floats = floats,
             .chunks = chunks, .scale = scale};
  pool_run(triad_chunk, &t, chunks);
}
