// Facts about the page and the machine, from inside the worker.

export function timer_step_ms() {
  let step = Infinity;
  const until = performance.now() + 50;
  for (let seen = 0, last = performance.now(); seen < 100 && last < until; ) {
    const now = performance.now();
    if (now === last) continue;
    step = Math.min(step, now - last);
    last = now;
    seen += 1;
  }
  return Number.isFinite(step) ? Number(step.toPrecision(4)) : null;
}

export async function probe() {
  return { cross_origin_isolated: self.crossOriginIsolated };
}
