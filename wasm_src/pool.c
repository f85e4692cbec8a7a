// A fork-join pool over shared memory. Thread 0 is the caller; the others live in pool_worker.
//
// A fork publishes a task and then one 64-bit ticket: an epoch (high half) and the chunks left (low
// half). A thread claims a chunk by lowering the ticket with compare-and-swap. A claim that succeeds
// belongs to the epoch whose task the thread has read, so a thread that wakes late finds nothing to do
// and can never run old work; and the join waits for chunks, not for threads: a slow or sleeping thread
// delays it by at most the chunk that it has claimed.

#include "gpt.h"

#define SPIN_WORKER 20000 // looks at the ticket before a worker sleeps: tens of microseconds
#define SPIN_JOIN 20000
#define JOIN_TIMEOUT_NS 50000000ll // a sleeping join looks for a failed worker this often

static struct {
  Task task;
  void *args;
  size_t chunks;
  size_t threads; // those that take part, the caller included
  _Alignas(64) uint64_t ticket;
  _Alignas(64) uint32_t epoch; // low half of the ticket's epoch; what sleeping workers wait on
  uint32_t sleepers;
  _Alignas(64) uint32_t done; // chunks done in this epoch; what a sleeping join waits on
  uint32_t joining;           // the caller sleeps
  _Alignas(64) uint32_t started;
  uint32_t failed; // a worker trapped
  uint32_t quit;
} pool = {.threads = 1};

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, v) __atomic_store_n(&(x), v, __ATOMIC_SEQ_CST)
#define ADD(x, v) __atomic_add_fetch(&(x), v, __ATOMIC_SEQ_CST)

static void wait(uint32_t *word, uint32_t seen, int64_t timeout_ns) {
  __builtin_wasm_memory_atomic_wait32((int32_t *)word, (int32_t)seen, timeout_ns);
}

static void notify(uint32_t *word) { __builtin_wasm_memory_atomic_notify((int32_t *)word, ~0u); }

// Claims and runs chunks until none is left.
static void work_on(size_t thread) {
  uint64_t ticket = LOAD(pool.ticket);
  while ((uint32_t)ticket) {
    Task task = pool.task;
    void *args = pool.args;
    size_t chunk = pool.chunks - (uint32_t)ticket;
    if (__atomic_compare_exchange_n(&pool.ticket, &ticket, ticket - 1, 0, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST)) {
      task(args, chunk, thread);
      uint32_t done = ADD(pool.done, 1);
      if (done == (uint32_t)pool.chunks && LOAD(pool.joining)) notify(&pool.done);
      ticket = LOAD(pool.ticket);
    }
  }
}

static uint64_t forks, forked_chunks; // since the start, counted by the caller: a kernel's geometry

EXPORT(pool_forks) double pool_forks(void) { return (double)forks; }
EXPORT(pool_chunks) double pool_chunks(void) { return (double)forked_chunks; }

void pool_run(Task task, void *args, size_t chunks) {
  forks++;
  forked_chunks += chunks;
  if (pool.threads == 1 || chunks <= 1) {
    for (size_t chunk = 0; chunk < chunks; chunk++) task(args, chunk, 0);
    return;
  }
  pool.task = task;
  pool.args = args;
  pool.chunks = chunks;
  STORE(pool.done, 0);
  uint32_t epoch = pool.epoch + 1;
  STORE(pool.ticket, (uint64_t)epoch << 32 | (uint32_t)chunks);
  STORE(pool.epoch, epoch);
  if (LOAD(pool.sleepers)) notify(&pool.epoch);

  work_on(0);

  uint32_t done;
  for (size_t spin = 0; (done = LOAD(pool.done)) != (uint32_t)chunks; spin++) {
    if (spin < SPIN_JOIN) continue;
    if (LOAD(pool.failed)) __builtin_trap();
    STORE(pool.joining, 1);
    if ((done = LOAD(pool.done)) != (uint32_t)chunks) wait(&pool.done, done, JOIN_TIMEOUT_NS);
    STORE(pool.joining, 0);
  }
}

// A worker's whole life.
EXPORT(pool_worker) void pool_worker(size_t thread) {
  ADD(pool.started, 1);
  uint32_t seen = 0;
  while (!LOAD(pool.quit)) {
    work_on(thread);
    size_t spin = 0;
    while (LOAD(pool.epoch) == seen && spin < SPIN_WORKER) spin++;
    if (LOAD(pool.epoch) == seen) {
      ADD(pool.sleepers, 1);
      wait(&pool.epoch, seen, -1);
      ADD(pool.sleepers, -1);
    }
    seen = LOAD(pool.epoch);
  }
}

// From here on forks use this many threads; the others must have started.
EXPORT(pool_use) void pool_use(size_t threads) { pool.threads = threads; }

EXPORT(pool_started) size_t pool_started(void) { return LOAD(pool.started); }

EXPORT(pool_failed) int pool_failed(void) { return (int)LOAD(pool.failed); }

// A worker's last word when it traps: the join that waits for its chunk must not wait for ever.
EXPORT(pool_fail) void pool_fail(void) {
  STORE(pool.failed, 1);
  notify(&pool.done);
}

EXPORT(pool_quit) void pool_quit(void) {
  STORE(pool.quit, 1);
  ADD(pool.epoch, 1);
  notify(&pool.epoch);
}

size_t pool_threads(void) { return pool.threads; }

// An empty fork and join, `count` times: what each step pays about 20·L times.
static void nothing(void *args, size_t chunk, size_t thread) {
  (void)args, (void)chunk, (void)thread;
}

EXPORT(pool_empty_forks) void pool_empty_forks(size_t count) {
  for (size_t i = 0; i < count; i++) pool_run(nothing, 0, 2 * pool.threads);
}

// Forks and joins in which every thread takes part: a chunk ends when all have begun.
static void meet(void *args, size_t chunk, size_t thread) {
  uint32_t *met = args;
  (void)chunk, (void)thread;
  ADD(*met, 1);
  while (LOAD(*met) < (uint32_t)pool.threads) continue;
}

EXPORT(pool_meetings) void pool_meetings(size_t count) {
  for (size_t i = 0; i < count; i++) {
    uint32_t met = 0;
    pool_run(meet, &met, pool.threads);
  }
}
