// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receiving half of the connection. It answers every request of QEMU at once. QEMU holds its
//! big lock while it waits, and the device's DMA needs that lock, so nothing here waits for DMA.

use crate::bus::Bus;
use crate::config::{self, Config};
use crate::function::Function;
use crate::guest::Guest;
use crate::messenger::Messenger;
use crate::protocol::{command, words, Header, Map, Reader, Region, SetIrqs, Unmap};
use crate::protocol::{EINVAL, ENOTSUP, HEADER, MAX_DATA};
use crate::sys::socket;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

const REGION_COUNT: u32 = 9;
const CONFIG_REGION: u32 = 7;
const IRQ_COUNT: u32 = 5;
const MSIX: u32 = 2;

const READ_WRITE: u32 = 3;
const MAPPABLE: u32 = 4;

/// Options of the server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Make every access to guest memory through QEMU, whose IOMMU then decides about it. This is
    /// slow. Otherwise memory is mapped, with the same effect.
    pub message: bool,
    /// Print on standard error what QEMU maps and resets.
    pub verbose: bool,
}

/// Listens at `path`, and serves a function to the first QEMU that connects, as [`serve`] does. The
/// path appears when connections are accepted, and is gone at the end.
pub fn serve_at<F: Function>(
    path: &Path,
    options: Options,
    start: impl FnOnce(Arc<dyn Bus>) -> io::Result<F>,
) -> io::Result<()> {
    let stream = listen(path)?.accept()?.0;
    let result = serve(stream, options, start);
    // Nobody can use a socket at which no process listens.
    let _ = std::fs::remove_file(path);
    result
}

/// Listens at `path`. The path appears when connections are accepted, and not earlier.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    for old in [path, partial] {
        match std::fs::remove_file(old) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let listener = UnixListener::bind(partial)?;
    std::fs::rename(partial, path)?;
    Ok(listener)
}

/// Serves a function to the QEMU at the other end of `stream`, until that disconnects. `start`
/// makes the function, with the guest as its host. It is dropped when the connection has ended.
pub fn serve<F: Function>(
    stream: UnixStream,
    options: Options,
    start: impl FnOnce(Arc<dyn Bus>) -> io::Result<F>,
) -> io::Result<()> {
    let messenger = Arc::new(Messenger::new(stream.try_clone()?));
    let guest = Arc::new(Guest::new(Arc::clone(&messenger), options.message));
    let function = start(Arc::<Guest>::clone(&guest))?;
    let mut connection = Connection {
        messenger: &messenger,
        guest: &guest,
        function: &function,
        config: Config::new(&function),
        verbose: options.verbose,
    };
    let result = connection.run(&stream);
    // Ends the waits of engines, which get no more answers, so that they can end.
    messenger.close();
    match result {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
        result => result,
    }
}

struct Connection<'a> {
    messenger: &'a Messenger,
    guest: &'a Guest,
    function: &'a dyn Function,
    config: Config,
    verbose: bool,
}

/// A reply: payload and perhaps a descriptor, or an error number.
type Reply<'a> = Result<(Vec<u8>, Option<BorrowedFd<'a>>), u32>;

impl<'a> Connection<'a> {
    fn run(&mut self, stream: &UnixStream) -> io::Result<()> {
        loop {
            let mut header = [0; HEADER];
            let descriptors = socket::receive(stream, &mut header)?;
            let header = Header::parse(&header);
            let Some(bytes) = header.payload() else {
                return Err(io::Error::other(format!(
                    "a message of {} bytes",
                    header.size
                )));
            };
            let mut payload = vec![0; bytes];
            socket::read(stream, &mut payload)?;
            if header.is_reply() {
                self.messenger.answer(&header, payload);
                continue;
            }
            let reply = self.handle(&header, &payload, descriptors);
            if header.no_reply() {
                continue;
            }
            match reply {
                Ok((bytes, descriptor)) => {
                    self.messenger
                        .send(header.reply(bytes.len()), &[&bytes], descriptor)?;
                }
                Err(error) => self.messenger.send(header.refusal(error), &[], None)?,
            }
        }
    }

    fn handle(&mut self, header: &Header, payload: &[u8], descriptors: Vec<OwnedFd>) -> Reply<'a> {
        let none = Ok((Vec::new(), None));
        match header.command {
            command::VERSION => Ok((self.version(payload)?, None)),
            command::DMA_MAP => {
                let map = Map::parse(payload).ok_or(EINVAL)?;
                if self.verbose {
                    eprintln!("vfio-user: {map:x?} with {} descriptors", descriptors.len());
                }
                let file = descriptors.into_iter().next();
                self.guest.map(&map, file).map_err(|error| {
                    eprintln!("vfio-user: {map:x?}: {error}");
                    error
                        .raw_os_error()
                        .and_then(|error| error.try_into().ok())
                        .unwrap_or(EINVAL)
                })?;
                none
            }
            command::DMA_UNMAP => {
                let unmap = Unmap::parse(payload).ok_or(EINVAL)?;
                if self.verbose {
                    eprintln!("vfio-user: {unmap:x?}");
                }
                match unmap.all {
                    true => self.guest.unmap_all(),
                    false => self.guest.unmap(unmap.address, unmap.size),
                }
                Ok((payload.get(..24).ok_or(EINVAL)?.to_vec(), None))
            }
            // flags: can be reset, is a PCI device
            command::GET_INFO => Ok((words(&[16, 3, REGION_COUNT, IRQ_COUNT]), None)),
            command::GET_REGION_INFO => self.region_info(payload),
            command::GET_IRQ_INFO => {
                let index = Reader(payload.get(8..).ok_or(EINVAL)?)
                    .u32()
                    .ok_or(EINVAL)?;
                // flags: by eventfd, and the number can only be changed as a whole
                let (flags, count) = match index {
                    MSIX => (9, self.function.identity().vectors as u32),
                    _ => (0, 0),
                };
                Ok((words(&[16, flags, index, count]), None))
            }
            command::SET_IRQS => {
                self.set_irqs(payload, descriptors)?;
                none
            }
            command::REGION_READ => Ok((self.region_read(payload)?, None)),
            command::REGION_WRITE => Ok((self.region_write(payload)?, None)),
            command::RESET => {
                self.reset("QEMU resets the device");
                none
            }
            _ => Err(ENOTSUP),
        }
    }

    fn version(&self, payload: &[u8]) -> Result<Vec<u8>, u32> {
        let mut reader = Reader(payload);
        let (major, minor) = (reader.u16().ok_or(EINVAL)?, reader.u16().ok_or(EINVAL)?);
        if major != 0 {
            eprintln!("vfio-user: QEMU speaks vfio-user {major}.{minor}, and this is 0.0");
            return Err(EINVAL);
        }
        let capabilities = format!(
            "{{\"capabilities\":{{\"max_msg_fds\":{},\"max_data_xfer_size\":{MAX_DATA},\"pgsizes\":4096}}}}\0",
            socket::MAX_DESCRIPTORS
        );
        let mut reply = vec![0; 4];
        reply.extend(capabilities.bytes());
        Ok(reply)
    }

    fn region_info(&self, payload: &[u8]) -> Reply<'a> {
        let index = Reader(payload.get(8..).ok_or(EINVAL)?)
            .u32()
            .ok_or(EINVAL)?;
        let bar = config::bar(self.function, index);
        let (flags, size) = match index {
            CONFIG_REGION => (READ_WRITE, config::SIZE as u64),
            _ if bar.size == 0 => (0, 0),
            _ if bar.file.is_some() => (READ_WRITE | MAPPABLE, bar.size),
            _ => (READ_WRITE, bar.size),
        };
        let mut reply = words(&[32, flags, index, 0]);
        reply.extend(size.to_le_bytes());
        reply.extend([0; 8]);
        Ok((reply, bar.file))
    }

    fn set_irqs(&self, payload: &[u8], descriptors: Vec<OwnedFd>) -> Result<(), u32> {
        let set = SetIrqs::parse(payload).ok_or(EINVAL)?;
        if set.index != MSIX {
            return Ok(());
        }
        let vectors = self.function.identity().vectors;
        let end = set.start.checked_add(set.count);
        if end.is_none_or(|end| end > vectors) {
            return Err(EINVAL);
        }
        match (set.flags & SetIrqs::DATA_NONE != 0, set.count) {
            (true, 0) => self.guest.set_vectors(0..vectors, Vec::new()),
            // QEMU does the masking.
            _ if set.flags & SetIrqs::DATA_EVENTFD == 0 => {}
            (_, count) => self
                .guest
                .set_vectors(set.start..set.start + count, descriptors),
        }
        Ok(())
    }

    /// Returns whether an access to a BAR, which must be inside, is one for the function. QEMU has
    /// a BAR of MSI-X alone itself.
    fn is_for_function(&self, bar: u32, offset: u64, count: usize) -> Result<bool, u32> {
        let end = offset.checked_add(count as u64);
        match end.is_some_and(|end| end <= config::bar(self.function, bar).size) {
            true => Ok(!config::is_msix_alone(self.function, bar)),
            false => Err(EINVAL),
        }
    }

    fn region_read(&self, payload: &[u8]) -> Result<Vec<u8>, u32> {
        let Region {
            offset,
            region,
            count,
        } = Region::parse(payload).ok_or(EINVAL)?;
        let mut reply = payload.get(..Region::SIZE).ok_or(EINVAL)?.to_vec();
        let mut data = vec![0; count];
        match region {
            CONFIG_REGION => data.copy_from_slice(self.config.read(offset, count).ok_or(EINVAL)?),
            bar if self.is_for_function(bar, offset, count)? => match self.config.is_off() {
                true => data.fill(0xff),
                false => self.function.read(bar, offset, &mut data),
            },
            _ => {}
        }
        reply.extend(data);
        Ok(reply)
    }

    fn region_write(&mut self, payload: &[u8]) -> Result<Vec<u8>, u32> {
        let Region {
            offset,
            region,
            count,
        } = Region::parse(payload).ok_or(EINVAL)?;
        let head = payload.get(..Region::SIZE).ok_or(EINVAL)?;
        let data = payload
            .get(Region::SIZE..)
            .filter(|data| data.len() >= count)
            .ok_or(EINVAL)?;
        let data = &data[..count];
        match region {
            CONFIG_REGION => {
                let effect = self.config.write(offset, data);
                if effect.reset {
                    self.reset("reset of the function");
                } else {
                    self.set_master(effect.master);
                }
            }
            bar if self.is_for_function(bar, offset, count)? && !self.config.is_off() => {
                self.function.write(bar, offset, data);
            }
            _ => {}
        }
        Ok(head.to_vec())
    }

    fn reset(&mut self, why: &str) {
        if self.verbose {
            eprintln!("vfio-user: {why}");
        }
        self.config.reset();
        self.set_master(false);
        self.function.reset();
    }

    fn set_master(&self, on: bool) {
        self.function.set_master(on);
        self.guest.set_master(on);
    }
}

#[cfg(test)]
mod tests;
