// SPDX-License-Identifier: MIT OR Apache-2.0
//! More work on memory that is in flight already, in whatever it is kept.

use std::sync::Arc;

use pinmap::accelerator::{Registered, StreamOptions};

use crate::fake::Fake;

#[test]
fn each_piece_is_lent_for_more_work() {
    let fake = Fake::new();
    let gpu = fake.accelerator();
    let piece = |value: u32| {
        let numbers = vec![value; 1024];
        let range = numbers.as_ptr_range();
        let range = range.start.expose_provenance() as u64..range.end.addr() as u64;
        fake.machine(|machine, reach| machine.lend(range, true, reach));
        gpu.register(numbers).expect("registered")
    };
    let all = (
        Arc::new(piece(7)),
        vec![piece(0), piece(1)],
        [piece(2), piece(3)],
        Some(piece(4)),
        None::<Registered<Vec<u32>>>,
    );
    let stream = gpu.stream(StreamOptions::new()).expect("a stream");
    let pending = stream.submit(all, |_, _| Ok(())).expect("submitted");
    let pending = pending.then(&stream, |work, (source, several, array, one, none)| {
        assert!(none.is_none());
        for mut target in several.into_iter().chain(array).chain(one) {
            work.copy(source, &mut target)?;
        }
        Ok(())
    });
    let (source, several, array, one, _) = pending.expect("submitted").wait().expect("done");
    assert_eq!(source[..], [7; 1024]);
    for target in several.into_iter().chain(array).chain(one) {
        assert_eq!(target.release().expect("released"), [7; 1024]);
    }
    let wrong = fake.machine(|machine, _| machine.wrong());
    assert!(wrong.is_empty(), "{wrong:?}");
}
