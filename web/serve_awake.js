// The screen stays on while something is measured, where the browser lets a page ask for that.

// Returns what says whether that is wanted. `told(held)` is called whenever it changes. A browser takes the lock away when the page is hidden.
export function keep_awake(told) {
  let wanted = false;
  let lock = null;

  async function ask() {
    if (!wanted || lock || document.visibilityState !== "visible") return;
    try {
      lock = await navigator.wakeLock.request("screen");
      lock.addEventListener("release", () => {
        lock = null;
        if (wanted) told(false);
      });
      if (!wanted) lock.release();
    } catch {
      lock = null; // no such thing here, or the battery is low
    }
    told(lock !== null);
  }
  document.addEventListener("visibilitychange", ask);
  return (now) => {
    wanted = now;
    if (now) ask();
    else lock?.release();
  };
}
