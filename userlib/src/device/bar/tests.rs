// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of BARs.

use super::*;

fn info(len: u64, hole: Option<(u64, u64)>) -> BarInfo {
    BarInfo {
        len,
        mappable: true,
        prefetchable: false,
        is_64bit: false,
        hole,
        offset: 0,
    }
}

/// A BAR of ordinary memory.
pub(in crate::device::bar) fn bar(len: u64, hole: Option<(u64, u64)>) -> Bar {
    let info = info(len, hole);
    let map = |(start, len)| {
        let map = MmapOptions::new().len(len as usize).map_anon();
        (start, map.expect("memory").into())
    };
    let pieces = pieces(&info).into_iter().map(map).collect();
    let mapped = Mapped {
        number: 2,
        info,
        pieces,
        device: Device::fake(),
    };
    Bar::part(&Arc::new(mapped), 0, len)
}

#[test]
fn slices_are_moved_value_by_value() {
    let bar = bar(0x2000, None);
    bar.write_slice(0xff8, &[1u32, 2, 0xffff_fffe])
        .expect("a write");
    let mut back = [0i32; 3];
    bar.read_slice(0xff8, &mut back).expect("a read");
    assert_eq!(back, [1, 2, -2]);
    assert_eq!(bar.read::<u64>(0xff8).expect("a read"), 0x2_0000_0001);
    bar.write(0, -1.5f32).expect("a write");
    assert_eq!(bar.read::<f32>(0).expect("a read"), -1.5);
    assert!(bar.write_slice(0x1ff8, &[0u32; 3]).is_err());
    assert!(bar.write_slice(2, &[0u32; 3]).is_err());
    bar.read_slice::<u64>(0x2000, &mut [])
        .expect("nothing is always there");
}

#[test]
fn pointers_do_not_cross_the_hole() {
    let bar = bar(0x4000, Some((0x1000, 0x1000)));
    bar.write(0x2004, 7u32).expect("a write");
    let after = bar.as_mut_ptr(0x2004, 4).expect("mapped").cast::<u32>();
    // SAFETY: It is mapped and aligned.
    assert_eq!(unsafe { after.read() }, 7);
    bar.as_mut_ptr(0, 0x1000).expect("all before it");
    for (offset, len) in [(0xfff, 2), (0x1000, 1), (0x3fff, 2), (0x4001, 0)] {
        assert!(bar.as_mut_ptr(offset, len).is_err(), "{offset:#x}");
    }
}

#[test]
fn slices_do_not_cross_the_hole() {
    let bar = bar(0x4000, Some((0x1000, 0x1000)));
    bar.write_slice(0xff8, &[0u32; 2]).expect("before it");
    let error = bar.write_slice(0xff8, &[0u32; 3]).expect_err("refused");
    assert!(error.to_string().contains("MSI-X"), "{error}");
}

#[test]
fn windows_are_parts() {
    let bar = bar(0x2000, None);
    let window = bar.window(0x1004..0x1014).expect("a part");
    window.write(4, 7u32).expect("a write");
    assert_eq!(bar.read::<u32>(0x1008).expect("a read"), 7);
    assert!(window.read::<u32>(0x10).is_err());
    // Aligned is what is aligned in the BAR.
    assert!(window.read::<u64>(0).is_err());
    window.read::<u64>(4).expect("aligned");
    let inner = window.window(8..0x10).expect("a part");
    assert_eq!((inner.len(), inner.number()), (8, 2));
    for range in [0..0x11, 4..4, 0x10..0x11] {
        assert!(window.window(range).is_err());
    }
}

#[test]
fn all_but_the_hole_is_mapped() {
    let page = 0x1000;
    assert_eq!(pieces(&info(4 * page, None)), [(0, 4 * page)]);
    assert_eq!(
        pieces(&info(4 * page, Some((page, page)))),
        [(0, page), (2 * page, 2 * page)]
    );
    assert_eq!(pieces(&info(4 * page, Some((0, page)))), [(page, 3 * page)]);
    assert_eq!(
        pieces(&info(4 * page, Some((3 * page, page)))),
        [(0, 3 * page)]
    );
    assert_eq!(pieces(&info(page, Some((0, page)))), []);
}

#[test]
fn accesses_are_little_endian_and_as_wide_as_asked() {
    let bar = bar(0x1000, None);
    bar.write(8, 0x1122_3344_5566_7788u64).expect("a write");
    assert_eq!(bar.read::<u8>(8).expect("a read"), 0x88);
    assert_eq!(bar.read::<u16>(10).expect("a read"), 0x5566);
    bar.write(12, 0xabu8).expect("a write");
    assert_eq!(bar.read::<u32>(12).expect("a read"), 0x1122_33ab);
    bar.flush();
    assert_eq!((bar.number(), bar.len()), (2, 0x1000));
}

#[test]
fn the_hole_and_the_end_are_respected() {
    let bar = bar(0x4000, Some((0x1000, 0x1000)));
    for offset in [0xffc, 0x2000, 0x3ffc] {
        bar.write(offset, offset as u32).expect("a write");
        assert_eq!(bar.read::<u32>(offset).expect("a read"), offset as u32);
    }
    let error = |offset| bar.read::<u32>(offset).expect_err("refused").to_string();
    for offset in [0x1000, 0x1ffc] {
        assert!(error(offset).contains("MSI-X"), "{}", error(offset));
    }
    assert!(
        error(0x4000).contains("it ends at 0x4000"),
        "{}",
        error(0x4000)
    );
    assert!(
        error(usize::MAX - 3).contains("it ends at"),
        "{}",
        error(usize::MAX - 3)
    );
    assert!(
        error(2).contains("BAR 2: the offset is not a multiple of 4"),
        "{}",
        error(2)
    );
    assert_eq!(
        bar.read::<u64>(0xffc).expect_err("refused").errno(),
        Errno::EINVAL as i32
    );
}

#[test]
fn bars_can_be_shared_and_sent() {
    fn check<T: Send + Sync>() {}
    check::<Bar>();
    check::<crate::Interrupt>();
}
