// Whether the page was seen and awake: what a hidden tab, a locked screen or a sleeping device leaves behind.
//
// A browser may slow a hidden page down, and freeze it; a device may sleep. All of it is noted, none prevented:
// `visibilitychange` and `freeze` where they are sent, and besides a clock that looks at itself every half second.

const EVERY_MS = 500;
// A busy machine delays a timer by tens of milliseconds, a throttled page by a second, a frozen one without end.
const STALL_MS = 5000;

// Counts from now on; `changed` is called whenever the page is shown, hidden, frozen or thawed, or has stood still.
export function watch_presence(changed = () => {}) {
  const seen = { hidden_events: 0, frozen_events: 0, stalled_ms: 0 };
  let last = Date.now(); // the wall clock: others may stand still while the device sleeps

  function look() {
    const now = Date.now();
    const stalled_ms = now - last - EVERY_MS;
    last = now;
    if (stalled_ms <= STALL_MS - EVERY_MS) return;
    seen.stalled_ms += stalled_ms;
    changed();
  }
  setInterval(look, EVERY_MS);
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "hidden") seen.hidden_events += 1;
    changed();
  });
  document.addEventListener("freeze", () => {
    seen.frozen_events += 1;
    changed();
  });
  document.addEventListener("resume", () => {
    look();
    changed();
  });
  return () => {
    look();
    return { ...seen, visibility: document.visibilityState };
  };
}
