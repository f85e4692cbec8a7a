"""`source=REV|DIR`: the kernels and page modules of another revision or folder of this project.

Both kinds are read once into the cache, under their canonical name, before anything starts: a
revision under its full hash, a folder under `sha256-` and the digest of what was taken. From there
an arm is built and served, so a folder that is edited meanwhile changes nothing. The compiler's
flags, the page that runs the program and everything in Python stay this driver's own.
"""

import hashlib
import io
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

from driver import layout
from driver.arms import ArmSpec
from driver.errors import ArmError, LackError

FOLDERS = ("wasm_src", "webgpu_src", "web")
Files = dict[str, bytes]  # path inside the project → content

_TAKEN = re.compile(r"wasm_src/\w+\.[ch]|webgpu_src/\w+\.wgsl|web/\w+\.js", re.ASCII)
_REVISION = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_FOLDER = re.compile(r"sha256-[0-9a-f]{64}")
_QUOTED_MODULE = re.compile(r"""["'](?:\./)?(\w+\.js)["']""", re.ASCII)


def located(spec: ArmSpec) -> ArmSpec:
    """The arm with its `source` read into the cache and named canonically; others as they are.

    An existing folder wins over a revision of the same name. Raises ArmError for what is neither,
    and for a source without what the arm needs; LackError where git or the cache is missing.
    """
    asked = spec.options.get("source")
    if asked is None:
        return spec
    text = str(asked)
    if _FOLDER.fullmatch(text):
        name, files = text, _kept(spec, text)
    elif _is_folder(text):
        files = _of_folder(Path(text))
        name = f"sha256-{digest(files)}"
    else:
        name = _resolved(spec, text)
        files = _of_revision(spec, text, name)
    _check(spec, text, files)
    _keep(name, files)
    return spec.model_copy(update={"options": spec.options | {"source": name}})


def folder_of(source: str) -> Path:
    """Where a located source lies, with the project's folder names in it."""
    if not (_REVISION.fullmatch(source) or _FOLDER.fullmatch(source)):
        raise ArmError(f"source={source} is not located; name a revision or a folder")
    return layout.cache_dir() / "sources" / source


def modules_of(source: str, module: str) -> Files:
    """The page module and every other one of its source that it reaches, by file name."""
    web = folder_of(source) / "web"
    found: Files = {}
    left = [module]
    while left:
        name = left.pop()
        if name not in found and (web / name).is_file():
            found[name] = (web / name).read_bytes()
            left += _QUOTED_MODULE.findall(found[name].decode("utf-8", "replace"))
    return found


def digest(files: Files) -> str:
    """SHA-256 over paths, lengths and bytes, sorted by path."""
    hasher = hashlib.sha256()
    for name in sorted(files):
        for part in (name.encode(), files[name]):
            hasher.update(len(part).to_bytes(8, "little") + part)
    return hasher.hexdigest()


# --------------------------------------------------------------------------- reading


def _is_folder(text: str) -> bool:
    try:
        return Path(text).is_dir()
    except (OSError, ValueError):  # too long a name, or a null byte in it
        return False


def _of_folder(folder: Path) -> Files:
    try:
        paths = [path for name in FOLDERS for path in sorted((folder / name).glob("*"))]
        named = {f"{path.parent.name}/{path.name}": path for path in paths if path.is_file()}
        return {name: path.read_bytes() for name, path in named.items() if _TAKEN.fullmatch(name)}
    except OSError as error:
        raise ArmError(f"source={folder} cannot be read: {error.strerror or error}") from None


def _resolved(spec: ArmSpec, text: str) -> str:
    """The full hash of a revision of this project's repository."""
    if not (layout.ROOT / ".git").exists():
        raise LackError(
            f"arm {spec.name}: source={text} is no folder here, and this installation is not a git "
            "checkout with revisions to look in; name a folder with wasm_src, webgpu_src and web"
        )
    done = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}")
    found = done.stdout.decode("ascii", "replace").strip()
    if done.returncode != 0 or not _REVISION.fullmatch(found):
        raise ArmError(
            f"arm {spec.name}: source={text} is neither a folder nor a revision of this checkout "
            "(git rev-parse does not know it; a shallow clone lacks older ones)"
        )
    return found


def _of_revision(spec: ArmSpec, text: str, revision: str) -> Files:
    done = _git("archive", "--format=tar", revision)
    if done.returncode != 0:
        reason = done.stderr.decode("utf-8", "replace").strip()
        raise ArmError(f"arm {spec.name}: source={text}: git archive failed: {reason}")
    files: Files = {}
    # Read in memory, by a list of names: nothing in an archive chooses where it is written.
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content and _TAKEN.fullmatch(member.name):
                files[member.name] = content.read()
    return files


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["git", *arguments], cwd=layout.ROOT, capture_output=True, check=False, timeout=60
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise LackError(f"source=REV asks git, which does not run here: {error}") from None


def _check(spec: ArmSpec, text: str, files: Files) -> None:
    """The source has what this arm is made of."""
    needed = [f"web/{spec.module}"]
    needed += ["wasm_src/gpt.h", "wasm_src/gpt.c"] if spec.is_wasm else []
    missing = [name for name in needed if name not in files]
    if spec.name == "webgpu" and not any(name.endswith(".wgsl") for name in files):
        missing.append("webgpu_src/*.wgsl")
    if missing:
        raise ArmError(
            f"arm {spec.name}: source={text} has no {', '.join(missing)}; a source is a folder or "
            f"revision of this project, with {', '.join(FOLDERS)} at its top"
        )


# --------------------------------------------------------------------------- the cache


def _kept(spec: ArmSpec, name: str) -> Files:
    """A folder named by its digest, as a receipt has it: only where it was used before."""
    files = _of_folder(folder_of(name)) if folder_of(name).is_dir() else {}
    if f"sha256-{digest(files)}" != name:
        raise ArmError(
            f"arm {spec.name}: source={name} is not in this machine's cache; name the folder"
        )
    return files


def _keep(name: str, files: Files) -> None:
    """Puts a source into the cache, whole or not at all; one that was damaged is put anew."""
    entry = folder_of(name)
    if entry.is_dir() and _of_folder(entry) == files:
        return
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=entry.parent) as scratch:
            made = Path(scratch) / "made"
            for path, content in files.items():
                (made / path).parent.mkdir(parents=True, exist_ok=True)
                (made / path).write_bytes(content)
            if entry.exists():
                entry.rename(Path(scratch) / "damaged")
            made.rename(entry)
    except OSError as error:
        if entry.is_dir() and _of_folder(entry) == files:
            return  # another process was first
        raise LackError(
            f"the cache folder {entry.parent} cannot be written ({error.strerror or error}); "
            "name another one with DRIVER_CACHE=…"
        ) from error
