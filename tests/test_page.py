"""The page and its worker in a real browser: what a program gives, and every way to fail."""

import asyncio
import hashlib
import json
import math
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from driver import measure
from driver.browser import BrowserSession, find_browser
from driver.measure import JobOutcome, run_job
from driver.records import ArmJob, Job, ModelConfig, Op, Progress, StateRef, TokensRef
from driver.server import JobServer
from driver.tensors import flat_size, flatten, initial_state, table

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEB = Path(__file__).resolve().parents[1] / "web"
STEPS = 8
CONFIG = ModelConfig(
    n_layer=1,
    n_head=2,
    d_model=8,
    d_ff=32,
    ctx=5,
    batch=2,
    vocab=11,
    lr=3e-4,
    beta1=0.9,
    beta2=0.95,
    eps=1e-8,
    weight_decay=0.1,
    grad_clip=1.0,
)
SIZE = flat_size(CONFIG)
PARAM = flatten(CONFIG, initial_state(CONFIG, 1))
TOKENS = np.arange(STEPS * 2 * 6, dtype=np.int32).reshape(STEPS, 2, 6) % 11
OPEN = Op(op="open")


def train(steps: int) -> Op:
    return Op(op="train", steps=steps)


def make(server: JobServer, *program: Op, arm: str = "null", **options: Any) -> Job:
    """A job for the null arm (or another module of the served folder)."""
    make.count += 1  # type: ignore[attr-defined]
    return Job(
        job=f"job-{make.count}",  # type: ignore[attr-defined]
        arm=ArmJob(name=arm, module=f"arm_{arm}.js", options={"ms": 0.5, **options}),
        config=CONFIG,
        tensors=table(CONFIG),
        flat_size=SIZE,
        tokens=TokensRef(url=server.put("tokens", TOKENS.tobytes()), steps=STEPS),
        states={
            "initial": StateRef(
                url=server.put("state", PARAM.tobytes()), sections=("param",), t=0, at=0
            )
        },
        program=program,
    )


make.count = 0  # type: ignore[attr-defined]


async def run(
    session: BrowserSession,
    server: JobServer,
    job: Job,
    deadline_s: float = 30,
    on_progress: Callable[[Progress], None] | None = None,
) -> JobOutcome:
    return await run_job(session, server, job, deadline_s=deadline_s, on_progress=on_progress)


async def run_with(
    session: BrowserSession,
    folder: Path,
    files: dict[str, str],
    *program: Op,
    arm: str = "null",
    deadline_s: float = 30,
) -> JobOutcome:
    """Runs a program with a copy of the page in which some files are others."""
    web = folder / "web"
    shutil.copytree(WEB, web)
    for name, text in files.items():
        (web / name).write_text(text)
    async with JobServer(web) as server:
        return await run(session, server, make(server, *program, arm=arm), deadline_s)


def arm_with(**members: str) -> str:
    """Source of an arm that is the null arm but for some members."""
    lines = [f"  {name}: {source}," for name, source in members.items()]
    return "\n".join(
        [
            'import { open as plain } from "./arm_null.js";',
            'import { ArmError } from "./errors.js";',
            "export async function open(job, io) {",
            "const arm = await plain(job, io);",
            "return { ...arm,",
            *lines,
            "};}",
        ]
    )


# --------------------------------------------------------------------------- a clean run


async def test_a_whole_program(session: BrowserSession, server: JobServer) -> None:
    losses = [4.0 - 0.1 * i for i in range(STEPS)]
    heard: list[Progress] = []
    job = make(
        server,
        OPEN,
        train(1),
        train(4),
        Op(op="read", what="param", label="after"),
        Op(op="readback", count=3),
        Op(op="sentinel", count=2),
        losses=json.dumps(losses),
        grad_norms=json.dumps([2.0] * STEPS),
        steps_ms=json.dumps([1.0, 2.5, 4.0]),
    )
    outcome = await run(session, server, job, on_progress=heard.append)
    assert (outcome.status, outcome.failure, outcome.events) == ("ok", None, ())
    result = outcome.result
    assert result is not None
    opened, first, window, read, readback, sentinel = result.ops
    assert opened.compile_ms is not None and opened.upload_ms is not None
    assert (first.first_step, first.steps, first.losses) == (0, 1, losses[:1])
    assert (window.first_step, window.steps, window.losses) == (1, 4, losses[1:5])
    assert window.grad_norms == [2.0] * 4
    # The null arm never finishes early: 2.5 + 4 + 4 + 4 ms.
    assert window.ms is not None and window.ms >= 14.5
    assert read.ms is not None
    assert bytes(outcome.blobs["after"]) == PARAM.tobytes()
    assert (len(readback.values_ms), len(sentinel.values_ms)) == (3, 2)
    assert all(ms > 0 for ms in sentinel.values_ms)
    assert [(p.op, p.steps_done) for p in heard] == [(0, 0), (1, 1), (2, 5), (3, 5), (4, 5), (5, 5)]
    assert heard[2].loss == losses[4]

    assert result.ran["state_sha256"] == hashlib.sha256(PARAM.tobytes()).hexdigest()
    assert result.ran["tokens_sha256"] == hashlib.sha256(TOKENS.tobytes()).hexdigest()
    assert result.ran["trains"] is False
    assert result.ran["hyper"]["lr"] == CONFIG.lr
    assert result.memory["final_bytes"] == 16 * SIZE
    assert result.page.cross_origin_isolated
    assert result.page.timer_step_ms is not None and result.page.timer_step_ms > 0
    assert (result.page.visibility, result.page.hidden_events) == ("visible", 0)


async def test_states_with_moments_and_their_place(
    session: BrowserSession, server: JobServer
) -> None:
    sections = {"param": PARAM + 1, "m": PARAM * 2, "v": PARAM**2}
    data = b"".join(array.tobytes() for array in sections.values())
    job = make(
        server,
        OPEN,
        train(2),
        Op(op="load", state="later"),
        train(1),
        *(Op(op="read", what=what, label=what) for what in sections),
        Op(op="load", state="initial"),
        Op(op="read", what="m", label="zeroed"),
        losses=json.dumps(list(range(STEPS))),
    )
    later = StateRef(url=server.put("later", data), sections=("param", "m", "v"), t=5, at=3)
    outcome = await run(
        session, server, job.model_copy(update={"states": {**job.states, "later": later}})
    )
    assert outcome.failure is None and outcome.result is not None
    window = outcome.result.ops[3]
    # Batch 3 comes next although the state has seen five steps: the two are told apart.
    assert (window.first_step, window.losses) == (3, [5.0])
    for what, array in sections.items():
        assert bytes(outcome.blobs[what]) == array.tobytes()
    assert not any(outcome.blobs["zeroed"])
    assert outcome.result.ran["state_sha256.later"] == hashlib.sha256(data).hexdigest()


async def test_a_state_of_several_pieces(session: BrowserSession, tmp_path: Path) -> None:
    size = (16 << 20) + 64
    data = np.arange(size, dtype="<f4")
    path = tmp_path / "state"
    path.write_bytes(data.tobytes())
    async with JobServer(WEB) as server:
        job = make(server, OPEN, Op(op="read", what="param", label="back"))
        state = StateRef(url=server.put("big", path), sections=("param",), t=0, at=0)
        job = job.model_copy(update={"flat_size": size, "states": {"initial": state}})
        outcome = await run(session, server, job)
    assert outcome.failure is None
    assert outcome.blobs["back"] == data.tobytes()


async def test_numbers_that_are_not_finite(session: BrowserSession, server: JobServer) -> None:
    job = make(server, OPEN, train(4), nan_at=2)
    outcome = await run(session, server, job)
    # The page reports it; whether it may be is for the gates to say.
    assert outcome.status == "ok" and outcome.result is not None
    losses = outcome.result.ops[1].losses
    assert [math.isnan(loss) for loss in losses] == [False, False, True, True]


async def test_minus_one_programs_no_fault(session: BrowserSession, server: JobServer) -> None:
    job = make(server, OPEN, train(4), nan_at=-1, hang_at=-1, crash_at=-1)
    outcome = await run(session, server, job)
    assert outcome.status == "ok" and outcome.result is not None
    assert all(map(math.isfinite, outcome.result.ops[1].losses))


async def test_reimport(session: BrowserSession, server: JobServer, tmp_path: Path) -> None:
    reimport = Op(op="reimport")
    outcome = await run(
        session, server, make(server, OPEN, reimport, Op(op="read", what="param", label="p"))
    )
    assert outcome.result is not None
    assert outcome.result.ops[1].detail["equal"] is True
    assert bytes(outcome.blobs["p"]) == PARAM.tobytes()
    # An arm that takes no moments back: reading them twice would find them equal.
    deaf = arm_with(
        write='(what, at, data) => { if (what === "param") arm.write(what, at, data); }'
    )
    outcome = await run_with(session, tmp_path, {"arm_deaf.js": deaf}, OPEN, reimport, arm="deaf")
    assert outcome.result is not None
    detail = outcome.result.ops[1].detail
    assert detail["equal"] is False
    assert detail["different_floats"] == {"param": 0, "m": SIZE, "v": SIZE}


async def test_digest(session: BrowserSession, tmp_path: Path) -> None:
    """SHA-256 over those of the pieces: here of 100 floats, and of a state above the limit."""
    bench = (WEB / "bench.js").read_text()
    for constant, small in (("PIECE = 16 << 20", "PIECE = 100"),
                            ("HASH_LIMIT = 256 << 20", "HASH_LIMIT = 400")):  # fmt: skip
        assert bench.count(constant) == 1
        bench = bench.replace(constant, small)
    digest = Op(op="digest", what="param", label="d")
    outcome = await run_with(session, tmp_path, {"bench.js": bench}, OPEN, digest)
    assert outcome.failure is None and outcome.result is not None
    data = PARAM.tobytes()
    assert len(data) > 2 * 400
    pieces = b"".join(
        hashlib.sha256(data[at : at + 400]).digest() for at in range(0, len(data), 400)
    )
    expected = hashlib.sha256(pieces).hexdigest()
    assert outcome.result.ops[1].detail == {"pieces_sha256": expected}
    assert outcome.result.ran["state_pieces_sha256"] == expected
    assert "state_sha256" not in outcome.result.ran


async def test_probe(session: BrowserSession, server: JobServer) -> None:
    job = Job(job="probe-alone", program=(Op(op="probe"),))
    outcome = await run(session, server, job)
    assert outcome.failure is None and outcome.result is not None
    detail = outcome.result.ops[0].detail
    assert detail["secure_context"] and detail["cross_origin_isolated"]
    assert detail["hardware_concurrency"] >= 1
    assert detail["wasm"]["simd128"] and detail["wasm"]["threads"] and detail["wasm"]["bulk_memory"]
    assert all(isinstance(value, bool) for value in detail["wasm"].values())
    webgpu = detail["webgpu"]
    if webgpu["available"]:
        assert webgpu["limits"]["maxStorageBuffersPerShaderStage"] >= 8
        assert webgpu["is_fallback"] in (True, False)
    else:
        assert webgpu["reason"]


async def test_what_the_arm_tells_is_made_plain(session: BrowserSession, tmp_path: Path) -> None:
    told = arm_with(
        ran="{ at: 1n << 60n, small: 7n, loss: NaN, list: new Float32Array([1, Infinity]), "
        "map: new Map([['a', undefined]]), call: () => 1 }",
        adapter="{ vendor: 'x', limits: { a: 1 } }",
    )
    outcome = await run_with(session, tmp_path, {"arm_told.js": told}, OPEN, arm="told")
    assert outcome.failure is None and outcome.result is not None
    ran = outcome.result.ran
    assert (ran["at"], ran["small"], ran["loss"]) == (str(1 << 60), 7, "NaN")
    assert (ran["list"], ran["map"], ran["call"]) == ([1, "Infinity"], {"a": None}, None)
    assert outcome.result.adapter == {"vendor": "x", "limits": {"a": 1}}


# --------------------------------------------------------------------------- programmed faults


@pytest.mark.parametrize("kind", ["unsupported", "compile", "out-of-memory", "device-lost"])
async def test_an_arm_that_does_not_open(
    session: BrowserSession, server: JobServer, kind: str
) -> None:
    outcome = await run(session, server, make(server, OPEN, train(1), fail=kind))
    assert outcome.status == "failed" and outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.op) == (kind, "open")
    assert kind in outcome.failure.message
    assert outcome.events == ()


async def test_a_crash_keeps_what_was_measured(session: BrowserSession, server: JobServer) -> None:
    outcome = await run(session, server, make(server, OPEN, train(2), train(2), crash_at=3))
    assert outcome.failure is not None and outcome.result is not None
    assert "programmed crash at step 3" in outcome.failure.message
    assert server.base_url not in outcome.failure.message
    assert outcome.failure.op == "train"
    assert [op.op for op in outcome.result.ops] == ["open", "train"]
    assert outcome.ops == tuple(outcome.result.ops)


async def test_a_hang_ends_at_the_deadline(session: BrowserSession, server: JobServer) -> None:
    job = make(server, OPEN, train(2), train(2), hang_at=3)
    outcome = await run(session, server, job, deadline_s=2)
    assert outcome.status == "failed" and outcome.failure is not None
    assert outcome.failure.kind == "hang"
    assert "no answer within 2 s" in outcome.failure.message
    assert "after instruction 1 (train) and 2 steps" in outcome.failure.message
    # What was measured before is there although the page never answered.
    assert outcome.result is None
    assert [(op.op, len(op.losses)) for op in outcome.ops] == [("open", 0), ("train", 2)]
    # The next job is not disturbed.
    outcome = await run(session, server, make(server, OPEN, train(1)))
    assert outcome.status == "ok"


async def crash_page(session: BrowserSession) -> None:
    """Crashes the renderer of the one open page."""
    assert session._browser is not None
    (context,) = session._browser.contexts
    (page,) = context.pages
    cdp = await context.new_cdp_session(page)
    sending = asyncio.ensure_future(cdp.send("Page.crash"))
    sending.add_done_callback(lambda task: task.cancelled() or task.exception())


async def test_a_renderer_that_crashes(session: BrowserSession, server: JobServer) -> None:
    crashes: list[asyncio.Future[None]] = []
    job = make(server, OPEN, train(2), hang_at=1)
    outcome = await run(
        session,
        server,
        job,
        on_progress=lambda _: crashes.append(asyncio.ensure_future(crash_page(session))),
    )
    assert outcome.failure is not None and outcome.result is None
    assert (outcome.failure.kind, outcome.failure.message) == (
        "crash",
        "the page's process crashed",
    )
    assert [event.kind for event in outcome.events] == ["crash"]
    outcome = await run(session, server, make(server, OPEN, train(1)))
    assert outcome.status == "ok"


async def test_a_browser_that_died_before_its_page_opens(
    server: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never answers the request for a page: the job ends all the same, at its deadline."""
    monkeypatch.setattr(measure, "PAGE_S", 0.5)

    class Dead:
        @asynccontextmanager
        async def page(self) -> AsyncIterator[None]:
            await asyncio.Event().wait()
            yield

    outcome = await measure.run_job(Dead(), server, make(server, OPEN), deadline_s=0.5)
    assert outcome.failure is not None
    assert outcome.failure.kind == "crash"
    assert "no longer opens" in outcome.failure.message


async def test_a_browser_that_dies(server: JobServer) -> None:
    choice = find_browser(None)
    assert choice is not None
    job = make(server, OPEN, train(2), hang_at=1)
    async with BrowserSession(choice) as session:
        assert session._process is not None
        process = session._process
        outcome = await run(session, server, job, on_progress=lambda _: process.kill())
        assert outcome.failure is not None
        assert outcome.failure.kind == "crash"
        assert outcome.events[-1].kind in ("disconnected", "crash")
        later = await run(session, server, make(server, OPEN))
        assert later.failure is not None
        assert later.failure.kind == "crash"


# --------------------------------------------------------------------------- jobs that do not hold


async def test_more_steps_than_batches(session: BrowserSession, server: JobServer) -> None:
    outcome = await run(session, server, make(server, OPEN, train(STEPS), train(1)))
    assert outcome.failure is not None and outcome.result is not None
    assert outcome.failure.kind == "protocol"
    assert f"{STEPS} batches sent" in outcome.failure.message
    assert len(outcome.result.ops) == 2


@pytest.mark.parametrize(
    ("program", "changes", "words"),
    [
        ([train(1)], {}, "train without tokens"),
        ([Op(op="read", what="param", label="x")], {}, "no arm is open"),
        ([OPEN, Op(op="load", state="other")], {}, "no state other"),
        ([OPEN], {"flat_size": SIZE + 64}, "expected"),
        ([OPEN], {"flat_size": SIZE - 64}, "expected"),
        ([OPEN], {"tokens": "long"}, "tokens:"),
        ([OPEN], {"tokens": "gone"}, "HTTP 404"),
        ([OPEN], {"module": "../main.js"}, "no arm module"),
        ([OPEN], {"module": "https://example.com/arm_x.js"}, "no arm module"),
        ([OPEN], {"module": "arm_nothing.js"}, "arm_nothing.js"),
    ],
)
async def test_jobs_that_do_not_hold_together(
    session: BrowserSession,
    server: JobServer,
    program: list[Op],
    changes: dict[str, Any],
    words: str,
) -> None:
    job = make(server, *program)
    if module := changes.get("module"):
        arm = ArmJob(name="null", module=module, options={})
        changes = {"arm": arm}
    if changes.get("tokens") == "long":
        changes = {"tokens": TokensRef(url=job.tokens.url, steps=STEPS + 1)} if job.tokens else {}
    if changes.get("tokens") == "gone":
        changes = {"tokens": TokensRef(url="data/0123/tokens", steps=STEPS)}
    outcome = await run(session, server, job.model_copy(update=changes))
    assert outcome.status == "failed" and outcome.failure is not None
    assert words in outcome.failure.message


# --------------------------------------------------------------------------- broken pages and arms


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"main.js": "syntax error here"}, "page-error"),
        ({"main.js": "throw new Error('early')"}, "early"),
        ({"bench.js": "syntax error here"}, "or parsed"),
        ({"bench.js": 'import "./nowhere.js";'}, "could not be loaded"),
        ({"bench.js": "throw new Error('in the worker')"}, "in the worker"),
        ({"index.html": "<script type=module src=gone.js></script>"}, "404 gone.js"),
    ],
)
async def test_broken_pages_end_soon(
    session: BrowserSession, tmp_path: Path, files: dict[str, str], words: str
) -> None:
    outcome = await run_with(session, tmp_path, files, OPEN, train(1))
    assert outcome.status == "failed" and outcome.failure is not None
    everything = [outcome.failure.message, *(f"{e.kind} {e.message}" for e in outcome.events)]
    assert words in " ".join(everything)
    assert "no answer" not in outcome.failure.message


async def test_a_page_that_never_starts(session: BrowserSession, tmp_path: Path) -> None:
    files = {"index.html": "<script>inline()</script>"}
    outcome = await run_with(session, tmp_path, files, OPEN, deadline_s=1)
    assert outcome.failure is not None
    assert "no answer within 1 s" in outcome.failure.message
    assert "Content Security Policy" in outcome.failure.message


_NO_MEMORY = "() => { throw new RangeError('Array buffer allocation failed') }"  # V8's words
_LOSES = "async () => { Promise.reject(new Error('lost promise')); await new Promise(() => {}); }"
_THROWS = "async () => { throw new ArmError('device-lost', 'unplugged'); }"
_SHORT = "async (tokens, steps) => ({ losses: [1], grad_norms: [1] })"


@pytest.mark.parametrize(
    ("members", "kind", "words"),
    [
        ({"train": _THROWS}, "device-lost", "unplugged"),
        ({"train": _LOSES}, "internal", "lost promise"),
        ({"train": _SHORT}, "internal", "1 losses and 1 norms of 2 steps"),
        ({"train": "() => { throw 'a string' }"}, "internal", "a string"),
        ({"train": "() => new Float32Array(2 ** 52)"}, "internal", "Invalid"),
        ({"train": _NO_MEMORY}, "out-of-memory", "allocation failed"),
        ({"train": "() => { throw new ArmError('typo', 'x') }"}, "internal", "x"),
        ({"memory": "() => { throw new Error('no memory()') }"}, "internal", "no memory()"),
        ({"close": "() => { throw new Error('stuck open') }"}, "internal", "stuck open"),
        ({"readback": "() => fetch('nowhere')"}, "failed", "404 nowhere"),
        ({"readback": "() => console.error('red')"}, "failed", "console-error: red"),
        (
            {"readback": "() => console.warn('[Invalid Buffer] is invalid.')"},
            "failed",
            "console-warning: [Invalid Buffer]",
        ),
        ({"readback": "() => fetch('https://example.com/')"}, "internal", "Failed to fetch"),
    ],
)
async def test_broken_arms(
    session: BrowserSession, tmp_path: Path, members: dict[str, str], kind: str, words: str
) -> None:
    files = {"arm_bad.js": arm_with(**members)}
    program = (OPEN, train(2), Op(op="readback", count=1))
    outcome = await run_with(session, tmp_path, files, *program, arm="bad")
    assert outcome.status == "failed" and outcome.failure is not None
    assert outcome.failure.kind == kind, outcome.failure
    assert words in outcome.failure.message


async def test_a_harmless_warning_is_recorded(session: BrowserSession, tmp_path: Path) -> None:
    files = {"arm_wordy.js": arm_with(readback="() => console.warn('by the way')")}
    outcome = await run_with(
        session, tmp_path, files, OPEN, Op(op="readback", count=1), arm="wordy"
    )
    assert outcome.status == "ok"
    assert [event.kind for event in outcome.events] == ["console-warning"]
    assert "by the way" in outcome.events[0].message


async def test_a_page_that_was_hidden_says_so(session: BrowserSession, tmp_path: Path) -> None:
    presence = (WEB / "presence.js").read_text()
    assert presence.count("hidden_events: 0") == 1
    files = {"presence.js": presence.replace("hidden_events: 0", "hidden_events: 1")}
    outcome = await run_with(session, tmp_path, files, OPEN)
    assert outcome.status == "ok"
    assert [event.kind for event in outcome.events] == ["hidden"]


async def test_a_page_that_stood_still_says_so(session: BrowserSession, tmp_path: Path) -> None:
    """The clock that looks at itself, with a limit that every machine exceeds."""
    presence = (WEB / "presence.js").read_text()
    assert presence.count("const STALL_MS = 5000;") == 1
    files = {"presence.js": presence.replace("STALL_MS = 5000", "STALL_MS = -1")}
    outcome = await run_with(session, tmp_path, files, OPEN, train(1))
    assert outcome.status == "ok"
    assert [event.kind for event in outcome.events] == ["frozen"]


async def test_windows_hold_no_requests(session: BrowserSession, tmp_path: Path) -> None:
    """Nothing but the arm runs inside a window: no progress, no blob."""
    counting = arm_with(
        train="""async (tokens, steps) => {
          const began = performance.now();
          const result = await arm.train(tokens, steps);
          await new Promise((done) => setTimeout(done, 20));
          const requests = performance.getEntriesByType("resource");
          result.losses.fill(requests.filter(({ startTime }) => startTime >= began).length);
          return result;
        }"""
    )
    program = (OPEN, train(2), train(2), Op(op="read", what="param", label="p"), train(2))
    files = {"arm_counting.js": counting}
    outcome = await run_with(session, tmp_path, files, *program, arm="counting")
    assert outcome.failure is None and outcome.result is not None
    assert [op.losses for op in outcome.result.ops if op.op == "train"] == [[0, 0]] * 3
