// SPDX-License-Identifier: MIT OR Apache-2.0
//! The crate `pinmap-testgpu` for unit tests, which cannot depend on it: it depends on this crate.
#![allow(dead_code, unreachable_pub, missing_docs)]

#[path = "../testgpu/src/kernel.rs"]
mod kernel;
#[path = "../testgpu/src/packet.rs"]
pub(crate) mod packet;

pub(crate) use kernel::*;

/// The manual of the device, with which the tests compare the numbers.
pub(crate) fn manual() -> String {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/devices/testgpu/MANUAL.md"
    );
    std::fs::read_to_string(path).expect("the manual")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::error::Result;
    use crate::memory::slice::tests::Fake;
    use crate::queue::format::{Kernel, Packet};
    use crate::queue::operand::Operands;
    use std::time::Duration;

    fn encode<'a, K: Kernel<'a>>(device: &Device, kernel: K) -> Result<Packet> {
        kernel.encode(&mut Operands::new(device, K::NAME, 1 << 30))
    }

    fn words<'a, K: Kernel<'a>>(device: &Device, kernel: K) -> [u64; 8] {
        encode(device, kernel).expect("a packet").words()
    }

    fn word(kernel: u64) -> u64 {
        4 | (kernel << 32)
    }

    #[test]
    fn every_kernel_has_the_arguments_of_the_manual() {
        let input = Fake::new(0x10_0000);
        let device = input.device.clone();
        let more = Fake::of(&device, 0x20_0000);
        let mut output = Fake::of(&device, 0x30_0000);
        let (x, y, z) = (0x10_0000, 0x20_0000, 0x30_0000);
        let copy = CopyElements {
            from: input.slice::<u16>(),
            to: &mut output.slice_mut(),
        };
        assert_eq!(words(&device, copy), [word(1), z, x, 0x2000, 0, 0, 0, 0]);
        let fill = Fill {
            to: &mut output.slice_mut(),
            value: 7,
        };
        assert_eq!(words(&device, fill), [word(2), z, 2048, 7, 0, 0, 0, 0]);
        let increment = IncrementF32 {
            data: &mut output.slice_mut(),
        };
        assert_eq!(words(&device, increment), [word(3), z, 2048, 0, 0, 0, 0, 0]);
        let saxpy = Saxpy {
            a: 1.0,
            x: input.slice(),
            y: &mut output.slice_mut(),
        };
        let expected = [word(4), x, z, 2048, 0x3f80_0000, 0, 0, 0];
        assert_eq!(words(&device, saxpy), expected);
        let sum = SumF32 {
            data: input.slice(),
            sum: &mut output.slice_mut().part(..1).expect("one"),
        };
        assert_eq!(words(&device, sum), [word(5), x, 2048, z, 0, 0, 0, 0]);
        let histogram = HistogramU8 {
            data: input.slice(),
            counts: &mut output.slice_mut().part(..256).expect("256"),
        };
        assert_eq!(
            words(&device, histogram),
            [word(6), x, 0x2000, z, 0, 0, 0, 0]
        );
        let crc = Crc32c {
            data: input.slice().part(..9).expect("9"),
            crc: &mut output.slice_mut().part(1..2).expect("one"),
        };
        assert_eq!(words(&device, crc), [word(7), x, 9, z + 4, 0, 0, 0, 0]);
        let matmul = MatmulF32 {
            a: input.slice().part(..6).expect("6"),
            b: more.slice().part(..12).expect("12"),
            c: &mut output.slice_mut().part(..8).expect("8"),
            m: 2,
            n: 4,
            k: 3,
        };
        assert_eq!(words(&device, matmul), [word(8), x, y, z, 2, 4, 3, 0]);
        let spin = Spin {
            time: Duration::from_micros(3),
        };
        assert_eq!(words(&device, spin), [word(9), 3000, 0, 0, 0, 0, 0, 0]);
        let add = AtomicAddU64 {
            data: &mut output.slice_mut(),
            value: 5,
            times: 6,
        };
        assert_eq!(words(&device, add), [word(10), z, 1024, 5, 6, 0, 0, 0]);
    }

    #[test]
    fn lengths_must_fit() {
        let input = Fake::new(0x10_0000);
        let device = input.device.clone();
        let mut output = Fake::of(&device, 0x30_0000);
        let refused = |result: Result<Packet>| result.expect_err("refused").to_string();
        let error = refused(encode(
            &device,
            Saxpy {
                a: 1.0,
                x: input.slice().part(..7).expect("7"),
                y: &mut output.slice_mut(),
            },
        ));
        assert_eq!(
            error,
            "cannot submit the kernel saxpy: `y` has 2048 elements, and must have 7 (EINVAL)"
        );
        let histogram = HistogramU8 {
            data: input.slice(),
            counts: &mut output.slice_mut(),
        };
        assert!(refused(encode(&device, histogram)).contains("must have 256"));
        let sum = SumF32 {
            data: input.slice(),
            sum: &mut output.slice_mut(),
        };
        assert!(refused(encode(&device, sum)).contains("`sum`"));
        let matmul = MatmulF32 {
            a: input.slice(),
            b: input.slice(),
            c: &mut output.slice_mut(),
            m: 1 << 33,
            n: 1 << 33,
            k: 1,
        };
        assert!(refused(encode(&device, matmul)).contains("at most 4096"));
        let spin = Spin {
            time: Duration::MAX,
        };
        assert!(refused(encode(&device, spin)).contains("for that long"));
        let add = AtomicAddU64 {
            data: &mut output.slice_mut(),
            value: 5,
            times: 1 << 54,
        };
        assert!(refused(encode(&device, add)).contains("cannot be counted"));
    }
}
