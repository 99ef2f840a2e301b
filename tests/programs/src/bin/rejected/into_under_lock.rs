// SPDX-License-Identifier: MIT OR Apache-2.0
//! Submits to a stream while an operand of a copy on it is made.
use pinmap::{stream, Accelerator, DeviceSlice, Result, Stream, StreamOptions};

struct Mine<'a>(DeviceSlice<'a, f32>, &'a Stream, &'a stream::Event);

impl<'a> From<Mine<'a>> for DeviceSlice<'a, f32> {
    fn from(mine: Mine<'a>) -> Self {
        mine.1.record(mine.2).expect("the stream takes it");
        mine.0
    }
}

pub(crate) fn main() -> Result<()> {
    let gpu = Accelerator::find()?;
    let (s, e) = (gpu.stream(StreamOptions::new())?, gpu.event()?);
    let (a, mut b) = (gpu.alloc_from(&[1.5f32; 8])?, gpu.alloc::<f32>(8)?);
    s.scope(|work| work.copy(Mine(a.slice(), &s, &e), &mut b))?;
    assert!(e.query()?);
    assert_eq!(b[..], [1.5; 8]);
    Ok(())
}
