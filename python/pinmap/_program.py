# SPDX-License-Identifier: MIT OR Apache-2.0
"""Kernels in C and OpenCL C. clang compiles them, by the commands of docs/kernels.md and
docs/opencl-kernels.md."""

import errno
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from ._errors import make
from ._pinmap import _HEADERS, Local, Program

__all__ = ["Local", "Program", "compile"]

_FLAGS = (
    "--target=riscv64-unknown-elf -march=rv64gc -mabi=lp64d -O2 -ffp-contract=off -ffreestanding "
    "-fPIE -fvisibility=hidden -nostdlib -I include"
).split()
_LINK = (
    "-fuse-ld=lld -Wl,-pie,--no-dynamic-linker,--export-dynamic,--exclude-libs,ALL,-z,text,-e,0"
).split()
_EXTENSIONS = "+cl_khr_fp64,+cl_khr_int64_base_atomics,+cl_khr_int64_extended_atomics"
_OPENCL = ["-cl-std=CL2.0", "-Xclang", f"-cl-ext={_EXTENSIONS}", "-include", "pinmap_opencl.h"]
# For functions such as exp(), if Debian's musl-dev:riscv64 is there.
_LIBRARY = pathlib.Path("/usr/lib/riscv64-linux-musl")
_PACKAGES = "Debian's packages clang and lld have what compiles kernels"


def _missing(what):
    return make(errno.ENOENT, f"{what}; {_PACKAGES}", "not_found", _PACKAGES)


def _run(command, where):
    """Runs clang, and raises what it says if it fails."""
    done = subprocess.run(command, cwd=where, capture_output=True, text=True)
    if done.returncode == 0:
        return
    said = done.stderr.strip()
    if "invalid linker name" in said:
        raise _missing("lld, the linker, is not there")
    hint = None
    if "undefined symbol" in said and not _LIBRARY.exists():
        hint = "functions such as exp() are in musl-dev:riscv64: see docs/opencl-kernels.md"
    words = f"the kernels cannot be compiled:\n{said}" + (f"\n{hint}" if hint else "")
    raise make(errno.EINVAL, words, "invalid_input", hint)


def compile(source, language="c", flags=()):
    """Compiles kernels in C, with pinmap_kernel.h included already, or in OpenCL C. Returns the
    program, for Device.load(), in a form that can be stored. `flags` are more flags for clang.

    Raises NotFound: there is no clang, or no lld; InvalidInput: the language is another one, or
    the kernels cannot be compiled, and the words are the compiler's.
    """
    if language not in ("c", "opencl"):
        words = f'there is no language {language!r}: kernels are in "c" or "opencl"'
        raise make(errno.EINVAL, words, "invalid_input", None)
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    versions = {found.name for folder in folders for found in pathlib.Path(folder).glob("clang-*")}
    numbers = [int(name[6:]) for name in versions if re.fullmatch(r"clang-\d+", name)]
    names = ["clang", *(f"clang-{number}" for number in sorted(numbers, reverse=True))]
    clang = next(filter(None, map(shutil.which, names)), None)
    if clang is None:
        raise _missing("clang, the compiler, is not there")
    library = [f"-L{_LIBRARY}", "-lc"] if _LIBRARY.exists() else []
    with tempfile.TemporaryDirectory(prefix="pinmap-") as where:
        place = pathlib.Path(where)
        (place / "include").mkdir()
        for name, text in _HEADERS:
            (place / "include" / name).write_text(text)
        command = [clang, *_FLAGS]
        if language == "opencl":
            _run([*command, "-c", "-o", "opencl.o", "include/pinmap_opencl.c"], place)
            name, what = "kernels.cl", [*_OPENCL, "-x", "cl", "kernels.cl", "-x", "none"]
            library = ["opencl.o", *library]
        else:
            name, what = "kernels.c", ["-include", "pinmap_kernel.h", "kernels.c"]
            what += ["-isystem", "/usr/include/riscv64-linux-musl"]
        (place / name).write_text(source)
        _run([*command, *_LINK, *flags, *what, *library, "-o", "kernels.elf"], place)
        return (place / "kernels.elf").read_bytes()
