"""The loopback server by itself: what it gives, what it takes, what it must refuse."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import yarl

from driver.errors import SlotError
from driver.records import Job, Op, Progress
from driver.server import JobHandle, JobServer
from driver.server.app import RESULT_BYTES
from driver.server.job import MAX_DEPTH

WEB = Path(__file__).resolve().parents[1] / "web"
FLOATS = 64
PAGE = {
    "user_agent": "test",
    "cross_origin_isolated": True,
    "hardware_concurrency": 2,
    "timer_step_ms": 0.005,
    "visibility": "visible",
}


@pytest.fixture
async def server() -> AsyncIterator[JobServer]:
    async with JobServer(WEB) as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def handle(server: JobServer) -> JobHandle:
    program = (
        Op(op="train", steps=2),
        Op(op="read", what="param", label="weights"),
        Op(op="readback", count=1),
    )
    return server.open_job(Job(job="job-1", flat_size=FLOATS, program=program))


def result(**changes: Any) -> dict[str, Any]:
    """A good result of `handle`'s job, with changes."""
    good = {
        "format": "driver-job-result/1",
        "job": "job-1",
        "status": "ok",
        "ops": [
            {
                "op": "train",
                "ms": 2.5,
                "first_step": 0,
                "steps": 2,
                "losses": [4.0, "NaN"],
                "grad_norms": [1.0, "Infinity"],
            },
            {"op": "read", "label": "weights", "ms": 0.1},
            {"op": "readback", "values_ms": [0.25]},
        ],
        "page": PAGE,
    }
    return {**good, **changes}


def ops(index: int, **changes: Any) -> dict[str, Any]:
    """A result whose instruction `index` has changes."""
    given = result()["ops"]
    given[index] = {**given[index], **changes}
    return result(ops=given)


async def post(
    client: aiohttp.ClientSession,
    server: JobServer,
    path: str,
    data: bytes | dict[str, Any] | AsyncIterator[bytes],
    **headers: str,
) -> int:
    body = json.dumps(data).encode() if isinstance(data, dict) else data
    url = f"{server.base_url}jobs/job-1/{path}"
    async with client.post(url, data=body, headers=headers) as response:
        return response.status


async def post_blob(client: aiohttp.ClientSession, server: JobServer) -> bytes:
    data = np.arange(FLOATS, dtype="<f4").tobytes()
    total = len(data)
    for offset in (0, total // 2):
        piece = data[offset : offset + total // 2]
        path = f"blob?label=weights&offset={offset}&total={total}"
        assert await post(client, server, path, piece) == 204
    return data


# --------------------------------------------------------------------------- what it gives


async def test_page_and_its_headers(server: JobServer, client: aiohttp.ClientSession) -> None:
    async with client.get(f"{server.base_url}?job=x") as response:
        assert response.status == 200
        assert response.content_type == "text/html"
        assert response.headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert response.headers["Cross-Origin-Embedder-Policy"] == "require-corp"
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert "'wasm-unsafe-eval'" in response.headers["Content-Security-Policy"]
    async with client.get(f"{server.base_url}bench.js") as response:
        assert response.content_type == "text/javascript"
        assert await response.read() == (WEB / "bench.js").read_bytes()


async def test_modules_are_the_bytes_that_are_served(tmp_path: Path) -> None:
    (tmp_path / "main.js").write_text("1")
    async with JobServer(tmp_path) as server:
        before = dict(server.modules)
        (tmp_path / "main.js").write_text("2")
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"{server.base_url}main.js") as response,
        ):
            assert await response.text() == "1"
        assert server.modules == before


@pytest.mark.parametrize(
    ("name", "mime"),
    [
        ("gpt.wasm", "application/wasm"),
        ("wgsl/gelu_forward.wgsl", "text/plain"),
        ("state with space.bin", "application/octet-stream"),
    ],
)
@pytest.mark.parametrize("as_file", [False, True])
async def test_data(
    server: JobServer,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    name: str,
    mime: str,
    as_file: bool,
) -> None:
    data = bytes(range(256)) * 40
    path = tmp_path / "file"
    path.write_bytes(data)
    url = server.put(name, path if as_file else data)
    assert server.put(name, path if as_file else data) == url
    assert server.put(name, b"other") != url
    async with client.get(server.base_url + url) as response:
        assert (response.status, response.content_type) == (200, mime)
        assert await response.read() == data
        assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    async with client.get(server.base_url + url, headers={"Range": "bytes=100-299"}) as response:
        assert response.status == 206
        assert await response.read() == data[100:300]
        assert response.headers["Content-Range"] == f"bytes 100-299/{len(data)}"
    for wrong in ("bytes=99999-", "bytes=5-2", "lines=1-2"):
        async with client.get(server.base_url + url, headers={"Range": wrong}) as response:
            assert response.status == 416
    server.drop(url)
    async with client.get(server.base_url + url) as response:
        assert response.status == 404


async def test_job(server: JobServer, client: aiohttp.ClientSession, handle: JobHandle) -> None:
    async with client.get(f"{server.base_url}jobs/job-1/job.json") as response:
        assert Job.model_validate_json(await response.read()) == handle.job
    with pytest.raises(ValueError, match="open already"):
        server.open_job(handle.job)
    handle.close()
    async with client.get(f"{server.base_url}jobs/job-1/job.json") as response:
        assert response.status == 404


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "a?b", "é", "x" * 201])
async def test_job_names_that_do_not_fit_a_url(server: JobServer, name: str) -> None:
    with pytest.raises(ValueError, match="job ID"):
        server.open_job(Job(job=name, program=()))


# --------------------------------------------------------------------------- what it takes


async def test_a_job_from_progress_to_result(
    server: JobServer, client: aiohttp.ClientSession
) -> None:
    heard: list[Progress] = []
    program = (Op(op="train", steps=2), Op(op="read", label="weights"), Op(op="readback", count=1))
    job = Job(job="job-1", flat_size=FLOATS, program=program)
    handle = server.open_job(job, heard.append)
    first = {"op": 0, "steps_done": 2, "loss": "NaN", "result": result()["ops"][0]}
    assert await post(client, server, "progress", first) == 204
    data = await post_blob(client, server)
    assert await post(client, server, "result", result()) == 204
    given = await handle.result()
    assert given.ops[0].losses[0] == 4.0
    assert np.isnan(given.ops[0].losses[1])
    assert given.ops[0].grad_norms[1] == np.inf
    assert handle.blobs == {"weights": data}
    assert [progress.steps_done for progress in heard] == [2]
    assert handle.events == []
    handle.close()


async def test_what_was_measured_before_a_failure_is_kept(
    server: JobServer, client: aiohttp.ClientSession, handle: JobHandle
) -> None:
    error = {"kind": "device-lost", "message": "gone", "op": "read"}
    body = result(status="failed", error=error, ops=result()["ops"][:1])
    assert await post(client, server, "result", body) == 204
    given = await handle.result()
    assert given.error is not None
    assert (given.error.kind, len(given.ops)) == ("device-lost", 1)


# --------------------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    "path",
    [
        "README.md",
        "nothing.js",
        "..%2Fdriver%2Ferrors.py",
        "%2e%2e/pyproject.toml",
        "..%2f..%2f..%2f..%2fetc%2fpasswd",
        "%2Fetc%2Fpasswd",
        "main.js%00.html",
        "data/0000/x",
        "data/../main.js/..",
        "data/..%2F..%2Fetc/passwd",
        "jobs/job-2/job.json",
        "jobs/job-1/../job-1/nothing",
    ],
)
async def test_paths_that_are_not_there(
    server: JobServer, client: aiohttp.ClientSession, handle: JobHandle, path: str
) -> None:
    url = yarl.URL(server.base_url + path, encoded=True)
    async with client.get(url) as response:
        assert response.status == 404
        assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_nothing_without_the_token(server: JobServer, client: aiohttp.ClientSession) -> None:
    root = server.base_url.rsplit("/", 2)[0]
    for path in ("/", "/main.js", "/x/", "/x/main.js", "/x/jobs/job-1/job.json", "/é/"):
        async with client.get(root + path) as response:
            assert response.status == 404
    async with client.put(f"{server.base_url}main.js") as response:
        assert response.status in (404, 405)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "example.com"}, 421),
        ({"Host": "127.0.0.1"}, 421),
        ({"Host": "127.0.0.1:1"}, 421),
        ({"Origin": "http://example.com"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
async def test_other_hosts_and_origins(
    server: JobServer,
    client: aiohttp.ClientSession,
    handle: JobHandle,
    headers: dict[str, str],
    status: int,
) -> None:
    assert await post(client, server, "result", result(), **headers) == status
    async with client.get(f"{server.base_url}main.js", headers=headers) as response:
        assert response.status == status
    assert [event.kind for event in handle.events] == ["bad-request"]
    # The job goes on: a stranger's request must not end it.
    await post_blob(client, server)
    assert await post(client, server, "result", result()) == 204


async def test_the_own_origin_by_both_names(
    server: JobServer, client: aiohttp.ClientSession, handle: JobHandle
) -> None:
    origin = server.base_url.rsplit("/", 2)[0]
    other = origin.replace("127.0.0.1", "localhost")
    await post_blob(client, server)
    for index, given in enumerate((origin, other)):
        body = {"op": index, "steps_done": 1, "result": result()["ops"][index]}
        assert await post(client, server, "progress", body, Origin=given) == 204


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "Invalid JSON"),
        (b"\xff\xfe", "Invalid JSON"),
        (b"[" * 100_000, "Invalid JSON"),
        (json.dumps(result(ran={"x": "\ud800"})).encode(), "Invalid JSON"),
        (b"[]", "instance of JobResult"),
        (b"null", "instance of JobResult"),
        (result(format="driver-job-result/2"), "format"),
        (result(extra=1), "extra"),
        (result(job="job-2"), "'job-2' was posted to job 'job-1'"),
        (result(job=7), "job"),
        (result(status="failed"), "status failed with error None"),
        (result(error={"kind": "failed", "message": "x"}), "status ok with error"),
        (result(error={"kind": "nonsense", "message": "x"}), "error.kind"),
        (result(ops=result()["ops"][:2]), "2 results of 3"),
        (result(ops=result()["ops"] * 2), "6 results of 3"),
        (result(ops=result()["ops"][::-1]), "this is the result of readback"),
        (ops(0, losses=[1.0]), "instead of 2"),
        (ops(0, losses=[1.0, "fast"]), "losses"),
        (ops(0, losses=[1.0, None]), "losses"),
        (ops(0, ms=None), "instead of 2"),
        (ops(0, ms=-1.0), "no duration"),
        (ops(0, ms="NaN"), "no duration"),
        (ops(2, values_ms=["Infinity"]), "no duration"),
        (ops(2, values_ms=[]), "0 values instead of 1"),
        (ops(1, label="other"), "this is the result of read other"),
        (result(), "blob weights is not complete"),
    ],
)
async def test_results_that_end_the_job(
    server: JobServer,
    client: aiohttp.ClientSession,
    handle: JobHandle,
    body: bytes | dict[str, Any],
    words: str,
) -> None:
    if "blob" not in words:
        await post_blob(client, server)
    assert await post(client, server, "result", body) == 400
    with pytest.raises(SlotError, match="broke the protocol") as caught:
        await handle.result()
    assert words in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert words in handle.events[0].message
    # And it stays ended.
    assert await post(client, server, "result", result()) == 409


@pytest.mark.parametrize("where", ["ran", "memory", "adapter"])
async def test_deep_nesting(
    server: JobServer, client: aiohttp.ClientSession, handle: JobHandle, where: str
) -> None:
    await post_blob(client, server)
    deep: dict[str, Any] = {}
    for _ in range(MAX_DEPTH + 1):
        deep = {"x": deep or 1}
    assert await post(client, server, "result", result(**{where: deep})) == 400
    with pytest.raises(SlotError, match="nested deeper"):
        await handle.result()


async def test_a_bare_nan_is_no_json(
    server: JobServer, client: aiohttp.ClientSession, handle: JobHandle
) -> None:
    await post_blob(client, server)
    body = json.dumps(ops(0, losses=[1.0, float("nan")])).encode()
    assert b"NaN" in body
    assert await post(client, server, "result", body) == 400


async def test_a_second_result(
    server: JobServer, client: aiohttp.ClientSession, handle: JobHandle
) -> None:
    await post_blob(client, server)
    assert await post(client, server, "result", result()) == 204
    assert await post(client, server, "result", result(ran={"faster": True})) == 409
    assert (await handle.result()).ran == {}
    assert "has its result" in handle.events[0].message


async def test_two_results_at_once(
    server: JobServer, client: aiohttp.ClientSession, handle: JobHandle
) -> None:
    await post_blob(client, server)
    answers = await asyncio.gather(*(post(client, server, "result", result()) for _ in range(4)))
    assert sorted(answers) == [204, 409, 409, 409]


async def test_a_huge_result(
    server: JobServer, client: aiohttp.ClientSession, handle: JobHandle
) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(RESULT_BYTES // (1 << 20) + 1):
            yield b" " * (1 << 20)

    assert await post(client, server, "result", endless()) == 413
    with pytest.raises(SlotError, match="a body of more than"):
        await handle.result()


@pytest.mark.parametrize(
    ("query", "size", "status"),
    [
        ("label=weights&offset=0&total=256", 0, 413),
        ("label=weights&offset=0&total=256", 257, 413),
        ("label=weights&offset=0&total=256", 260, 413),
        ("label=weights&offset=0&total=256", 3, 413),
        ("label=weights&offset=4&total=256", 4, 409),
        ("label=weights&offset=2&total=256", 4, 413),
        ("label=weights&offset=256&total=256", 4, 413),
        ("label=weights&offset=-4&total=256", 4, 400),
        ("label=weights&offset=1e2&total=256", 4, 400),
        ("label=weights&offset=" + "9" * 5000 + "&total=256", 4, 400),
        ("label=weights&offset=0&total=99999999999999", 4, 400),
        ("label=weights&offset=0", 4, 400),
        ("label=other&offset=0&total=256", 4, 400),
        ("label=..%2Fx&offset=0&total=256", 4, 400),
        ("offset=0&total=256", 4, 400),
    ],
)
async def test_blobs_that_do_not_fit(
    server: JobServer,
    client: aiohttp.ClientSession,
    handle: JobHandle,
    query: str,
    size: int,
    status: int,
) -> None:
    assert await post(client, server, f"blob?{query}", b"x" * size) == status
    assert len(handle.events) == 1
    assert len(handle.events[0].message) < 500
    assert handle.blobs == {}
    await post_blob(client, server)
    assert set(handle.blobs) == {"weights"}


async def test_a_blob_twice_and_without_a_length(
    server: JobServer, client: aiohttp.ClientSession, handle: JobHandle
) -> None:
    async def stream() -> AsyncIterator[bytes]:
        yield b"x" * 256

    path = "blob?label=weights&offset=0&total=256"
    assert await post(client, server, path, stream()) == 411
    data = await post_blob(client, server)
    assert await post(client, server, path, b"y" * 256) == 409
    assert handle.blobs["weights"] == data


async def test_a_piece_that_breaks_off(server: JobServer, handle: JobHandle) -> None:
    url = yarl.URL(server.base_url)
    _, writer = await asyncio.open_connection("127.0.0.1", url.port)
    head = (
        f"POST {url.path}jobs/job-1/blob?label=weights&offset=0&total=256 HTTP/1.1\r\n"
        f"Host: 127.0.0.1:{url.port}\r\nContent-Length: 256\r\n\r\n"
    )
    writer.write(head.encode() + b"x" * 100)
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.close()
    await writer.wait_closed()
    async with aiohttp.ClientSession() as client:
        for _ in range(100):  # until the server has noticed
            status = await post(client, server, "blob?label=weights&offset=0&total=256", b"y" * 256)
            if status == 204:
                break
            await asyncio.sleep(0.02)
    assert handle.blobs["weights"] == b"y" * 256


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"x",
        b"[" * 5000,
        {"op": 0, "steps_done": 2},
        {"op": 0, "steps_done": -1, "result": result()["ops"][0]},
        {"op": 1, "steps_done": 2, "result": result()["ops"][1]},
        {"op": -1, "steps_done": 2, "result": result()["ops"][2]},
        {"op": 0, "steps_done": 2, "result": result()["ops"][2]},
        {"op": 0, "steps_done": 2, "result": ops(0, losses=[1.0])["ops"][0]},
    ],
)
async def test_bad_progress(
    server: JobServer,
    client: aiohttp.ClientSession,
    handle: JobHandle,
    body: bytes | dict[str, Any],
) -> None:
    assert await post(client, server, "progress", body) in (400, 413)
    assert len(handle.events) == 1
    assert handle.progress is None and handle.ops == []


async def test_events_are_bounded(
    server: JobServer, client: aiohttp.ClientSession, handle: JobHandle
) -> None:
    for _ in range(250):
        await post(client, server, "progress", b"x")
    assert len(handle.events) == 200


async def test_malformed_http_is_silent(
    server: JobServer, capfd: pytest.CaptureFixture[str]
) -> None:
    for raw in (b"GARBAGE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"x" * 100_000 + b"\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", yarl.URL(server.base_url).port)
        writer.write(raw)
        await writer.drain()
        answer = await asyncio.wait_for(reader.read(), 5)
        assert b" 400 " in answer or b" 404 " in answer or b" 421 " in answer
        writer.close()
    assert capfd.readouterr() == ("", "")


async def test_closing_wakes_whoever_waits() -> None:
    async with JobServer(WEB) as server:
        handle = server.open_job(Job(job="job-1", program=()))
        waiting = asyncio.ensure_future(handle.result())
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await waiting
