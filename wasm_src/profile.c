// Where a step's time goes. The step's operations run one after another on the calling thread, so one look
// at the clock after each of them is enough: what has passed since the look before is that operation's,
// forks, joins and waiting for other threads included. Off, the clock is never asked.

#include "gpt.h"

// WebAssembly has no clock: the page's, in milliseconds.
__attribute__((import_module("env"), import_name("now"))) double now(void);

static struct {
  int on;
  double last;
  double calls[OPERATIONS_COUNT], ms[OPERATIONS_COUNT];
} profile;

#define NAME(operation) [OP_##operation] = #operation,
static const char *const names[] = {OPERATIONS(NAME)};

void profile_begin(void) {
  if (profile.on) profile.last = now();
}

void profile_lap(Operation operation) {
  if (!profile.on) return;
  double at = now();
  profile.calls[operation] += 1;
  profile.ms[operation] += at - profile.last;
  profile.last = at;
}

// On, with all totals 0, or off.
EXPORT(profile_use) void profile_use(int on) {
  profile.on = on;
  for (int i = 0; on && i < OPERATIONS_COUNT; i++) profile.calls[i] = profile.ms[i] = 0;
}

EXPORT(profile_operations) int profile_operations(void) { return OPERATIONS_COUNT; }
EXPORT(profile_name) const char *profile_name(int operation) { return names[operation]; }
EXPORT(profile_calls) double profile_calls(int operation) { return profile.calls[operation]; }
EXPORT(profile_ms) double profile_ms(int operation) { return profile.ms[operation]; }
