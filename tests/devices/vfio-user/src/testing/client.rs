// SPDX-License-Identifier: MIT OR Apache-2.0
//! The other end of the connection: a guest with a mebibyte of memory.

use super::LIMIT;
use crate::protocol::{command, words, Header, Reader, HEADER};
use crate::sys::socket;
use crate::{memory_file, Mapping};
use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Instant;

const CONFIG_REGION: u32 = 7;

/// Client of the server, in QEMU's place. As QEMU does, it answers requests of the device for DMA
/// later than those of its own that the server has to answer: see [`Self::answer_until`].
///
/// # Panics
///
/// All methods panic if the server does not answer as the protocol wants it, and so does dropping
/// the client if the server has panicked.
#[derive(Debug)]
pub struct Client {
    pub(crate) stream: UnixStream,
    pub(crate) server: Option<JoinHandle<io::Result<()>>>,
    /// The guest's memory.
    pub memory: Mapping,
    file: OwnedFd,
    next: u16,
    /// DMA requests that came while waiting for a reply.
    requests: VecDeque<(Header, Vec<u8>)>,
    /// Whether DMA by messages is allowed.
    pub allow: bool,
    /// How many DMA requests were answered.
    pub asked: usize,
}

impl Client {
    /// Size of the guest's memory.
    pub const SIZE: u64 = 1 << 20;
    /// Bus address of the guest's memory for DMA by messages.
    pub const BUS: u64 = 0x4000_0000;

    /// Makes a client of the server that `serve` runs, in a thread of its own.
    pub fn new(serve: impl FnOnce(UnixStream) -> io::Result<()> + Send + 'static) -> Self {
        let (stream, theirs) = UnixStream::pair().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let file = memory_file(c"guest", Self::SIZE).unwrap();
        Self {
            stream,
            server: Some(std::thread::spawn(move || serve(theirs))),
            memory: Mapping::new(&file, Self::SIZE).unwrap(),
            file,
            next: 0,
            requests: VecDeque::new(),
            allow: true,
            asked: 0,
        }
    }

    fn send(&mut self, number: u16, payload: &[u8], file: Option<BorrowedFd<'_>>) -> u16 {
        self.next += 1;
        let mut bytes = Header::request(self.next, number, payload.len()).to_bytes();
        bytes.extend_from_slice(payload);
        socket::send(&self.stream, &bytes, file).unwrap();
        self.next
    }

    /// Sends a request and returns its reply, with the file that may come with it; `None` for an
    /// error reply.
    pub(crate) fn ask_with(
        &mut self,
        number: u16,
        payload: &[u8],
        file: Option<BorrowedFd<'_>>,
    ) -> Option<(Vec<u8>, Option<OwnedFd>)> {
        let id = self.send(number, payload, file);
        loop {
            let mut header = [0; HEADER];
            let files = socket::receive(&self.stream, &mut header).expect("an answer");
            let header = Header::parse(&header);
            let mut payload = vec![0; header.payload().unwrap()];
            socket::read(&self.stream, &mut payload).unwrap();
            if !header.is_reply() {
                self.requests.push_back((header, payload));
                continue;
            }
            assert_eq!(header.id, id);
            return (!header.is_error()).then_some((payload, files.into_iter().next()));
        }
    }

    pub(crate) fn ask(&mut self, number: u16, payload: &[u8]) -> Option<Vec<u8>> {
        self.ask_with(number, payload, None).map(|(reply, _)| reply)
    }

    /// Returns whether the device was seen to wait for DMA that is not answered yet. Only while the
    /// client waits for replies does it see this.
    pub fn is_awaited(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Answers DMA requests from the guest's memory until `done`, which has to ask the server
    /// something so that more come in.
    pub fn answer_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < LIMIT);
            let Some((header, payload)) = self.requests.pop_front() else {
                continue;
            };
            self.asked += 1;
            let mut reader = Reader(&payload);
            let (address, count) = (reader.u64().unwrap(), reader.u64().unwrap());
            let offset = address.wrapping_sub(Self::BUS);
            let mut data = payload[..16].to_vec();
            let answer = match (self.allow, header.command) {
                (true, command::DMA_READ) => {
                    data.resize(16 + count as usize, 0);
                    self.memory.read(offset, &mut data[16..])
                }
                (true, command::DMA_WRITE) => self.memory.write(offset, &payload[16..]),
                _ => None,
            };
            let mut bytes = match answer {
                Some(()) => header.reply(data.len()).to_bytes(),
                None => header.refusal(19).to_bytes(),
            };
            if answer.is_some() {
                bytes.extend(data);
            }
            socket::send(&self.stream, &bytes, None).unwrap();
        }
    }

    pub(crate) fn access(
        &mut self,
        number: u16,
        region: u32,
        offset: u64,
        count: u32,
        data: &[u8],
    ) -> Option<Vec<u8>> {
        let mut payload = offset.to_le_bytes().to_vec();
        payload.extend(words(&[region, count]));
        payload.extend_from_slice(data);
        self.ask(number, &payload)
    }

    /// Reads from a BAR, or from configuration space as region 7; `None` if the server refuses it.
    pub fn read(&mut self, region: u32, offset: u64, count: u32) -> Option<Vec<u8>> {
        let reply = self.access(command::REGION_READ, region, offset, count, &[])?;
        Some(reply[16..].to_vec())
    }

    /// Writes to a BAR, or to configuration space as region 7; `None` if the server refuses it.
    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Option<()> {
        let count = data.len() as u32;
        self.access(command::REGION_WRITE, region, offset, count, data)
            .map(drop)
    }

    /// Turns Bus Master on or off.
    pub fn set_master(&mut self, on: bool) {
        self.write(CONFIG_REGION, 4, &[2 | (u8::from(on) << 2), 0])
            .unwrap();
    }

    /// Returns the size of a BAR, or of configuration space as region 7, and the file of a BAR that
    /// has one.
    pub fn region(&mut self, region: u32) -> (u64, Option<OwnedFd>) {
        let request = words(&[32, 0, region, 0, 0, 0, 0, 0]);
        let (info, file) = self
            .ask_with(command::GET_REGION_INFO, &request, None)
            .unwrap();
        let flag = info[4] & 4 != 0;
        assert_eq!(flag, file.is_some(), "a BAR with a file can be mapped");
        (Reader(&info[16..]).u64().unwrap(), file)
    }

    /// Maps a part of the guest's memory, with read (1) and write (2) access in `flags`, with the
    /// file or without. `None` if the server refuses it.
    pub fn map(
        &mut self,
        address: u64,
        size: u64,
        offset: u64,
        flags: u32,
        with_file: bool,
    ) -> Option<()> {
        let mut payload = words(&[32, flags]);
        for word in [offset, address, size] {
            payload.extend(word.to_le_bytes());
        }
        let file = with_file.then(|| self.file.try_clone().unwrap());
        let file = file.as_ref().map(|file| file.as_fd());
        self.ask_with(command::DMA_MAP, &payload, file).map(drop)
    }

    /// Unmaps a range of bus addresses.
    pub fn unmap(&mut self, address: u64, size: u64) {
        let mut payload = words(&[24, 0]);
        payload.extend(address.to_le_bytes());
        payload.extend(size.to_le_bytes());
        self.ask(command::DMA_UNMAP, &payload).unwrap();
    }

    /// Resets the device.
    pub fn reset(&mut self) {
        self.ask(command::RESET, &[]).unwrap();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The server may have closed the connection.
        let _ = self.stream.shutdown(Shutdown::Both);
        let ended = self.server.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(
                ended.is_none_or(|ended| ended.is_ok()),
                "the server panicked"
            );
        }
    }
}
