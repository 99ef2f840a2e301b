// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of windows.

use super::*;

/// A piece of no bytes would be a second entry in the midst of another one.
#[test]
#[should_panic(expected = "left != right")]
fn an_empty_piece_is_none() {
    take(&mut BTreeMap::from([(0, 100)]), 10, 0);
}

#[test]
fn pieces_are_taken_and_joined() {
    let mut free = BTreeMap::from([(0, 100)]);
    take(&mut free, 10, 20);
    take(&mut free, 50, 50);
    take(&mut free, 0, 5);
    assert_eq!(free, BTreeMap::from([(5, 5), (30, 20)]));
    put(&mut free, 0, 5);
    assert_eq!(free, BTreeMap::from([(0, 10), (30, 20)]));
    put(&mut free, 10, 20);
    assert_eq!(free, BTreeMap::from([(0, 50)]));
    put(&mut free, 60, 40);
    put(&mut free, 50, 10);
    assert_eq!(free, BTreeMap::from([(0, 100)]));
}

#[test]
fn memory_is_mapped_where_it_is_wanted() {
    let len = NonZeroUsize::new(2 * HUGE).expect("a length");
    let made = Reservation::new(None, len).expect("memory");
    assert_eq!(made.start.addr().get() % HUGE, 0);
    // SAFETY: It is mapped, and nobody else's.
    unsafe { made.start.add(2 * HUGE - 1).write(7) };
    let addr = made.start.addr();
    let taken = Reservation::new(Some(addr), len).map(drop);
    assert_eq!(taken.expect_err("taken"), Errno::EEXIST);
    drop(made);
    // Another thread may be quicker.
    if let Ok(again) = Reservation::new(Some(addr), len) {
        assert_eq!(again.start.addr(), addr);
        // SAFETY: As above.
        assert_eq!(unsafe { again.start.add(2 * HUGE - 1).read() }, 0);
    }
    assert!(Reservation::new(None, NonZeroUsize::MAX).is_err());
}

#[test]
fn nodes_that_do_not_exist_are_refused() {
    let len = NonZeroUsize::new(HUGE).expect("a length");
    let made = Reservation::new(None, len).expect("memory");
    let known = [Errno::EINVAL, Errno::ENOSYS, Errno::EPERM];
    for node in [1023, 1024, u32::MAX] {
        let error = made.bind(node).expect_err("no such node");
        assert!(known.contains(&error), "{error}");
    }
}
