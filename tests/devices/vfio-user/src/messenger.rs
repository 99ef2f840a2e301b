// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sending half of the connection: replies, and DMA requests whose answers the receiving half
//! hands back.

use crate::bus::Refused;
use crate::protocol::{command, Header, HEADER, MAX_DATA};
use crate::sys::socket;
use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Answer to a request: the payload, or a refusal.
type Answer = Result<Vec<u8>, Refused>;

#[derive(Debug, Default)]
struct Requests {
    next: u16,
    waiting: HashMap<u16, Sender<Answer>>,
    closed: bool,
}

/// The sending half.
#[derive(Debug)]
pub(crate) struct Messenger {
    stream: Mutex<UnixStream>,
    requests: Mutex<Requests>,
}

impl Messenger {
    /// Makes a messenger that sends over `stream`.
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self {
            stream: Mutex::new(stream),
            requests: Mutex::default(),
        }
    }

    /// Sends a message.
    pub(crate) fn send(
        &self,
        header: Header,
        payload: &[&[u8]],
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let mut bytes = header.to_bytes();
        debug_assert_eq!(bytes.len(), HEADER);
        for part in payload {
            bytes.extend_from_slice(part);
        }
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        socket::send(&stream, &bytes, descriptor)
    }

    /// Reads host memory. Blocks until the answer comes.
    pub(crate) fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Refused> {
        for (number, piece) in to.chunks_mut(MAX_DATA).enumerate() {
            let address = address
                .checked_add((number * MAX_DATA) as u64)
                .ok_or(Refused)?;
            let answer = self.ask(command::DMA_READ, address, piece.len(), &[])?;
            let data = answer.get(16..).filter(|data| data.len() == piece.len());
            piece.copy_from_slice(data.ok_or(Refused)?);
        }
        Ok(())
    }

    /// Writes host memory. Blocks until it is done.
    pub(crate) fn write(&self, address: u64, from: &[u8]) -> Result<(), Refused> {
        for (number, piece) in from.chunks(MAX_DATA).enumerate() {
            let address = address
                .checked_add((number * MAX_DATA) as u64)
                .ok_or(Refused)?;
            self.ask(command::DMA_WRITE, address, piece.len(), piece)?;
        }
        Ok(())
    }

    fn ask(&self, command: u16, address: u64, count: usize, data: &[u8]) -> Answer {
        let receiver = self.request(command, address, count, data).ok_or(Refused)?;
        receiver.recv().map_err(|_| Refused)?
    }

    fn request(
        &self,
        command: u16,
        address: u64,
        count: usize,
        data: &[u8],
    ) -> Option<Receiver<Answer>> {
        let (sender, receiver) = channel();
        let mut requests = self.requests();
        if requests.closed {
            return None;
        }
        // There are fewer threads than request numbers, so one is free.
        while requests.waiting.contains_key(&requests.next) {
            requests.next = requests.next.wrapping_add(1);
        }
        let id = requests.next;
        requests.next = id.wrapping_add(1);
        requests.waiting.insert(id, sender);
        drop(requests);
        let header = Header::request(id, command, 16 + data.len());
        let place = [address.to_le_bytes(), (count as u64).to_le_bytes()].concat();
        if self.send(header, &[&place, data], None).is_err() {
            self.requests().waiting.remove(&id);
            return None;
        }
        Some(receiver)
    }

    /// Hands an answer to the thread that made the request.
    pub(crate) fn answer(&self, header: &Header, payload: Vec<u8>) {
        let answer = match header.is_error() {
            true => Err(Refused),
            false => Ok(payload),
        };
        match self.requests().waiting.remove(&header.id) {
            // An answer for which no thread waits is not needed.
            Some(sender) => drop(sender.send(answer)),
            None => eprintln!("vfio-user: an answer to no question ({})", header.id),
        }
    }

    /// Ends all waits: no answers will come any more.
    pub(crate) fn close(&self) {
        let mut requests = self.requests();
        requests.closed = true;
        requests.waiting.clear();
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
