// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that a disk reads into memory of a device, and writes from there (`scripts/vm --disk`).

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::resource::{setrlimit, Resource};
use nix::sys::signal::{signal, SigHandler, Signal};
use pinmap::{Allocation, Detour};

use crate::gpu::gpu;
use crate::harness::{skip, Outcome};
use crate::setup::{pattern, peers, PAGE};

const LEN: usize = 64 * PAGE + 100;

/// A new file on that disk (`scripts/guest/disk` has mounted it); `None` if there is none.
fn file(name: &str) -> std::io::Result<Option<File>> {
    if std::env::var("PINMAP_DISK").unwrap_or_default().is_empty() {
        return Ok(None);
    }
    let path = Path::new("/run/disk").join(name);
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)?;
    fs::remove_file(path)?;
    Ok(Some(file))
}

fn bytes(memory: &Allocation<u8>) -> Result<Vec<u8>, pinmap::Error> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes)?;
    Ok(bytes)
}

/// There and back, with a last part that is no whole page; from host memory everywhere.
pub(crate) fn files_go_straight_into_vram() -> Outcome {
    use std::os::unix::fs::FileExt;

    let Some(file) = file("straight")? else {
        return skip("there is no such disk (scripts/vm --disk)");
    };
    let gpu = gpu()?;
    let content = pattern(5, LEN);
    file.write_all_at(&content, 0)?;
    file.sync_all()?;
    let mut host = gpu.device().alloc::<u8>(LEN)?;
    let read = host.read_into(0..LEN, &file, 0, Detour::Refuse)?;
    assert_eq!((read.bytes, read.direct), (LEN, 64 * PAGE));
    assert_eq!(bytes(&host)?, content);

    let mut vram = gpu.alloc_vram_p2pdma::<u8>(LEN)?;
    // Beyond the end of the file there is nothing.
    let read = vram.read_into(60 * PAGE..LEN, &file, 62 * PAGE as u64, Detour::Host)?;
    assert_eq!(read.bytes, LEN - 62 * PAGE);
    assert_eq!(
        bytes(&vram)?[60 * PAGE..][..read.bytes],
        content[62 * PAGE..]
    );

    for (elements, offset) in [(1..PAGE, 0), (0..PAGE, 100), (0..LEN + 1, 0)] {
        let refused = vram.read_into(elements, &file, offset, Detour::Host);
        assert_eq!(refused.expect_err("refused").errno(), Errno::EINVAL as i32);
    }
    if !peers() {
        let error = vram.read_into(0..LEN, &file, 0, Detour::Refuse);
        let error = error.expect_err("the bus does not let it").to_string();
        assert!(
            error.contains("only the host bridge (8086:29c0)"),
            "{error}"
        );
        let read = vram.read_into(0..LEN, &file, 0, Detour::Host)?;
        assert_eq!((read.bytes, read.direct), (LEN, 0));
        assert_eq!(bytes(&vram)?, content);
        return Ok(());
    }
    let read = vram.read_into(0..LEN, &file, 0, Detour::Refuse)?;
    assert_eq!((read.bytes, read.direct), (LEN, 64 * PAGE));
    assert_eq!(bytes(&vram)?, content);
    vram.write(0, &pattern(6, LEN))?;
    let written = vram.write_from(0..LEN, &file, 0, Detour::Refuse)?;
    assert_eq!((written.bytes, written.direct), (LEN, 64 * PAGE));
    let mut content = vec![0; LEN];
    file.read_exact_at(&mut content, 0)?;
    assert_eq!(content, pattern(6, LEN));
    // VRAM without such pages, which no disk takes.
    let mut plain = gpu.alloc_vram::<u8>(PAGE)?;
    let refused = plain.read_into(0..PAGE, &file, 0, Detour::Refuse);
    let refused = refused.expect_err("refused");
    assert_eq!(refused.errno(), Errno::EFAULT as i32);
    assert!(
        refused.to_string().contains("alloc_vram_p2pdma"),
        "{refused}"
    );
    plain.read_into(0..PAGE, &file, 0, Detour::Host)?;
    assert_eq!(bytes(&plain)?, content[..PAGE]);
    // A file that is open for reading is not written.
    let readable = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    for detour in [Detour::Refuse, Detour::Host] {
        let refused = vram.write_from(0..PAGE, &readable, 0, detour);
        assert_eq!(refused.expect_err("refused").errno(), Errno::EBADF as i32);
    }
    // What fails behind the first bytes is told.
    // SAFETY: A signal that is ignored calls nothing.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn)? };
    setrlimit(Resource::RLIMIT_FSIZE, 2 * PAGE as u64, 2 * PAGE as u64)?;
    let refused = vram.write_from(0..4 * PAGE, &file, 0, Detour::Refuse);
    assert_eq!(refused.expect_err("too long").errno(), Errno::EFBIG as i32);
    Ok(())
}
