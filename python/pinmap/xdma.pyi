# SPDX-License-Identifier: MIT OR Apache-2.0
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, final

from . import Device, Interrupt, _Operand

_Direction: TypeAlias = Literal["to_card", "to_host"]

def info(device: Device) -> CoreInfo: ...
def open(
    device: Device,
    direction: _Direction,
    number: int = 0,
    *,
    polled: bool = False,
    descriptors: int | None = None,
    piece: int | None = None,
) -> Channel: ...
def user_interrupt(device: Device, number: int) -> Interrupt: ...

@final
class Channel:
    @property
    def info(self) -> ChannelInfo: ...
    @property
    def closed(self) -> bool: ...
    def start(
        self,
        memory: _Operand,
        address: int | None = None,
        *,
        fixed: bool = False,
        more: bool = False,
    ) -> None: ...
    def wait(self, timeout: float | None = None) -> Done: ...
    def try_wait(self) -> Done | None: ...
    def done(self) -> Coroutine[Any, Any, Done]: ...
    def stop(self) -> None: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class CoreInfo:
    @property
    def bar(self) -> int: ...
    @property
    def channels(self) -> list[ChannelInfo]: ...

@final
class ChannelInfo:
    @property
    def direction(self) -> _Direction: ...
    @property
    def number(self) -> int: ...
    @property
    def stream(self) -> bool: ...
    @property
    def alignment(self) -> int: ...
    @property
    def granularity(self) -> int: ...
    @property
    def address_bits(self) -> int: ...
    @property
    def version(self) -> int: ...

@final
class Done:
    @property
    def length(self) -> int: ...
    @property
    def end_of_packet(self) -> bool: ...

__all__ = [
    "Channel",
    "ChannelInfo",
    "CoreInfo",
    "Done",
    "info",
    "user_interrupt",
]
