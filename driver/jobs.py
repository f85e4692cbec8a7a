"""Jobs for the page: an arm, its assets, states, batches and program, put on the server."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from driver import build, sources
from driver.errors import BuildError
from driver.records import (
    ArmJob,
    Artifact,
    Job,
    Kernel,
    ModelConfig,
    Op,
    Operation,
    OpResult,
    Section,
    StateRef,
    TensorSlot,
    TokensRef,
)
from driver.server import PIECE_BYTES, JobServer
from driver.tensors import F32, State, flat_size, table, unflatten

ADDRESS = {"wasm": "wasm32", "wasm64": "wasm64"}
# A larger section stays in the page: here it would need as much memory again.
READ_LIMIT_BYTES = 1 << 30
WHOLE_DIGEST_BYTES = 256 << 20  # the page makes one digest of a state up to here (web/bench.js)
# The model of a job that trains nothing: only its arm's workbench is asked.
NO_MODEL = ModelConfig(
    n_layer=1, n_head=1, d_model=4, d_ff=4, ctx=4, batch=1, vocab=4, lr=1e-3, beta1=0.9, beta2=0.9,
    eps=1e-8, weight_decay=0.0, grad_clip=0.0,
)  # fmt: skip


class JobMaker:
    """Makes jobs for one model; what it puts on the server stays there and is put once."""

    def __init__(self, server: JobServer, config: ModelConfig) -> None:
        self.config = config
        self._server = server
        self._tensors: tuple[TensorSlot, ...] = table(config)
        self._flat_size = flat_size(config)
        self._assets: dict[str, dict[str, str]] = {}
        self._artifacts: dict[str, Artifact] = {}

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """Every module and kernel that a job of this maker uses, and the page's own modules."""
        page = [
            Artifact(name=f"web/{name}", sha256=digest, size_bytes=self._server.sizes[name])
            for name, digest in self._server.modules.items()
        ]
        return tuple(sorted([*self._artifacts.values(), *page], key=lambda a: a.name))

    def state(
        self, name: str, sections: dict[Section, F32], t: int = 0, at: int = 0
    ) -> tuple[StateRef, str]:
        """Puts a training state (flat sections) on the server; gives its SHA-256 as well."""
        parts = [_bytes_of(flat) for flat in sections.values()]
        # One section is offered as it lies in memory, without a copy.
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        url = self._server.put(f"{name}.state", data)
        ref = StateRef(url=url, sections=tuple(sections), t=t, at=at)
        return ref, hashlib.sha256(data).hexdigest()

    def tokens(self, tokens: NDArray[np.int32]) -> tuple[TokensRef, str]:
        """Puts batches (steps, B, T+1) on the server; gives their SHA-256 as well."""
        data = np.ascontiguousarray(tokens, "<i4").tobytes()
        ref = TokensRef(url=self._server.put("batches.tokens", data), steps=tokens.shape[0])
        return ref, hashlib.sha256(data).hexdigest()

    def job(
        self,
        name: str,
        arm: ArmJob,
        states: dict[str, StateRef],
        tokens: TokensRef | None,
        program: list[Op],
        plan_sha256: str | None = None,
    ) -> Job:
        """A job that the server can open. Raises BuildError when a kernel does not compile."""
        return Job(
            job=name,
            arm=arm,
            config=self.config,
            tensors=self._tensors,
            flat_size=self._flat_size,
            assets=self._assets_of(arm),
            states=states,
            tokens=tokens,
            program=tuple(program),
            plan_sha256=plan_sha256,
        )

    def tensors_of(self, blob: bytearray) -> State:
        """A blob that a page posted, as tensors by name."""
        return unflatten(self.config, np.frombuffer(blob, "<f4"))

    def _assets_of(self, arm: ArmJob) -> dict[str, str]:
        key = f"{arm.name} {arm.options.get('simd', '')} {arm.options.get('source', '')}"
        if arm.options.get("shared") == "off":
            key += " unshared"
        if key not in self._assets:
            source = arm.options.get("source")
            self._assets[key] = {
                logical: self._put(artifact, source) for logical, artifact in _needed(arm).items()
            }
            if source:
                self._serve(str(source), arm.module)
        return self._assets[key]

    def _serve(self, source: str, module: str) -> None:
        """Offers another source's page modules beside the page's own."""
        files = sources.modules_of(source, module)
        self._server.put_modules(source, files)
        for name, data in files.items():
            full = f"{source}/web/{name}"
            self._artifacts[full] = Artifact(
                name=full, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data)
            )

    def _put(self, artifact: build.Artifact, source: object) -> str:
        name = f"{source}/{artifact.name}" if source else artifact.name
        self._artifacts[name] = Artifact(
            name=name,
            sha256=artifact.sha256,
            size_bytes=artifact.bytes,
            flags=tuple(artifact.flags),
            compiler=artifact.compiler,
        )
        return self._server.put(artifact.name, artifact.path.read_bytes())


def _needed(arm: ArmJob) -> dict[str, build.Artifact]:
    """Logical name → artefact, as web/README.md has it."""
    source = arm.options.get("source")
    root = sources.folder_of(str(source)) if source else None
    if arm.name in ("wasm", "wasm64"):
        simd, shared = str(arm.options["simd"]), arm.options.get("shared") != "off"
        folder = root and root / "wasm_src"
        try:
            return {"wasm": build.build_wasm(simd, ADDRESS[arm.name], shared, folder)}
        except BuildError as error:
            raise BuildError(f"{error}\n(source={source})" if source else str(error)) from error
    if arm.name == "webgpu":
        found = build.gather_wgsl(root and root / "webgpu_src")
        return {f"wgsl/{name}": artifact for name, artifact in found.items()}
    return {}


def wasm_digest(arm: ArmJob) -> str:
    """SHA-256 of the module that a WASM arm has to run."""
    return _needed(arm)["wasm"].sha256


def wgsl_texts(arm: ArmJob) -> dict[str, str]:
    """WGSL of every kernel that an arm on WebGPU may use, by file name without its ending."""
    return {a.name.removesuffix(".wgsl"): a.path.read_text() for a in _needed(arm).values()}


def wgsl_digests(arm: ArmJob) -> dict[str, str]:
    """SHA-256 of every WGSL file that a WebGPU arm may load, by name."""
    return {name.removeprefix("wgsl/"): found.sha256 for name, found in _needed(arm).items()}


def read_refusal(config: ModelConfig) -> str | None:
    """Why sections of this model are not read out of the page; None where they are."""
    size_bytes = 4 * flat_size(config)
    if size_bytes <= READ_LIMIT_BYTES:
        return None
    return (
        f"a section of {size_bytes / 2**30:.2f} GiB is not read out of the page "
        f"(limit {READ_LIMIT_BYTES / 2**30:g} GiB)"
    )


def state_echo(flat: F32) -> dict[str, str]:
    """What the page must say of a state of one section: its SHA-256, or that of its pieces'."""
    data = _bytes_of(flat)
    if len(data) <= WHOLE_DIGEST_BYTES:
        return {"state_sha256": hashlib.sha256(data).hexdigest()}
    pieces = (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))
    digests = b"".join(hashlib.sha256(piece).digest() for piece in pieces)
    return {"state_pieces_sha256": hashlib.sha256(digests).hexdigest()}


def _bytes_of(flat: F32) -> memoryview:
    return np.ascontiguousarray(flat, "<f4").data.cast("B")


def open_op() -> Op:
    """Compile, allocate, upload."""
    return Op(op="open")


def load_op(state: str) -> Op:
    """Put the arm in a state."""
    return Op(op="load", state=state)


def train_op(steps: int, label: str) -> Op:
    """One window."""
    return Op(op="train", steps=steps, label=label)


def train_ops(steps: int, piece: int, label: str) -> list[Op]:
    """`steps` steps in windows of at most `piece`, so that progress is seen."""
    whole, rest = divmod(steps, piece)
    return [train_op(piece, label)] * whole + ([train_op(rest, label)] if rest else [])


def read_op(what: Section, label: str) -> Op:
    """Post a section as a blob."""
    return Op(op="read", what=what, label=label)


def digest_op(what: Section, label: str) -> Op:
    """SHA-256 over those of a section's pieces, made in the page."""
    return Op(op="digest", what=what, label=label)


def roofline_op(count: int) -> Op:
    """What the arm could reach at most, `count` samples of each figure."""
    return Op(op="roofline", count=count)


def threads_op(count: int) -> Op:
    """One sample of multiply-adds on `count` threads at the same time."""
    return Op(op="threads", count=count)


def kernel_op(kernel: Kernel, count: int = 0, label: str | None = None, alone: bool = False) -> Op:
    """One product on the job's inputs: timed `count` times, its output posted under `label`.

    `alone`: without samples of the roofline in between, as a choice among kernels needs none.
    """
    return Op(op="kernel", kernel=kernel, count=count, label=label, alone=alone)


def profile_op(steps: int, rounds: int) -> Op:
    """`rounds` rounds, after one to warm up, of four windows of `steps` steps each.

    Two of a round run with the profiler and two without it.
    """
    return Op(op="profile", steps=steps, count=rounds)


def geometry_op() -> Op:
    """The step's dispatches as the arm would run them, without opening it."""
    return Op(op="geometry")


def count_op(steps: int) -> Op:
    """Trains `steps` steps and counts what they ask of WebGPU."""
    return Op(op="count", steps=steps)


def operation_op(operation: Operation, count: int = 0, label: str | None = None) -> Op:
    """One operation: timed `count` times, its results posted under `label`."""
    return Op(op="operation", operation=operation, count=count, label=label)


def curve(ops: Sequence[OpResult], label: str | None = None) -> tuple[list[float], list[float]]:
    """Losses and norms of all train results (with that label) in order."""
    chosen = [op for op in ops if op.op == "train" and label in (None, op.label)]
    return (
        [loss for op in chosen for loss in op.losses],
        [norm for op in chosen for norm in op.grad_norms],
    )
