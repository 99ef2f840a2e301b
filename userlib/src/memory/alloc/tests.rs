// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of allocating.

use super::*;

fn errno(count: usize) -> i32 {
    let error = Device::fake().alloc::<u64>(count).expect_err("refused");
    assert_eq!(error.operation(), Operation::Allocate);
    error.errno()
}

#[test]
fn impossible_lengths_are_refused_before_the_driver_is_asked() {
    assert_eq!(errno(0), Errno::EINVAL as i32);
    assert_eq!(errno(usize::MAX), Errno::EOVERFLOW as i32);
    assert_eq!(errno(1 << 61), Errno::EOVERFLOW as i32);
    assert_eq!(errno(1 << 60), Errno::EOVERFLOW as i32);
    assert_eq!(errno(1), Errno::ENOTTY as i32);
}

#[test]
fn lengths_are_whole_pages() {
    assert_eq!(length(1, 8, 4096), Ok(4096));
    assert_eq!(length(512, 8, 4096), Ok(4096));
    assert_eq!(length(513, 8, 4096), Ok(8192));
}

#[test]
fn what_was_tried_is_told() {
    let error = Device::fake().alloc::<f32>(1024).expect_err("no driver");
    let text = error.to_string();
    let expected = "cannot allocate pinned memory for 1024 elements of 4 bytes with /dev/null: ";
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn allocations_can_be_shared_and_sent() {
    fn check<T: Send + Sync>() {}
    check::<Allocation<f32>>();
}

#[test]
fn options_become_flags() {
    let plain = AllocOptions::new().to_abi(4096);
    assert_eq!((plain.flags, plain.length, plain.node), (0, 4096, 0));
    let all = AllocOptions::new().write_combined().node(3).to_abi(1);
    let flags = abi::PINMAP_ALLOC_WRITE_COMBINED | abi::PINMAP_ALLOC_NODE;
    assert_eq!((all.flags, all.node), (flags, 3));
    let portable = AllocOptions::new().portable().write_combined();
    let flags = abi::PINMAP_ALLOC_PORTABLE | abi::PINMAP_ALLOC_WRITE_COMBINED;
    assert_eq!(portable.to_abi(1).flags, flags);
}
