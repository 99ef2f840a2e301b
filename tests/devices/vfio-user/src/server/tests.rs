// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drives the server over its socket without QEMU, and checks its answers and that nothing makes it
//! fail.

use super::{serve, Options};
use crate::function::{answer, number, Bar, Function, Identity};
use crate::protocol::{command, words, Header};
use crate::sys::socket;
use crate::testing::Client;
use crate::{memory_file, Bus, Mapping};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

const BUS: u64 = Client::BUS;
const PAGE: u64 = 4096;

/// Register: the address of the next store.
const ADDRESS: u64 = 0;
/// Register: the number to store, which a write of it begins.
const VALUE: u64 = 8;
/// Registers: how many stores are done, and how many of them were refused.
const DONE: u64 = 16;
const REFUSED: u64 = 24;
/// Register: ranges that are mapped.
const LIVE: u64 = 32;

#[derive(Debug, Default)]
struct Registers {
    address: u64,
    done: u64,
    refused: u64,
}

/// A device that stores numbers. Its BAR 2 is memory.
struct Storer {
    bus: Arc<dyn Bus>,
    registers: Arc<Mutex<Registers>>,
    file: OwnedFd,
    memory: Mapping,
    orders: Option<Sender<(u64, u64)>>,
    engine: Option<JoinHandle<()>>,
}

impl Storer {
    fn start(bus: Arc<dyn Bus>) -> io::Result<Self> {
        let registers = Arc::<Mutex<Registers>>::default();
        let file = memory_file(c"storer", PAGE)?;
        let (orders, receiver) = channel();
        let (host, counts) = (Arc::clone(&bus), Arc::clone(&registers));
        let engine = std::thread::spawn(move || {
            for (address, value) in receiver {
                let result = host.store(address, value);
                let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
                counts.done += 1;
                counts.refused += u64::from(result.is_err());
                host.interrupt(0);
            }
        });
        Ok(Self {
            bus,
            registers,
            memory: Mapping::new(&file, PAGE)?,
            file,
            orders: Some(orders),
            engine: Some(engine),
        })
    }
}

impl Function for Storer {
    fn identity(&self) -> Identity {
        Identity {
            vendor: 0x1234,
            device: 0x5709,
            vectors: 16,
            ..Identity::default()
        }
    }

    fn bar(&self, number: u32) -> Bar<'_> {
        match number {
            0 => Bar::registers(PAGE),
            2 => Bar {
                size: PAGE,
                prefetchable: true,
                file: Some(self.file.as_fd()),
            },
            _ => Bar::default(),
        }
    }

    fn read(&self, bar: u32, offset: u64, to: &mut [u8]) {
        if bar == 2 {
            self.memory.read(offset, to).unwrap();
            return;
        }
        let registers = self.registers.lock().unwrap();
        let value = match offset {
            ADDRESS => registers.address,
            DONE => registers.done,
            REFUSED => registers.refused,
            LIVE => self.bus.counts().live,
            _ => u64::MAX,
        };
        answer(to, value);
    }

    fn write(&self, bar: u32, offset: u64, from: &[u8]) {
        if bar == 2 {
            self.memory.write(offset, from).unwrap();
            return;
        }
        let mut registers = self.registers.lock().unwrap();
        match (offset, &self.orders) {
            (ADDRESS, _) => registers.address = number(from),
            (VALUE, Some(orders)) => orders.send((registers.address, number(from))).unwrap(),
            _ => {}
        }
    }

    fn reset(&self) {
        self.registers.lock().unwrap().address = 0;
    }
}

impl Drop for Storer {
    fn drop(&mut self) {
        self.orders = None;
        self.engine.take().map(JoinHandle::join);
    }
}

impl Client {
    fn storer(message: bool) -> Self {
        let options = Options {
            message,
            verbose: false,
        };
        let mut client = Self::new(move |stream| serve(stream, options, Storer::start));
        client.set_master(true);
        client
    }

    fn r(&mut self, offset: u64) -> u64 {
        number(&self.read(0, offset, 8).unwrap())
    }

    fn submit(&mut self, address: u64, value: u64) {
        for (register, value) in [(ADDRESS, address), (VALUE, value)] {
            self.write(0, register, &value.to_le_bytes()).unwrap();
        }
    }

    /// Has a number stored, and returns whether the bus let it.
    fn store(&mut self, address: u64, value: u64) -> bool {
        let (done, refused) = (self.r(DONE), self.r(REFUSED));
        self.submit(address, value);
        self.answer_until(|client| client.r(DONE) > done);
        self.r(REFUSED) == refused
    }
}

#[test]
fn answers_about_the_device() {
    let mut client = Client::storer(false);
    let version = client
        .ask(command::VERSION, &[0, 0, 1, 0, b'{', b'}', 0])
        .unwrap();
    assert_eq!(version[..4], [0, 0, 0, 0]);
    assert!(String::from_utf8_lossy(&version[4..]).contains("\"max_data_xfer_size\":32768"));
    assert_eq!(client.ask(command::VERSION, &[1, 0, 0, 0]), None);
    let info = client.ask(command::GET_INFO, &words(&[16, 0, 0, 0]));
    assert_eq!(info.unwrap()[8], 9);
    for (region, size) in [(0, PAGE), (2, PAGE), (4, 16 << 10), (5, 0), (7, 4096)] {
        let (has, file) = client.region(region);
        assert_eq!((has, file.is_some()), (size, region == 2));
    }
    assert_eq!(client.read(7, 0, 4).unwrap(), [0x34, 0x12, 0x09, 0x57]);
    // BAR 2 alone has 64 bits.
    let bars = client.read(7, 0x10, 24).unwrap();
    let bits: Vec<u8> = bars.chunks(4).map(|bar| bar[0]).collect();
    assert_eq!(bits, [0, 0, 0xc, 0, 0, 0]);
}

#[test]
fn bar_with_a_file_is_the_same_memory_by_messages() {
    let mut client = Client::storer(false);
    let memory = Mapping::new(client.region(2).1.unwrap(), PAGE).unwrap();
    client.write(2, 8, &5_u64.to_le_bytes()).unwrap();
    assert_eq!(memory.load(8), Some(5));
    memory.store(16, 6).unwrap();
    assert_eq!(number(&client.read(2, 16, 8).unwrap()), 6);
    // Not inside.
    assert_eq!(client.read(2, PAGE - 4, 8), None);
    assert_eq!(client.write(2, PAGE - 4, &[0; 8]), None);
}

#[test]
fn direct_dma_and_what_falls_back_to_messages() {
    let mut client = Client::storer(false);
    // Mapped: the only message checks whether memory is shared.
    client.map(BUS, PAGE, 8 * PAGE, 3, true).unwrap();
    client.memory.store(8 * PAGE, 1).unwrap();
    client.allow = false;
    assert!(client.store(BUS + 8, 77));
    assert_eq!(client.memory.load(8 * PAGE + 8), Some(77));
    assert_eq!(client.r(LIVE), 1);
    // Read-only: QEMU is asked, and refuses.
    client.map(BUS, PAGE, 8 * PAGE, 1, true).unwrap();
    assert!(!client.store(BUS + 8, 78));
    // Unmapped, with a range that is no range of any mapping.
    client.unmap(0, u64::MAX);
    assert_eq!(client.r(LIVE), 0);
    let asked = client.asked;
    assert!(!client.store(BUS + 8, 78));
    assert!(client.asked > asked);
    assert_eq!(client.memory.load(8 * PAGE + 8), Some(77));
    // Without a file there are only messages.
    client.map(BUS, PAGE, 0, 3, false).unwrap();
    client.allow = true;
    assert!(client.store(BUS + 8, 78));
    assert_eq!(client.memory.load(8), Some(78));
}

#[test]
fn without_bus_master_nothing_reaches_a_mapping() {
    let mut client = Client::storer(false);
    client.map(BUS, PAGE, 8 * PAGE, 3, true).unwrap();
    client.allow = false;
    assert!(client.store(BUS, 2));
    client.set_master(false);
    // QEMU is asked, and refuses.
    assert!(!client.store(BUS, 3));
    client.set_master(true);
    assert!(client.store(BUS, 4));
    client.reset();
    assert!(!client.store(BUS, 5));
    assert_eq!(client.memory.load(8 * PAGE), Some(4));
}

#[test]
fn in_message_mode_there_are_only_messages() {
    let mut client = Client::storer(true);
    client.map(BUS, PAGE, 8 * PAGE, 3, true).unwrap();
    assert!(client.store(BUS + 8, 77));
    // The bytes are the client's, not those of the mapped file.
    let [first, mapped] = [8, 8 * PAGE + 8].map(|place| client.memory.load(place));
    assert_eq!((first, mapped, client.asked), (Some(77), Some(0), 1));
}

#[test]
fn while_dma_waits_for_its_answer_everything_else_is_answered() {
    let mut client = Client::storer(true);
    client.submit(BUS, 1);
    while !client.is_awaited() {
        client.r(DONE);
    }
    client.map(BUS, PAGE, 0, 3, true).unwrap();
    client.unmap(0, u64::MAX);
    client.set_master(false);
    client.reset();
    assert_eq!((client.r(ADDRESS), client.r(DONE)), (0, 0));
    client.answer_until(|client| client.r(DONE) == 1);
}

#[test]
fn the_end_of_the_connection_ends_dma_that_waits() {
    let mut client = Client::storer(true);
    client.submit(BUS, 1);
    while !client.is_awaited() {
        client.r(DONE);
    }
}

#[test]
fn interrupt_reaches_its_eventfd() {
    let mut client = Client::storer(true);
    let (mut ours, eventfd) = UnixStream::pair().unwrap();
    let vector = words(&[20, 36, 2, 0, 1]);
    client.ask_with(command::SET_IRQS, &vector, Some(eventfd.as_fd()));
    assert!(client.store(BUS, 1));
    let mut count = [0; 8];
    ours.read_exact(&mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
}

#[test]
fn nonsense_is_refused_and_does_no_harm() {
    let mut client = Client::storer(false);
    for number in 0..20 {
        for payload in [
            &[][..],
            &[0xff; 4],
            &[0xff; 15],
            &[0xff; 16],
            &[0xff; 64],
            &[0; 64],
        ] {
            // A DMA request or VERSION with any payload is a request like all others.
            let _ = client.ask(number, payload);
        }
    }
    for region in 0..10 {
        for offset in [0, 3, 0xfff, 0xffff_fff8, u64::MAX - 3, u64::MAX] {
            for count in [0, 1, 3, 4, 8, 9, 4096, 32768, 32769, u32::MAX] {
                let _ = client.access(command::REGION_READ, region, offset, count, &[]);
                let _ = client.access(command::REGION_WRITE, region, offset, count, &[0xff; 64]);
            }
        }
    }
    // Impossible mappings.
    assert_eq!(client.map(BUS, PAGE, Client::SIZE, 3, true), None);
    assert_eq!(client.map(BUS, u64::MAX, 8, 3, true), None);
    assert_eq!(client.map(u64::MAX, 2, 0, 3, true), None);
    assert_eq!(client.map(BUS, 0, 0, 3, true), None);
    client.map(u64::MAX - 4095, PAGE, 0, 3, true).unwrap();
    client.unmap(u64::MAX, u64::MAX);
    client.unmap(5, 0);
    let set_irqs = |flags, index, start, count| words(&[20, flags, index, start, count]);
    for (start, count) in [(0, 17), (16, 1), (u32::MAX, u32::MAX), (5, 3)] {
        let _ = client.ask(command::SET_IRQS, &set_irqs(36, 2, start, count));
    }
    client
        .ask(command::SET_IRQS, &set_irqs(33, 2, 0, 0))
        .unwrap();
    // An answer to no request.
    let header = Header::request(999, command::DMA_READ, 0).reply(0);
    socket::send(&client.stream, &header.to_bytes(), None).unwrap();
    assert_eq!(client.r(DONE), 0);
}

#[test]
fn a_message_of_impossible_size_ends_the_connection() {
    let mut client = Client::storer(false);
    let mut header = Header::request(1, command::VERSION, 0);
    header.size = 5;
    socket::send(&client.stream, &header.to_bytes(), None).unwrap();
    let mut byte = [0];
    assert!(socket::read(&client.stream, &mut byte).is_err());
    let result = client.server.take().unwrap().join().unwrap();
    assert!(result.is_err());
}
