// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drives the server over its socket without QEMU, and checks its answers and that nothing makes it
//! fail.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use testgpu::hardware::Settings;
use testgpu::link::Speed;
use testgpu::protocol::{command, words, Header, Reader, HEADER};
use testgpu::regs;
use testgpu::server::{serve, Mode};
use testgpu::sys::memory::{memory_file, Mapping};
use testgpu::sys::socket;

const GUEST_SIZE: u64 = 1 << 20;
/// Bus address of the guest's memory.
const BUS: u64 = 0x4000_0000;
const PAGE: u64 = 4096;

/// Client of the server, in QEMU's place.
struct Client {
    stream: UnixStream,
    server: Option<JoinHandle<std::io::Result<()>>>,
    guest: Mapping,
    guest_file: std::os::fd::OwnedFd,
    vram: Option<Mapping>,
    next: u16,
    /// DMA requests that came while waiting for a reply.
    requests: VecDeque<(Header, Vec<u8>)>,
    /// Whether DMA is allowed, and how often the device requested it.
    allow: bool,
    asked: usize,
}

impl Client {
    fn new(message: bool) -> Self {
        let (stream, theirs) = UnixStream::pair().unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let free = Speed {
            bandwidth: 0,
            latency: 0,
        };
        let settings = Settings {
            vram: 4 << 20,
            link: free,
            vram_link: free,
            ..Settings::default()
        };
        let mode = Mode {
            message,
            verbose: false,
        };
        let guest_file = memory_file(c"guest", GUEST_SIZE).unwrap();
        Self {
            stream,
            server: Some(std::thread::spawn(move || serve(theirs, settings, mode))),
            guest: Mapping::new(&guest_file, GUEST_SIZE).unwrap(),
            guest_file,
            vram: None,
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

    /// Sends a request and returns its reply; `None` for an error reply. DMA requests that come
    /// first are answered later, as QEMU does.
    fn ask_with(
        &mut self,
        number: u16,
        payload: &[u8],
        file: Option<BorrowedFd<'_>>,
    ) -> Option<Vec<u8>> {
        let id = self.send(number, payload, file);
        loop {
            let (header, payload) = self.receive();
            if !header.is_reply() {
                self.requests.push_back((header, payload));
                continue;
            }
            assert_eq!(header.id, id);
            return (!header.is_error()).then_some(payload);
        }
    }

    fn ask(&mut self, number: u16, payload: &[u8]) -> Option<Vec<u8>> {
        self.ask_with(number, payload, None)
    }

    fn receive(&mut self) -> (Header, Vec<u8>) {
        let mut header = [0; HEADER];
        let files = socket::receive(&self.stream, &mut header).expect("an answer");
        let header = Header::parse(&header);
        let mut payload = vec![0; header.payload().unwrap()];
        socket::read(&self.stream, &mut payload).unwrap();
        if let Some(file) = files.first() {
            self.vram = Some(Mapping::new(file, 4 << 20).unwrap());
        }
        (header, payload)
    }

    /// Answers DMA requests from the guest's memory until `done`.
    fn answer_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < Duration::from_secs(20));
            let Some((header, payload)) = self.requests.pop_front() else {
                continue;
            };
            self.asked += 1;
            let mut reader = Reader(&payload);
            let (address, count) = (reader.u64().unwrap(), reader.u64().unwrap());
            let offset = address.wrapping_sub(BUS);
            let mut data = payload[..16].to_vec();
            let answer = match (self.allow, header.command) {
                (true, command::DMA_READ) => {
                    data.resize(16 + count as usize, 0);
                    self.guest.read(offset, &mut data[16..])
                }
                (true, command::DMA_WRITE) => self.guest.write(offset, &payload[16..]),
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

    fn region(
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

    fn read(&mut self, region: u32, offset: u64, count: u32) -> Option<Vec<u8>> {
        let reply = self.region(command::REGION_READ, region, offset, count, &[])?;
        Some(reply[16..].to_vec())
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Option<Vec<u8>> {
        self.region(
            command::REGION_WRITE,
            region,
            offset,
            data.len() as u32,
            data,
        )
    }

    fn r(&mut self, offset: u64) -> u64 {
        u64::from_le_bytes(self.read(0, offset, 8).unwrap().try_into().unwrap())
    }

    fn w(&mut self, offset: u64, value: u64) {
        self.write(0, offset, &value.to_le_bytes()).unwrap();
    }

    fn map(
        &mut self,
        address: u64,
        size: u64,
        offset: u64,
        flags: u32,
        file: bool,
    ) -> Option<Vec<u8>> {
        let mut payload = words(&[32, flags]);
        for word in [offset, address, size] {
            payload.extend(word.to_le_bytes());
        }
        let file = file.then(|| self.guest_file.try_clone().unwrap());
        self.ask_with(
            command::DMA_MAP,
            &payload,
            file.as_ref().map(|file| file.as_fd()),
        )
    }

    fn unmap(&mut self, address: u64, size: u64) -> Option<Vec<u8>> {
        let mut payload = words(&[24, 0]);
        payload.extend(address.to_le_bytes());
        payload.extend(size.to_le_bytes());
        self.ask(command::DMA_UNMAP, &payload)
    }

    /// Makes a queue whose ring and tables are in VRAM. VA 0 is the page of the guest's memory.
    fn set_up(&mut self) {
        self.ask(command::GET_REGION_INFO, &words(&[32, 0, 2, 0, 0, 0, 0, 0]))
            .unwrap();
        self.write(7, 4, &[6, 0]).unwrap();
        let vram = self.vram.as_ref().unwrap();
        let store = |place, value| vram.store(place, value).unwrap();
        for level in 0..3_u64 {
            store(level * PAGE, ((level + 1) * PAGE) | regs::PTE_VALID);
        }
        let leaf = regs::PTE_VALID | regs::PTE_LEAF;
        let rw = regs::PTE_READ | regs::PTE_WRITE | regs::PTE_HOST | regs::PTE_SNOOP;
        store(3 * PAGE, BUS | leaf | rw);
        store(3 * PAGE + 8, 0x10_0000 | leaf | regs::PTE_EXECUTE);
        self.w(regs::ROOT, regs::ROOT_ENABLE);
        self.w(regs::DOORBELL_ENABLE, 1);
        self.w(regs::SLOT + regs::SLOT_CONFIG, 3 << 24);
        self.w(regs::SLOT + regs::SLOT_RING, PAGE);
        self.w(regs::SLOT + regs::SLOT_SIZE, 6);
        self.w(regs::SLOT + regs::SLOT_COMMAND, regs::COMMAND_BIND);
    }

    fn submit(&mut self, index: u64, packet: &[u64]) {
        let vram = self.vram.as_ref().unwrap();
        for (word, value) in (0..).zip(packet) {
            vram.store(0x10_0000 + index * 64 + 8 * word, *value)
                .unwrap();
        }
        self.write(1, 0, &(index + 1).to_le_bytes()).unwrap();
    }

    fn wait_state(&mut self, state: u64) {
        self.answer_until(|client| client.r(regs::SLOT + regs::SLOT_STATE) & 0xf == state);
    }

    fn is_alive(&mut self) {
        assert_eq!(self.r(regs::MAGIC), u64::from_le_bytes(*b"TESTGPU1"));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stream.shutdown(std::net::Shutdown::Both).unwrap();
        let result = self.server.take().unwrap().join();
        if !std::thread::panicking() {
            assert!(result.is_ok(), "the server panicked");
        }
    }
}

#[test]
fn what_it_is() {
    let mut client = Client::new(false);
    let version = client
        .ask(command::VERSION, &[0, 0, 1, 0, b'{', b'}', 0])
        .unwrap();
    assert_eq!(version[..4], [0, 0, 0, 0]);
    assert!(String::from_utf8_lossy(&version[4..]).contains("\"max_data_xfer_size\":32768"));
    assert_eq!(client.ask(command::VERSION, &[1, 0, 0, 0]), None);
    assert_eq!(
        client
            .ask(command::GET_INFO, &words(&[16, 0, 0, 0]))
            .unwrap()[8],
        9
    );
    for (region, size) in [
        (0, 64 << 10),
        (1, 4 << 20),
        (2, 4 << 20),
        (4, 16 << 10),
        (7, 4096),
        (5, 0),
    ] {
        let info = client.ask(
            command::GET_REGION_INFO,
            &words(&[32, 0, region, 0, 0, 0, 0, 0]),
        );
        let info = info.unwrap();
        assert_eq!(info[16..24], u64::to_le_bytes(size));
        assert_eq!(info[4] & 4 != 0, region == 2, "only VRAM can be mapped");
    }
    assert_eq!(client.read(7, 0, 4).unwrap(), [0x34, 0x12, 0x57, 0x7e]);
    assert_eq!(client.read(1, 0, 8).unwrap(), [0; 8]);
}

#[test]
fn direct_dma_and_what_falls_back_to_messages() {
    let mut client = Client::new(false);
    client.set_up();
    // Mapped: the only message checks whether memory is shared.
    client.map(BUS, PAGE, 8 * PAGE, 3, true).unwrap();
    client.guest.store(8 * PAGE, 1).unwrap();
    client.allow = false;
    client.submit(0, &[regs::FENCE_WRITE, 8, 77]);
    client.wait_state(regs::STATE_IDLE);
    assert_eq!(client.guest.load(8 * PAGE + 8), Some(77));
    assert_eq!(client.r(regs::DMA_MAPPED), 1);
    // Read-only: QEMU is asked, and refuses.
    client.map(BUS, PAGE, 8 * PAGE, 1, true).unwrap();
    client.submit(1, &[regs::FENCE_WRITE, 8, 78]);
    client.wait_state(regs::STATE_FAULTED);
    assert_eq!(client.r(regs::SLOT + regs::SLOT_ERROR), regs::BUS);
    // Unmapped, with a range that is no range of any mapping.
    client.unmap(0, u64::MAX).unwrap();
    assert_eq!(client.r(regs::DMA_MAPPED), 0);
    let asked = client.asked;
    client.w(regs::SLOT + regs::SLOT_COMMAND, regs::COMMAND_RETRY);
    client.wait_state(regs::STATE_FAULTED);
    assert!(client.asked > asked);
    assert_eq!(client.guest.load(8 * PAGE + 8), Some(77));
    // Without a file there are only messages.
    client.map(BUS, PAGE, 0, 3, false).unwrap();
    client.allow = true;
    client.w(regs::SLOT + regs::SLOT_COMMAND, regs::COMMAND_RETRY);
    client.wait_state(regs::STATE_IDLE);
    assert_eq!(client.guest.load(8), Some(78));
}

#[test]
fn in_message_mode_there_are_only_messages() {
    let mut client = Client::new(true);
    client.set_up();
    client.map(BUS, PAGE, 8 * PAGE, 3, true).unwrap();
    client.submit(0, &[regs::FENCE_WRITE, 8, 77]);
    client.wait_state(regs::STATE_IDLE);
    // The bytes are the client's, not those of the mapped file.
    assert_eq!(
        (client.guest.load(8), client.guest.load(8 * PAGE + 8)),
        (Some(77), Some(0))
    );
    assert_eq!(client.asked, 1);
    client.write(7, 4, &[2, 0]).unwrap();
    client.submit(1, &[regs::FENCE_WRITE, 8, 78]);
    client.wait_state(regs::STATE_FAULTED);
    assert_eq!(client.asked, 1, "no access without Bus Master");
}

#[test]
fn while_dma_waits_for_its_answer_everything_else_is_answered() {
    let mut client = Client::new(true);
    client.set_up();
    client.submit(0, &[regs::FENCE_WRITE, 8, 1]);
    while client.requests.is_empty() {
        client.is_alive();
    }
    client.map(BUS, PAGE, 0, 3, true).unwrap();
    client.unmap(0, u64::MAX).unwrap();
    client.w(regs::INV_LAST, u64::MAX);
    client.w(regs::INV_SUBMIT, 1);
    client.ask(command::RESET, &[]).unwrap();
    client.write(7, 4, &[0, 0]).unwrap();
    assert_eq!(client.r(regs::RESET), 1, "it waits for the access");
    client.answer_until(|client| client.r(regs::RESET) == 0);
    assert_eq!(client.r(regs::SLOT + regs::SLOT_STATE), 0);
}

/// Tests copies of the paging engine by messages: the bytes, the sizes, and that a reset waits for
/// the message that is on its way.
#[test]
fn paging_copies_by_messages() {
    let mut client = Client::new(true);
    client.set_up();
    let (bytes, vram) = (0x1_1000, 0x20_0000);
    for place in (0..bytes).step_by(8) {
        client.guest.store(place, place ^ 0x1234).unwrap();
    }
    let submit = |client: &mut Client, sequence, source, target| {
        client.w(regs::PAGING_SOURCE, source);
        client.w(regs::PAGING_TARGET, target);
        client.w(regs::PAGING_BYTES, bytes);
        client.w(regs::PAGING_SUBMIT, sequence);
    };
    let guest = BUS | regs::PAGING_HOST;
    submit(&mut client, 1, guest, vram);
    submit(&mut client, 2, vram, guest + 0x2_0000);
    submit(&mut client, 3, guest, guest + 0x4_0000);
    while client.requests.is_empty() {
        client.is_alive();
    }
    assert_eq!(client.r(regs::PAGING_DONE), 0);
    client.answer_until(|client| client.r(regs::PAGING_DONE) == 3);
    assert_eq!(client.r(regs::PAGING_ERROR), 0);
    for place in (0..bytes).step_by(8) {
        for base in [0x2_0000, 0x4_0000] {
            assert_eq!(client.guest.load(base + place), Some(place ^ 0x1234));
        }
    }
    // 32 KiB at most, so three messages for each operand in host memory.
    assert_eq!(client.asked, 12);
    client.allow = false;
    submit(&mut client, 4, guest, vram);
    client.answer_until(|client| client.r(regs::PAGING_DONE) == 4);
    assert_eq!(client.r(regs::PAGING_ERROR), regs::BUS);
    submit(&mut client, 5, vram, guest);
    while client.requests.is_empty() {
        client.is_alive();
    }
    client.w(regs::RESET, 1);
    assert_eq!(client.r(regs::RESET), 1, "it waits for the access");
    client.answer_until(|client| client.r(regs::RESET) == 0);
    assert_eq!(client.r(regs::PAGING_DONE), 0);
}

#[test]
fn the_end_of_the_connection_while_dma_waits() {
    let mut client = Client::new(true);
    client.set_up();
    client.submit(0, &[regs::FENCE_WRITE, 8, 1]);
    while client.requests.is_empty() {
        client.is_alive();
    }
}

#[test]
fn nonsense_is_refused_and_does_no_harm() {
    let mut client = Client::new(false);
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
                let _ = client.region(command::REGION_READ, region, offset, count, &[]);
                let _ = client.region(command::REGION_WRITE, region, offset, count, &[0xff; 64]);
            }
        }
    }
    // Impossible mappings.
    assert_eq!(client.map(BUS, PAGE, GUEST_SIZE, 3, true), None);
    assert_eq!(client.map(BUS, u64::MAX, 8, 3, true), None);
    assert_eq!(client.map(u64::MAX, 2, 0, 3, true), None);
    assert_eq!(client.map(BUS, 0, 0, 3, true), None);
    client.map(u64::MAX - 4095, PAGE, 0, 3, true).unwrap();
    client.unmap(u64::MAX, u64::MAX).unwrap();
    client.unmap(5, 0).unwrap();
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
    client.is_alive();
}

#[test]
fn a_message_of_impossible_size_ends_the_connection() {
    let mut client = Client::new(false);
    let mut header = Header::request(1, command::VERSION, 0);
    header.size = 5;
    socket::send(&client.stream, &header.to_bytes(), None).unwrap();
    let mut byte = [0];
    assert!(socket::read(&client.stream, &mut byte).is_err());
    let result = client.server.take().unwrap().join().unwrap();
    assert!(result.is_err());
    client.server = Some(std::thread::spawn(|| Ok(())));
}
