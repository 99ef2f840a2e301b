# SPDX-License-Identifier: MIT OR Apache-2.0
"""Drives AMD's DMA core for PCI Express (XDMA), the engine of many cards with an FPGA.

open() takes a channel of a device, which moves bytes between memory and the card. docs/xdma.md in
pinmap's sources has more.
"""

from ._pinmap import xdma as _xdma

Block = _xdma.Block
Channel = _xdma.Channel
ChannelInfo = _xdma.ChannelInfo
CoreInfo = _xdma.CoreInfo
Done = _xdma.Done
info = _xdma.info
open = _xdma.open
user_interrupt = _xdma.user_interrupt

__all__ = [
    "Block",
    "Channel",
    "ChannelInfo",
    "CoreInfo",
    "Done",
    "info",
    "user_interrupt",
]
