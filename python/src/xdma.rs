// SPDX-License-Identifier: MIT OR Apache-2.0
//! AMD's DMA core for PCI Express (XDMA, PG195): its channels, and interrupts of the design.

use pyo3::prelude::*;

/// Drives AMD's DMA core for PCI Express (XDMA): open() takes a channel of a device, which moves
/// bytes between memory and the card.
#[pymodule(submodule)]
pub(crate) mod xdma {
    use std::os::fd::AsRawFd;
    use std::sync::Arc;

    use pinmap_dynamic as dynamic;
    use pinmap_xdma::{ChannelOptions, Core, Direction};
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    use crate::device::Device;
    use crate::error::{detached, invalid};
    use crate::handle::Handle;
    use crate::interrupt::Interrupt;
    use crate::memory::Memory;
    use crate::operand::Operand;
    use crate::shared::Shared;
    use crate::wait::{coroutine, wait};

    #[pymodule_export]
    use crate::info::{Block, ChannelInfo, CoreInfo, Done};

    fn direction(word: &str) -> PyResult<Direction> {
        match word {
            "to_card" => Ok(Direction::H2c),
            "to_host" => Ok(Direction::C2h),
            _ => Err(invalid(format!(
                "a direction is \"to_card\" or \"to_host\", not {word:?}"
            ))),
        }
    }

    impl From<&pinmap_xdma::ChannelInfo> for ChannelInfo {
        fn from(info: &pinmap_xdma::ChannelInfo) -> Self {
            let pinmap_xdma::ChannelInfo {
                number,
                stream,
                alignment,
                granularity,
                address_bits,
                version,
                ..
            } = *info;
            Self {
                direction: match info.direction {
                    Direction::H2c => "to_card".into(),
                    Direction::C2h => "to_host".into(),
                },
                number,
                stream,
                alignment,
                granularity,
                address_bits,
                version: version.into(),
            }
        }
    }

    /// Tells what the core of a device has. Only reads registers.
    ///
    /// Raises Error: EINVAL, no BAR has the core's registers; EOPNOTSUPP, the core is none that
    /// this module can drive; EBUSY, another program owns the device; ENODEV, it is gone.
    #[pyfunction]
    fn info(py: Python<'_>, device: &Bound<'_, Device>) -> PyResult<CoreInfo> {
        let shared = device.get().shared()?;
        let core = detached(py, || Ok(Core::open(&shared.device)?))?;
        Ok(CoreInfo {
            bar: core.bar(),
            channels: core.channels().iter().map(Into::into).collect(),
        })
    }

    /// Takes a channel of the core of a device: the direction is "to_card" or "to_host". With
    /// polled=True, waits poll memory to which the core writes, and the channel takes no interrupt
    /// vector. A transfer has at most `descriptors`, None is for 1,024, and each of them at most
    /// `piece` bytes: a channel is stopped after a descriptor.
    ///
    /// Raises Error: EINVAL, there is no such channel, or the options make no sense; EBUSY, the
    /// channel is taken; EOPNOTSUPP, the device has no interrupt vector for it; otherwise as info()
    /// and Device.alloc() do.
    #[pyfunction]
    #[pyo3(signature = (
        device, direction, number = 0, *, polled = false, descriptors = None, piece = None
    ))]
    fn open(
        py: Python<'_>,
        device: &Bound<'_, Device>,
        direction: &str,
        number: usize,
        polled: bool,
        descriptors: Option<usize>,
        piece: Option<usize>,
    ) -> PyResult<Channel> {
        let (shared, direction) = (device.get().shared()?, self::direction(direction)?);
        let mut options = ChannelOptions::new();
        if polled {
            options = options.polled();
        }
        if let Some(descriptors) = descriptors {
            options = options.descriptors(descriptors);
        }
        if let Some(piece) = piece {
            options = options.piece(piece);
        }
        let channel = detached(py, || {
            dynamic::Channel::open(&shared.device, direction, number, options)
        })?;
        Ok(Channel {
            info: channel.info().into(),
            held: Handle::new("channel", Held { channel, shared }),
        })
    }

    /// Enables a user interrupt of the core of a device, 0 to 15, which the design raises. It is an
    /// interrupt like any other. A design keeps its request until the cause is cleared, in a
    /// register of its own: clear it after the wait.
    ///
    /// Raises Error: EINVAL, there is no such core or number; EOPNOTSUPP, the device has no vector
    /// for it; otherwise as Device.interrupt() does.
    #[pyfunction]
    fn user_interrupt(
        py: Python<'_>,
        device: &Bound<'_, Device>,
        number: u32,
    ) -> PyResult<Interrupt> {
        let shared = device.get().shared()?;
        let user = detached(py, || {
            Ok(Core::open(&shared.device)?.user_interrupt(number)?)
        })?;
        Ok(Interrupt::new(user.into()))
    }

    /// A channel, for one transfer at a time. Made by open().
    ///
    /// Memory of a transfer is Memory of the channel's device, or an array that is a view of it. It
    /// cannot be released until the transfer is done. In asyncio, wait with `await channel.done()`.
    #[pyclass(module = "pinmap.xdma", frozen)]
    pub(crate) struct Channel {
        held: Handle<Held>,
        info: ChannelInfo,
    }

    /// Holds the channel until it is closed, and the device, whose object may be closed before.
    struct Held {
        channel: dynamic::Channel,
        shared: Arc<Shared>,
    }

    #[pymethods]
    impl Channel {
        /// The properties of the channel.
        #[getter]
        fn info(&self) -> ChannelInfo {
            self.info.clone()
        }

        /// Whether close() was called.
        #[getter]
        fn closed(&self) -> bool {
            !self.held.is_open()
        }

        /// Starts a transfer of all of `memory`, from or to the card's `address`, or to or from a
        /// stream, without one. Does not wait. With fixed=True each access of the card's side goes
        /// to the same address. A transfer to a stream is a packet, which goes on with the next one
        /// if more=True.
        ///
        /// Raises Error, and nothing was begun: EINVAL, the memory, the address or their alignment
        /// are none that the channel can have; EACCES, the array can only be read; EBUSY, the
        /// channel has a transfer; ESTALE, the memory was released; ENODEV, the card is gone.
        #[pyo3(signature = (memory, address = None, *, fixed = false, more = false))]
        fn start(
            &self,
            py: Python<'_>,
            memory: &Bound<'_, PyAny>,
            address: Option<u64>,
            fixed: bool,
            more: bool,
        ) -> PyResult<()> {
            let held = self.held.get()?;
            let is_written = held.channel.info().direction == Direction::C2h;
            let memory = Operand::of(&held.shared, memory, "memory", is_written)?;
            let part = memory.offset..memory.offset + memory.len;
            detached(py, || {
                held.channel.start(&memory.memory, |mut transfer| {
                    transfer = transfer.part(part);
                    if let Some(address) = address {
                        transfer = transfer.at(address);
                    }
                    if fixed {
                        transfer = transfer.fixed();
                    }
                    if more {
                        transfer = transfer.more();
                    }
                    transfer
                })
            })
        }

        /// Waits until the transfer is done, for at most `timeout` seconds; None is for ever, and 0
        /// only looks. After TimedOut the transfer goes on.
        ///
        /// Raises TimedOut: the time was up; Error: EINVAL, there is no transfer; EIO, the channel
        /// has stopped at an error, which the words name by the bits of the status register;
        /// ECANCELED, it was stopped; ENODEV, the card is gone.
        #[pyo3(signature = (timeout = None))]
        fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Done> {
            let held = self.held.get()?;
            Ok(wait(py, timeout, |slice| held.channel.wait(Some(slice)))?.into())
        }

        /// Returns the transfer if it is done, or None.
        ///
        /// Raises Error: as wait() does.
        fn try_wait(&self, py: Python<'_>) -> PyResult<Option<Done>> {
            let held = self.held.get()?;
            Ok(detached(py, || held.channel.poll())?.map(Done::from))
        }

        /// Waits in asyncio until the transfer is done. It goes on if the wait is cancelled.
        ///
        /// Raises Error: EOPNOTSUPP, the channel is polled; otherwise as wait() does.
        fn done<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
            Self::until(slf, "try_wait")
        }

        /// Starts to receive a stream without a pause, in blocks of the memory, of `block` bytes
        /// each, until the channel is stopped or closed. While no block is free the core holds the
        /// design back, so that nothing is overwritten. wait() returns after a stop.
        ///
        /// Raises Error: as start() does; EINVAL, the channel is no stream to the host, or the
        /// memory has fewer than two blocks, or more than there are descriptors, or 1,023.
        fn receive(
            &self,
            py: Python<'_>,
            memory: &Bound<'_, Memory>,
            block: usize,
        ) -> PyResult<()> {
            let (held, memory) = (self.held.get()?, memory.get().held()?);
            detached(py, || held.channel.receive(&memory, block))
        }

        /// Waits for the next block that is received, for at most `timeout` seconds; None is for
        /// ever. The block is the program's until give_back().
        ///
        /// Raises Error: as wait() does.
        #[pyo3(signature = (timeout = None))]
        fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Block> {
            let held = self.held.get()?;
            Ok(wait(py, timeout, |slice| held.channel.wait_block(Some(slice)))?.into())
        }

        /// Returns the next block that was received, or None.
        ///
        /// Raises Error: as wait() does.
        fn try_next(&self, py: Python<'_>) -> PyResult<Option<Block>> {
            let held = self.held.get()?;
            Ok(detached(py, || held.channel.poll_block())?.map(Block::from))
        }

        /// Waits in asyncio for the next block.
        ///
        /// Raises Error: as done() does.
        fn next_async<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
            Self::until(slf, "try_next")
        }

        /// Gives the oldest block that next() has returned back to the core.
        ///
        /// Raises Error: EINVAL, there is none; ENODEV, the card is gone.
        fn give_back(&self, py: Python<'_>) -> PyResult<()> {
            let held = self.held.get()?;
            detached(py, || held.channel.give_back())
        }

        /// Tells the channel to stop after the descriptor that it executes. The transfer ends when
        /// it has: wait() tells. A channel whose card's side does not answer does not stop.
        ///
        /// Raises Error: ENODEV, the card is gone.
        fn stop(&self, py: Python<'_>) -> PyResult<()> {
            let held = self.held.get()?;
            detached(py, || held.channel.stop())
        }

        /// Returns the file descriptor of the channel, an eventfd that stays the channel's:
        /// readable when a transfer may be done.
        ///
        /// Raises Error: EOPNOTSUPP, the channel is polled.
        fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
            let held = self.held.get()?;
            detached(py, || Ok(held.channel.interrupt()?.as_raw_fd()))
        }

        /// Stops the transfer, waits for that, and gives the channel and the memory back. Who waits
        /// for the transfer is told that the channel is closed. A channel that does not stop within
        /// a second stays taken, and keeps its memory. Once it is closed, this does nothing.
        fn close(&self, py: Python<'_>) {
            // Of another process nothing is closed.
            if let Ok(held) = self.held.get() {
                py.detach(|| held.channel.close());
            }
            self.held.close();
        }

        fn __repr__(&self) -> String {
            let ChannelInfo {
                direction, number, ..
            } = &self.info;
            let closed = if self.closed() { ", closed" } else { "" };
            format!("<pinmap.xdma.Channel {direction} {number}{closed}>")
        }

        fn __enter__(slf: Py<Self>) -> Py<Self> {
            slf
        }

        #[pyo3(signature = (*_exception))]
        fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
            self.close(py);
        }
    }

    impl Channel {
        /// Waits in asyncio until a method returns something.
        fn until<'py>(slf: &Bound<'py, Self>, attempt: &str) -> PyResult<Bound<'py, PyAny>> {
            let (file, held) = (slf.get().fileno(slf.py())?, slf.get().held.get()?);
            let files = vec![(file, true), (held.shared.device.as_raw_fd(), false)];
            coroutine(slf.py(), files, slf.getattr(attempt)?)
        }
    }

    impl From<pinmap_xdma::Block> for Block {
        fn from(block: pinmap_xdma::Block) -> Self {
            Self {
                offset: block.bytes.start,
                length: block.bytes.len(),
                end_of_packet: block.end_of_packet,
            }
        }
    }

    impl From<(usize, bool)> for Done {
        fn from((length, end_of_packet): (usize, bool)) -> Self {
            Self {
                length,
                end_of_packet,
            }
        }
    }
}
