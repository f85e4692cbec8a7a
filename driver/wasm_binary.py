"""Binary modules: what the linker cannot do.

Format: WebAssembly core specification 3.0, chapter 5 (binary format).
"""

from collections.abc import Iterator

from driver.errors import BuildError

_HEADER = b"\0asm\1\0\0\0"
_IMPORT_SECTION = 2
_MEMORY = 2  # kind of an import
_HAS_MAXIMUM, _SHARED = 1, 2  # bits of a memory's limits; without bit 2 its addresses have 32 bits


def import_memory(module: bytes, name: str, *, maximum_pages: int, shared: bool) -> bytes:
    """`module` with one more import, after all others: the memory env.`name`, 32-bit addresses.

    A memory is counted apart from functions, so no index in the module changes.

    Raises BuildError where `module` is not a binary module that imports something.
    """
    sections = list(_sections(module))
    if [kind for kind, _ in sections].count(_IMPORT_SECTION) != 1:
        raise BuildError("the linked module imports nothing, not even its memory")
    limits = _HAS_MAXIMUM | (_SHARED if shared else 0)
    entry = _named("env") + _named(name) + bytes([_MEMORY, limits]) + _leb(0) + _leb(maximum_pages)
    out = bytearray(_HEADER)
    for kind, body in sections:
        new = _with_entry(body, entry) if kind == _IMPORT_SECTION else body
        out += bytes([kind]) + _leb(len(new)) + new
    return bytes(out)


def _with_entry(imports: bytes, entry: bytes) -> bytes:
    count, first = _read_leb(imports, 0)
    return _leb(count + 1) + imports[first:] + entry


def _sections(module: bytes) -> Iterator[tuple[int, bytes]]:
    if not module.startswith(_HEADER):
        raise BuildError("the linker gave no WebAssembly module")
    at = len(_HEADER)
    while at < len(module):
        kind = module[at]
        size, start = _read_leb(module, at + 1)
        at = start + size
        if at > len(module):
            raise BuildError(f"the linked module ends within its section {kind}")
        yield kind, module[start:at]


def _named(text: str) -> bytes:
    return _leb(len(text.encode())) + text.encode()


def _leb(value: int) -> bytes:
    """Unsigned LEB128: seven bits a byte, the lowest first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _read_leb(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where it ends."""
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise BuildError("the linked module ends within a number")
