// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of owned managed memory.

use super::*;

#[test]
fn large_memory_is_whole_huge_pages() {
    let page = page_size();
    assert_eq!(mapped_len(1), Some(page));
    assert_eq!(mapped_len(HUGE - 1), Some(HUGE));
    assert_eq!(mapped_len(HUGE + 1), Some(2 * HUGE));
    assert_eq!(mapped_len(usize::MAX), None);
    assert_eq!(mapped_len(isize::MAX as usize), None);
}

#[test]
fn impossible_lengths_are_refused_before_anything_is_mapped() {
    let errno = |count| {
        let error = Accelerator::fake().alloc_managed::<u64>(count);
        error.expect_err("refused").errno()
    };
    assert_eq!(errno(0), Errno::EINVAL as i32);
    assert_eq!(errno(usize::MAX), Errno::EOVERFLOW as i32);
    assert_eq!(errno(1 << 60), Errno::EOVERFLOW as i32);
    assert_eq!(errno(1), Errno::ENOTTY as i32);
}

#[test]
fn managed_memory_can_be_shared_and_sent() {
    fn check<T: Send + Sync>() {}
    check::<Managed<f32>>();
}
