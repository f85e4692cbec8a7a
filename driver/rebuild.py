"""What a receipt's page was given, against this source: modules compiled anew, kernels and page
modules read, initial state and batches drawn anew."""

import hashlib
from collections.abc import Sequence

import numpy as np

from driver import build, corpus, layout, presets
from driver.errors import BuildError, CorpusError, PresetError
from driver.jobs import READ_LIMIT_BYTES
from driver.records import Artifact, Plan, RebuiltFile, Subject
from driver.tensors import flat_size
from driver.workload import Workload

_PAGE = "web/"


def rebuild(subject: Subject) -> tuple[RebuiltFile, ...]:
    """Every file that the receipt names, as this source gives it.

    WASM is compiled with the flags that the receipt names, never taken from the cache; a flag that
    is none of this project's is not passed to the compiler.
    """
    return tuple(_rebuilt(artifact) for artifact in subject.artifacts)


def redraw(plan: Plan, corpus_file: str | None = None) -> tuple[RebuiltFile, ...]:
    """Corpus, initial state and batches of the plan, drawn from its seed by this source.

    `corpus_file` is the text where it is not the generated one.
    """
    recorded = plan.corpus.sha256
    try:
        text = corpus.load(corpus_file)
    except CorpusError as error:
        return (_compared("corpus", recorded, None, str(error)),)
    absent = (
        f"{corpus_file} is another text"
        if corpus_file
        else f"not the generated one; name the file {plan.corpus.name!r:.100} with --corpus"
    )
    state = tokens = None
    why_state = f"seed {plan.seed} gives another one"
    why_tokens = why_state if text.sha256 == recorded else "drawn from the corpus, see there"
    try:
        state, tokens = _drawn(plan, text)
    except (PresetError, CorpusError, BuildError) as error:
        why_state = why_tokens = str(error)
    return (
        _compared("corpus", recorded, text.sha256, absent),
        _compared("initial state", plan.state_sha256, state, why_state),
        _compared("batches", plan.tokens_sha256, tokens, why_tokens),
    )


def _drawn(plan: Plan, text: corpus.Corpus) -> tuple[str, str | None]:
    """SHA-256 of the state and the batches; of the batches None where the text is another one.

    Raises PresetError or CorpusError for what cannot be drawn, BuildError where it is too much.
    """
    preset = presets.from_keys("the receipt's preset", plan.preset)
    config = preset.model
    if config != plan.config:
        raise PresetError("the receipt's preset and config describe two models")
    steps = max(arm.total_steps for arm in plan.arms)
    size_bytes = 4 * max(flat_size(config), steps * config.batch * (config.ctx + 1))
    if size_bytes > READ_LIMIT_BYTES:
        raise BuildError(
            f"{size_bytes / 2**30:.2f} GiB are not drawn again "
            f"(limit {READ_LIMIT_BYTES / 2**30:g} GiB)"
        )
    workload = Workload.draw(preset, text, plan.seed)
    if text.sha256 != plan.corpus.sha256:
        return workload.state_sha256, None
    tokens = np.ascontiguousarray(workload.batches(steps), "<i4")
    return workload.state_sha256, hashlib.sha256(tokens.data).hexdigest()


def _compared(name: str, recorded: str, here: str | None, reason: str) -> RebuiltFile:
    same = here == recorded
    return RebuiltFile(
        name=name, recorded_sha256=recorded, rebuilt_sha256=here, same=same,
        reason=None if same else reason,
    )  # fmt: skip


def source_remarks(subject: Subject) -> list[str]:
    """Where the receipt's source and compiler are not those that are here."""
    revision, dirty = layout.revision()
    remarks = []
    if subject.dirty:
        remarks.append("the receipt's source had changes that its revision does not show")
    if dirty:
        remarks.append("this source has changes that its revision does not show")
    if revision != subject.revision:
        remarks.append(
            f"the receipt was made from revision {subject.revision or 'unknown'!r:.50}, this is "
            f"{revision or 'unknown'}"
        )
    return remarks


def _rebuilt(artifact: Artifact) -> RebuiltFile:
    """The file of that name here, with the reason where it is another or there is none."""
    sha256, reasons = None, []
    try:
        sha256, compiler = _here(artifact)
    except (BuildError, OSError) as error:
        reasons.append(str(error))
    else:
        if sha256 != artifact.sha256:
            reasons.append(f"this source gives {sha256[:16]}, the receipt has another file")
            if compiler and compiler != artifact.compiler:
                reasons.append(f"compiled by {artifact.compiler!r:.60}, here by {compiler}")
    return _compared(artifact.name, artifact.sha256, sha256, "; ".join(reasons))


def _here(artifact: Artifact) -> tuple[str, str]:
    """SHA-256 of that file here, and what compiled it. Raises BuildError or OSError."""
    name = artifact.name
    if "/" in name and not name.startswith(_PAGE):
        source = name.partition("/")[0]
        raise BuildError(f"it belongs to another source ({source!r:.60}): verify from there")
    if name.endswith(".wasm"):
        made = build.rebuild_wasm(name, artifact.flags)
        return made.sha256, made.compiler
    folder, plain = (layout.WEB, name[len(_PAGE) :]) if name.startswith(_PAGE) else (
        layout.WEBGPU_SRC, name,
    )  # fmt: skip
    known = {path.name: path for path in folder.iterdir() if path.is_file()}
    if plain not in known:  # a name of a stranger's choosing opens no other file
        raise BuildError(f"this source has no file {name!r:.80}")
    return hashlib.sha256(known[plain].read_bytes()).hexdigest(), ""


def differing(files: Sequence[RebuiltFile]) -> list[str]:
    """A sentence for every file that is another here."""
    return [f"{file.name!r:.80}: {file.reason}" for file in files if not file.same]
