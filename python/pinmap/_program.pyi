# SPDX-License-Identifier: MIT OR Apache-2.0
from collections.abc import Sequence
from typing import Any, Literal, Self, final

from numpy import number as _Number

from . import Error, Stream, _Operand, _Shape

def compile(
    source: str, language: Literal["c", "opencl"] = "c", flags: Sequence[str] = ()
) -> bytes: ...

class KernelStopped(Error):
    kernel: str
    block: int
    thread: int
    function: str | None
    pc: int
    value: int

@final
class Local:
    def __new__(cls, nbytes: int) -> Self: ...
    @property
    def nbytes(self) -> int: ...

@final
class Program:
    @property
    def kernels(self) -> list[str]: ...
    def launch(
        self,
        stream: Stream,
        kernel: str,
        blocks: _Shape,
        threads: _Shape,
        *arguments: _Operand | Local | int | _Number[Any],
        shared_bytes: int = 0,
        stack_bytes: int = 4096,
        print_bytes: int = 65536,
    ) -> None: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
