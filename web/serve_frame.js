// Frames: every job gets a document and a worker of its own, and both are gone before the next.

const END_MS = 100; // a worker ends a moment after its document

// `show({serial, path})` puts one frame on the stage, or none; each serial is done once.
export function frames(stage, post) {
  let shown = -1;
  return function show({ serial, path }) {
    if (serial === shown) return;
    shown = serial;
    stage.replaceChildren();
    if (path === null) {
      setTimeout(() => post("frame", { serial, gone: true }).catch(() => {}), END_MS);
      return;
    }
    const frame = document.createElement("iframe");
    frame.title = "The job that is being measured";
    frame.tabIndex = -1;
    frame.src = path;
    stage.append(frame);
  };
}
