"""A receipt's files against this source: modules compiled anew, kernels and page modules read."""

import hashlib
from collections.abc import Sequence

from driver import build, layout
from driver.errors import BuildError
from driver.records import Artifact, RebuiltFile, Subject

_PAGE = "web/"


def rebuild(subject: Subject) -> tuple[RebuiltFile, ...]:
    """Every file that the receipt names, as this source gives it.

    WASM is compiled with the flags that the receipt names, never taken from the cache; a flag that
    is none of this project's is not passed to the compiler.
    """
    return tuple(_rebuilt(artifact) for artifact in subject.artifacts)


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
    return RebuiltFile(
        name=artifact.name,
        recorded_sha256=artifact.sha256,
        rebuilt_sha256=sha256,
        same=sha256 == artifact.sha256,
        reason="; ".join(reasons) or None,
    )


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
