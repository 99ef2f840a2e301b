// SPDX-License-Identifier: MIT OR Apache-2.0
//! The card behind its server, without QEMU.

use vfio_user_device::testing::Client;
use vfio_user_device::{number, serve};
use xdma::{Options, Xdma};

const BUS: u64 = Client::BUS;
const PAGE: u64 = 4096;

fn word(client: &mut Client, at: u64) -> u32 {
    number(&client.read(1, at, 4).unwrap()) as u32
}

#[test]
fn card_is_a_function_of_the_bus() {
    let start = |bus| Xdma::start(bus, Options::default());
    let server = vfio_user_device::Options::default();
    let mut client = Client::new(move |stream| serve(stream, server, start));
    assert_eq!(client.read(7, 0, 4).unwrap(), [0xee, 0x10, 0x38, 0x90]);
    let sizes = [0, 1, 2, 3, 4].map(|region| client.region(region).0);
    assert_eq!(sizes, [PAGE, 64 << 10, 4 << 20, 0, 0]);
    // The MSI-X table and its pending bits, in BAR 1.
    assert_eq!(client.read(7, 0x84, 4).unwrap(), [0x01, 0x80, 0, 0]);
    assert_eq!(client.read(7, 0x88, 4).unwrap(), [0xe1, 0x8f, 0, 0]);
    assert_eq!(word(&mut client, 0x2000), 0x1fc2_0006);

    // A transfer from the guest's memory to the card's.
    client.set_master(true);
    client.map(BUS, Client::SIZE, 0, 3, true).unwrap();
    let list = [(64 << 32) | 0xad4b_0003, BUS + 2 * PAGE, 0x100, 0].map(u64::to_le_bytes);
    client.memory.write(PAGE, &list.concat()).unwrap();
    client.memory.write(2 * PAGE, &[0x5a; 64]).unwrap();
    for (at, value) in [(0x4080, (BUS + PAGE) as u32), (0x0004, 3)] {
        client.write(1, at, &value.to_le_bytes()).unwrap();
    }
    client.answer_until(|client| word(client, 0x0040) == 2);
    assert_eq!(client.read(2, 0x100, 64).unwrap(), [0x5a; 64]);
    client.reset();
    assert_eq!(word(&mut client, 0x4080), 0);
    assert_eq!(client.read(2, 0x100, 64).unwrap(), [0x5a; 64]);
}
