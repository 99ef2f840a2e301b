// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands: each does what it says, with memory of each kind, or is refused before it begins.

use std::sync::Arc;

use pinmap::{Access, Buffer, Registration};
use pinmap_nvme::{Command, Error, Memory, Queue, QueueOptions};

use crate::drivers::{content, memory, pattern};
use crate::harness::{skip, Outcome};
use crate::setup::{controller, device, error, on_disk, queue, returned, NAMESPACES};

pub(crate) fn controller_is_identified() -> Outcome {
    let controller = controller()?;
    let identity = controller.identity();
    assert_eq!(identity.serial, "pinmap", "{identity:?}");
    assert!(identity.model.starts_with("QEMU"), "{identity:?}");
    assert!(identity.version >= (1, 4, 0), "{identity:?}");
    assert!(identity.max_transfer >= 64 << 10, "{identity:?}");
    assert_eq!(controller.namespaces()?, NAMESPACES);
    for (id, block) in [(1, 512), (2, 4096)] {
        let namespace = controller.namespace(id)?;
        let found = (namespace.id(), namespace.block_len(), namespace.blocks());
        assert_eq!(found, (id, block, (64 << 20) / block as u64));
    }
    Ok(())
}

pub(crate) fn metadata_is_refused() -> Outcome {
    let controller = controller()?;
    for (id, words) in [
        (3, "8 bytes of metadata for each block of namespace 3"),
        (6, "there is no namespace 6"),
        (0x1_0000, "there is no namespace 65536"),
    ] {
        let error = controller.namespace(id).expect_err("refused").to_string();
        assert!(error.contains(words), "{error}");
    }
    Ok(())
}

/// Writes what memory contains, and reads it into other memory.
fn there_and_back<M: Memory, N: Memory>(
    from: M,
    to: N,
    len: usize,
) -> Result<(M, N), Box<dyn std::error::Error>> {
    // The memory is of the device of the test, so the controller must be, too.
    let controller = pinmap_nvme::Controller::open(from.device())?;
    let namespace = controller.namespace(1)?;
    let mut writer: Queue<M> = controller.queue(QueueOptions::new())?;
    let mut reader: Queue<N> = controller.queue(QueueOptions::new())?;
    let from = returned(writer.run(namespace.write(40, from).part(0..len)))?;
    let to = returned(reader.run(namespace.read(40, to).part(0..len)))?;
    Ok((from, to))
}

pub(crate) fn memory_of_all_kinds() -> Outcome {
    let device = device()?;
    let bytes = |seed| pattern(seed, 8192);
    let target = || memory(&device, &[0; 8192]);

    let (_, to) = there_and_back(memory(&device, &bytes(1))?, target()?, 8192)?;
    assert!(to.release()?[..8192] == bytes(1)[..], "a buffer");

    let vector = bytes(2);
    let addr = vector.as_ptr();
    let (vector, to) = there_and_back(device.register(vector, Access::Read)?, target()?, 8192)?;
    assert!(content(&to, 8192)? == bytes(2), "a vector");
    let vector: Vec<u8> = vector.release()?;
    assert_eq!((vector.as_ptr(), vector), (addr, bytes(2)));

    let mut words = device.alloc::<u64>(1024)?;
    words.set(1023, 7)?;
    let (_, words) = there_and_back(words, device.alloc::<u64>(1024)?, 8192)?;
    assert_eq!((words.get(0)?, words.get(1023)?), (0, 7));

    let shared = Arc::new(memory(&device, &bytes(3))?);
    let (_, to) = there_and_back(Arc::clone(&shared), target()?, 8192)?;
    assert!(content(&to, 8192)? == bytes(3), "shared memory");
    assert!(content(&shared, 8192)? == bytes(3), "it is still there");

    let boxed: Box<dyn Memory> = Box::new(memory(&device, &bytes(4))?);
    let (_, to) = there_and_back(boxed, target()?, 8192)?;
    assert!(content(&to, 8192)? == bytes(4), "boxed memory");
    Ok(())
}

pub(crate) fn memory_anywhere_in_its_pages() -> Outcome {
    pieces(QueueOptions::new().prp(), 0)
}

pub(crate) fn memory_at_any_byte_by_sgl() -> Outcome {
    let controller = controller()?;
    let identity = controller.identity();
    assert_eq!((identity.sgl, identity.alignment), (true, 1));
    drop(controller);
    pieces(QueueOptions::new(), 3)
}

/// Writes and reads pieces of memory that are moved by some bytes.
fn pieces(options: QueueOptions, by: usize) -> Outcome {
    let controller = controller()?;
    let namespace = controller.namespace(1)?;
    let most = controller.identity().max_transfer;
    let mut queue = controller.queue(options)?;
    let device = controller.device();
    let source = pattern(5, most + 8192);
    let mut from = memory(device, &source)?;
    let mut to = memory(device, &vec![0xee; most + 8192])?;
    // A page, its end, two pages, lists of one entry and more, and all that a command has.
    for (offset, len) in [
        (0, 4096),
        (3584, 512),
        (4, 4096),
        (3588, 512),
        (0, 8192),
        (4092, 8192),
        (100, 12288),
        (0, most),
        (4092, most),
    ] {
        let part = offset + by..offset + by + len;
        to.write_at(0, &vec![0xee; most + 8192])?;
        from = returned(queue.run(namespace.write(64, from).part(part.clone())))?;
        let before = on_disk(1, 64 * 512, len)?;
        assert!(
            before == source[part.clone()],
            "{offset} {len}: what is written"
        );
        to = returned(queue.run(namespace.read(64, to).part(part.clone())))?;
        let all = content(&to, most + 8192)?;
        assert!(
            all[part.clone()] == source[part.clone()],
            "{offset} {len}: what is read"
        );
        let around = all[..part.start].iter().chain(&all[part.end..]);
        assert!(
            around.clone().all(|&byte| byte == 0xee),
            "{offset} {len}: around it"
        );
    }
    Ok(())
}

pub(crate) fn commands_without_memory() -> Outcome {
    let controller = controller()?;
    let (identity, namespace) = (controller.identity(), controller.namespace(2)?);
    let mut queue = queue(&controller)?;
    let bytes = pattern(6, 16384);
    let memory = memory(controller.device(), &bytes)?;
    let memory = returned(queue.run(namespace.write(10, memory).force_unit_access()))?;
    queue.run(namespace.flush())?;
    if identity.optional.verify {
        queue.run(namespace.verify(10..14))?;
    }
    let memory = returned(queue.run(namespace.compare(10, memory)))?;

    queue.run(namespace.write_zeroes(11..12))?;
    let disk = on_disk(2, 10 * 4096, 16384)?;
    assert!(disk[..4096] == bytes[..4096] && disk[8192..] == bytes[8192..]);
    assert!(disk[4096..8192].iter().all(|&byte| byte == 0));
    let failed = queue.run(namespace.compare(10, memory));
    let Error::Status(status) = error(failed, true)? else {
        return Err("the controller did not report it".into());
    };
    assert_eq!((status.kind(), status.code()), (2, 0x85), "{status}");

    queue.run(namespace.deallocate(&[10..11, 12..14]))?;
    queue.run(namespace.flush())?;
    assert_eq!(queue.in_flight(), 0);
    Ok(())
}

pub(crate) fn bad_input_is_refused() -> Outcome {
    let controller = controller()?;
    let (device, identity) = (controller.device(), controller.identity());
    let (small, large) = (controller.namespace(1)?, controller.namespace(2)?);
    let mut queue = controller.queue(QueueOptions::new().prp())?;
    let len = identity.max_transfer + 8192;
    let before = on_disk(1, (64 << 20) - 8192, 8192)?;
    let bytes = |part| Ok::<_, Box<dyn std::error::Error>>((memory(device, &vec![1; len])?, part));
    let end = small.blocks();
    for (namespace, block, (memory, part), words) in [
        (&small, end, bytes(0..512)?, "0..131072, not 131072..131073"),
        (&small, end - 1, bytes(0..1024)?, "not 131071..131073"),
        (&small, u64::MAX, bytes(0..512)?, "has the blocks 0..131072"),
        (&small, 0, bytes(0..len)?, "are more than one command has"),
        (
            &small,
            0,
            bytes(0..0)?,
            "0 bytes are not whole blocks of 512",
        ),
        (
            &small,
            0,
            bytes(0..700)?,
            "700 bytes are not whole blocks of 512",
        ),
        (
            &large,
            0,
            bytes(0..512)?,
            "512 bytes are not whole blocks of 4096",
        ),
        (&small, 0, bytes(len..len + 4096)?, "are not in"),
        (&small, 0, bytes(2..514)?, "not aligned to 4 bytes"),
    ] {
        let refused = queue.submit(namespace.write(block, memory).part(part));
        let error = error(refused, true)?;
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
    let many = vec![0..1; 257];
    let commands: [(Command<'_, Registration>, &str); 4] = [
        (
            small.write_zeroes(0..65537),
            "65537 blocks are more than one command has",
        ),
        (small.write_zeroes(7..7), "not 7..7"),
        (small.deallocate(&[]), "0 ranges are not 1 to 256"),
        (small.deallocate(&many), "257 ranges"),
    ];
    for (command, words) in commands {
        let error = error(queue.submit(command), false)?;
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
    let mut readers: Queue<Registration<Vec<u8>>> = controller.queue(QueueOptions::new())?;
    let read_only = device.register(vec![7; 512], Access::Read)?;
    let refused = error(readers.submit(small.read(0, read_only)), true)?;
    assert!(refused.to_string().contains("Access::Read"), "{refused}");

    for depth in [0, 2048, u16::MAX] {
        let options = QueueOptions::new().depth(depth);
        let error = controller
            .queue::<Registration>(options)
            .expect_err("refused");
        assert!(error.to_string().contains("1 to 2047"), "{error}");
    }
    assert_eq!(queue.in_flight(), 0);
    let error = queue.wait().expect_err("nothing to wait for");
    assert!(
        error.to_string().contains("no command is in flight"),
        "{error}"
    );
    assert!(
        on_disk(1, (64 << 20) - 8192, 8192)? == before,
        "something was written"
    );
    Ok(())
}

pub(crate) fn other_controllers_memory_is_refused() -> Outcome {
    let device = device()?;
    let controller = pinmap_nvme::Controller::open(&device)?;
    let again = match pinmap::Device::open(device.path()) {
        Ok(again) => again,
        Err(error) => return skip(format!("no second context: {error}")),
    };
    // The other context does not own the device, but it may register memory unmapped.
    let options = pinmap::RegisterOptions::new(Access::ReadWrite).unmapped();
    let foreign = match Buffer::new(4096)?.register(&again, options) {
        Ok(foreign) => foreign,
        Err(error) => return skip(format!("no memory of another context: {error}")),
    };
    let namespace = controller.namespace(1)?;
    let mut queue = queue(&controller)?;
    let error = error(queue.submit(namespace.write(0, foreign)), true)?;
    assert!(error.to_string().contains("the memory is of"), "{error}");
    Ok(())
}
