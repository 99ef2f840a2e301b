// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that stop: at a fault, for good, or because they are stopped.

#![allow(clippy::precedence)]

use crate::image::{Image, CODE, CODE_VRAM};
use crate::launch::{report, word, Launch, DESCRIPTOR, FREE, SAVE, STACKS};
use crate::rig::{Queue, Rig, DATA, HOST, RW};
use std::time::Duration;
use testgpu::regs;

/// VA of pages that tests map and take away, and their place in host memory and in VRAM.
const VA: u64 = 0x7000_0000_0000;
const PLACE: u64 = 12 << 20;
const PAGE: u64 = regs::PAGE;

fn set_up() -> (Rig, Queue, Image) {
    let rig = Rig::new();
    let queue = rig.queue(1, regs::CLASS_COMPUTE);
    let image = Image::c("faults.c", &["-O2", "-fno-vectorize", "-fno-unroll-loops"]);
    image.load(&rig);
    (rig, queue, image)
}

fn map(rig: &Rig, page: u64, rights: u64) {
    rig.map(1, VA + PAGE * page, rights | HOST | (PLACE + PAGE * page));
}

/// Access and code of the newest fault.
fn newest(rig: &Rig) -> (u64, u64) {
    let place = (rig.r(regs::FAULT_WRITE) - 1) % regs::FAULT_COUNT as u64;
    let info = rig.r(regs::FAULT_ENTRY + regs::FAULT_STRIDE * place);
    ((info >> 8) & 3, (info >> 16) & 0xff)
}

/// Waits for a fault, and returns its VA.
fn fault(rig: &Rig, queue: &Queue, count: u64) -> u64 {
    rig.until("a fault", || rig.r(regs::FAULTS) == count);
    rig.wait_state(queue, regs::STATE_FAULTED);
    rig.slot(queue.slot, regs::SLOT_FAULT_VA)
}

#[test]
fn a_fault_is_repeated_at_its_instruction() {
    let (rig, mut queue, image) = set_up();
    let pages = 4;
    let each = 512;
    for index in 0..pages * each {
        rig.host
            .bytes
            .store(FREE - DATA + 8 * index, 3 * index)
            .unwrap();
    }
    // In place would count an addition twice; here each page of the target faults once.
    let launch = Launch::new(image.symbol("copy"), 2, 2).integers(&[each, FREE, VA]);
    let packet = launch.packet(&rig);
    rig.submit(&mut queue, &[&packet]);
    for page in 0..pages {
        assert_eq!(fault(&rig, &queue, page + 1), VA + PAGE * page);
        assert_eq!(newest(&rig), (regs::ACCESS_WRITE, regs::NOT_PRESENT));
        let found = report(&rig);
        assert_eq!((found[0], found[2]), (regs::NOT_PRESENT, VA + PAGE * page));
        assert_eq!((found[3], found[4]), (page % 2, page / 2));
        let copy = image.symbol("copy");
        assert!((copy..copy + 100).contains(&found[1]));
        map(&rig, page, RW);
        rig.command(queue.slot, regs::COMMAND_RETRY);
    }
    rig.wait_idle(&queue);
    for index in 0..pages * each {
        let value = rig.host.bytes.load(PLACE + 8 * index).unwrap();
        assert_eq!(value, 3 * index + 1);
    }
    assert_eq!(rig.r(regs::FAULTS), pages);
    let found = report(&rig);
    assert_eq!((found[0], found[6]), (0, 2));
    let (instructions, all) = (found[5], rig.r(regs::ENGINE_PACKETS));
    launch.run(&rig, &mut queue);
    assert_eq!((report(&rig)[5], all), (instructions, all));
}

/// Runs `meet`, whose threads fault one after another, and calls `stop` at each fault.
fn meet(threads: u64, mut stop: impl FnMut(&Rig, &mut Queue, u64)) {
    let (rig, mut queue, image) = set_up();
    let launch = Launch::new(image.symbol("meet"), 1, threads as u32).integers(&[VA, PAGE / 8]);
    let packet = launch.packet(&rig);
    for thread in 0..threads {
        rig.host.bytes.store(PLACE + PAGE * thread, 1000).unwrap();
    }
    rig.submit(&mut queue, &[&packet]);
    for thread in 0..threads {
        rig.wait_state(&queue, regs::STATE_FAULTED);
        let va = rig.slot(queue.slot, regs::SLOT_FAULT_VA);
        assert_eq!(va, VA + PAGE * thread);
        map(&rig, thread, RW);
        stop(&rig, &mut queue, thread);
    }
    rig.wait_idle(&queue);
    for thread in 0..threads {
        let value = rig.host.bytes.load(PLACE + PAGE * thread).unwrap();
        assert_eq!(value, 1001 + thread);
    }
}

#[test]
fn a_launch_goes_on_from_its_save_area() {
    meet(8, |rig, queue, thread| {
        assert_ne!(rig.slot(queue.slot, regs::SLOT_PROGRESS), 0);
        if thread % 2 == 0 {
            rig.command(queue.slot, regs::COMMAND_RETRY);
            return;
        }
        let (index, progress) = rig.unbind(queue);
        assert_eq!(index, 0);
        // Another slot, which had another program meanwhile.
        queue.slot = 2 + thread;
        if thread % 4 == 1 {
            // The area faults like any memory. It is in host memory with large leaves.
            rig.map_large(1, SAVE & !(regs::LARGE_PAGE - 1), 0);
            rig.invalidate(1, SAVE, SAVE);
        }
        rig.bind(queue, index, progress);
        if thread % 4 == 1 {
            rig.until("a fault of the area", || {
                rig.state(queue.slot) == regs::STATE_FAULTED
            });
            assert_eq!(rig.slot(queue.slot, regs::SLOT_ERROR), regs::PERMISSION);
            rig.map_large(1, DATA, RW | HOST);
            rig.invalidate(1, DATA, DATA + regs::LARGE_PAGE);
            // A second time out of the slot, with nothing on the device.
            let again = rig.unbind(queue);
            assert_eq!(again, (index, progress));
            rig.bind(queue, index, progress);
        }
    });
}

/// Stops a launch at a fault, takes it out of its slot after `before`, and binds it after `after`.
fn lose(change: impl FnOnce(&mut Launch), before: impl FnOnce(&Rig), after: impl FnOnce(&Rig)) {
    let (rig, mut queue, image) = set_up();
    let mut launch = Launch::new(image.symbol("meet"), 1, 4).integers(&[VA, PAGE / 8]);
    change(&mut launch);
    let packet = launch.packet(&rig);
    rig.submit(&mut queue, &[&packet]);
    fault(&rig, &queue, 1);
    before(&rig);
    let (index, progress) = rig.unbind(&queue);
    (0..4).for_each(|page| map(&rig, page, RW));
    after(&rig);
    rig.bind(&queue, index, progress);
    rig.wait_state(&queue, regs::STATE_ERROR);
    assert_eq!(rig.slot(queue.slot, regs::SLOT_ERROR), regs::STATE_LOST);
    // Another queue is not concerned.
    let mut other = rig.queue(2, regs::CLASS_COMPUTE);
    Launch::new(image.symbol("meet"), 1, 1)
        .integers(&[FREE, 0])
        .run(&rig, &mut other);
}

#[test]
fn a_state_that_cannot_be_saved_is_lost() {
    lose(|launch| launch.set(regs::PROGRAM_SAVE, 0), |_| (), |_| ());
    lose(
        |launch| launch.set(regs::PROGRAM_SAVE, 0x6666_0000_0000),
        |_| (),
        |_| (),
    );
    let refuse = |rig: &Rig| {
        rig.host.refused.lock().unwrap().insert(SAVE - DATA);
    };
    lose(
        |_| (),
        refuse,
        |rig| rig.host.refused.lock().unwrap().clear(),
    );
    // What is no state of this launch.
    let spoil = |place: u64, value| {
        move |rig: &Rig| {
            rig.host
                .bytes
                .store(SAVE - DATA + 8 * place, value)
                .unwrap()
        }
    };
    for (place, value) in [
        (0, 0),
        (1, 5),
        (2, 1),
        (3, 4),
        (4, 0),
        (4, 4097),
        (5, u64::MAX),
    ] {
        lose(|_| (), |_| (), spoil(place, value));
    }
}

#[test]
fn a_changed_save_area_harms_only_its_launch() {
    let (rig, mut queue, image) = set_up();
    let launch = Launch::new(image.symbol("meet"), 1, 4).integers(&[VA, PAGE / 8]);
    let packet = launch.packet(&rig);
    let mut random = crate::random::Random(99);
    for round in 0..40 {
        rig.unmap(1, VA);
        rig.invalidate(1, VA, VA);
        rig.submit(&mut queue, &[&packet]);
        rig.wait_state(&queue, regs::STATE_FAULTED);
        let (index, progress) = rig.unbind(&queue);
        (0..4).for_each(|page| map(&rig, page, RW));
        for place in 8..8 + 4 * 72 {
            let value = random.next() >> (random.next() & 63);
            rig.host
                .bytes
                .store(SAVE - DATA + 8 * place, value)
                .unwrap();
        }
        rig.w(regs::MAX_RUN_NS, 5_000_000);
        rig.bind(&queue, index, progress);
        rig.until("an end", || {
            [regs::STATE_IDLE, regs::STATE_FAULTED, regs::STATE_ERROR]
                .contains(&rig.state(queue.slot))
        });
        rig.unbind(&queue);
        queue = rig.queue(2 + round % 20, regs::CLASS_COMPUTE);
        rig.w(regs::DOORBELL_VALUE + 8 * queue.id, 0);
        rig.unbind(&queue);
        rig.bind(&queue, 0, 0);
    }
}

#[test]
fn traps_tell_where_and_why() {
    let (rig, _, image) = set_up();
    rig.map(1, VA, RW | regs::PTE_ATOMIC | HOST | PLACE);
    let cases = [
        ("trap_illegal", regs::ILLEGAL_INSTRUCTION, 0xffff_ffff),
        ("trap_csr", regs::ILLEGAL_INSTRUCTION, 0x3000_2573),
        ("trap_break", regs::BREAKPOINT, 0),
        ("trap_misaligned", regs::MISALIGNED, VA + 2),
        ("trap_call", regs::BAD_CALL, 77),
        ("trap_print", regs::BAD_CALL, 2),
        ("trap_abort", regs::ABORTED, 1234),
    ];
    for (id, (name, code, value)) in (2..).zip(cases) {
        let mut queue = rig.queue(id, regs::CLASS_COMPUTE);
        let launch = Launch::new(image.symbol(name), 3, 4).integers(&[VA]);
        let packet = launch.packet(&rig);
        let (found, pc) = rig.stop(&mut queue, &[&packet]);
        assert_eq!(
            (found, rig.state(queue.slot)),
            (code, regs::STATE_ERROR),
            "{name}"
        );
        let report = report(&rig);
        assert_eq!(report[..2], [code, pc], "{name}");
        assert_eq!(report[2] & !0xf80, value & !0xf80, "{name}");
        assert_eq!(report[3..5], [2, 0], "{name}");
        let function = image.symbol(name);
        assert!((function..function + 40).contains(&pc), "{name}");
        assert_eq!(newest(&rig).1, code);
    }
}

#[test]
fn a_stack_that_overflows_is_stopped() {
    let (rig, _, image) = set_up();
    let others = || {
        let all = rig.host_read(STACKS - DATA, 4 * 1024);
        [all[..2048].to_vec(), all[3072..].to_vec()].concat()
    };
    let checked = |name: &str, depth| {
        rig.host_write(STACKS - DATA, &[0x5a; 4 * 1024]);
        let mut launch = Launch::new(image.symbol(name), 1, 4).integers(&[depth, FREE]);
        launch.set(regs::PROGRAM_FLAGS, regs::PROGRAM_CHECK_STACK);
        launch
    };
    let mut queue = rig.queue(2, regs::CLASS_COMPUTE);
    checked("stack_deep", 3).run(&rig, &mut queue);
    assert_eq!((word(&rig, FREE), others()), (6, vec![0x5a; 3 * 1024]));
    // Unless it is checked, it writes into the one before.
    let mut unchecked = checked("stack_deep", 8);
    unchecked.set(regs::PROGRAM_FLAGS, 0);
    unchecked.run(&rig, &mut queue);
    assert_eq!(word(&rig, FREE), 36);
    assert_ne!(others(), [0x5a; 3 * 1024]);
    for (id, name) in (3..).zip(["stack_deep", "stack_large", "stack_aligned"]) {
        let mut queue = rig.queue(id, regs::CLASS_COMPUTE);
        let packet = checked(name, 8).packet(&rig);
        let (found, pc) = rig.stop(&mut queue, &[&packet]);
        let state = rig.state(queue.slot);
        assert_eq!(
            (found, state),
            (regs::STACK_OVERFLOW, regs::STATE_ERROR),
            "{name}"
        );
        let report = report(&rig);
        assert_eq!(
            (report[..2].to_vec(), report[3]),
            (vec![found, pc], 2),
            "{name}"
        );
        let begin = STACKS + 2 * 1024;
        assert!((begin - 0x2_0000..begin).contains(&report[2]), "{name}");
        assert_eq!(others(), [0x5a; 3 * 1024], "{name}");
        assert_eq!(newest(&rig).1, found);
    }
}

#[test]
fn each_access_needs_its_right() {
    let (rig, mut queue, image) = set_up();
    let (copy, add) = (image.symbol("copy"), image.symbol("add"));
    let mut faults = 0;
    let mut stop = |launch: Launch, va, rights: u64, access, code, after: (u64, u64)| {
        map(&rig, 0, rights);
        map(&rig, 1, rights);
        rig.invalidate(1, 0, u64::MAX);
        let packet = launch.packet(&rig);
        rig.submit(&mut queue, &[&packet]);
        faults += 1;
        assert_eq!(fault(&rig, &queue, faults), va);
        assert_eq!(newest(&rig), (access, code));
        rig.map(1, after.0, RW | regs::PTE_ATOMIC | after.1);
        rig.invalidate(1, 0, u64::MAX);
        rig.command(queue.slot, regs::COMMAND_RETRY);
        rig.wait_idle(&queue);
    };
    let (read, write, execute) = (regs::PTE_READ, regs::PTE_WRITE, regs::PTE_EXECUTE);
    let denied = regs::PERMISSION;
    let from = Launch::new(copy, 1, 1).integers(&[1, VA, FREE]);
    let first = (VA, HOST | PLACE);
    stop(from, VA, write | execute, regs::ACCESS_READ, denied, first);
    let to = Launch::new(copy, 1, 1).integers(&[1, FREE, VA + PAGE]);
    let second = (VA + PAGE, HOST | PLACE);
    stop(
        to,
        VA + PAGE,
        read | execute,
        regs::ACCESS_WRITE,
        denied,
        second,
    );
    for rights in [RW, read | regs::PTE_ATOMIC, write | regs::PTE_ATOMIC] {
        let atomic = Launch::new(add, 1, 1).integers(&[VA + 0xff0, 1]);
        stop(
            atomic,
            VA + 0xff0,
            rights,
            regs::ACCESS_ATOMIC,
            denied,
            first,
        );
    }
    // A page of the image is there a second time, where it may not be executed at first.
    let at = (image.symbol("trap_call") - CODE) & !(PAGE - 1);
    let entry = VA + image.symbol("trap_call") - CODE - at;
    let code = (VA, execute | (CODE_VRAM + at));
    let fetch = Launch::new(entry, 1, 1);
    stop(fetch, entry, RW, regs::ACCESS_FETCH, denied, code);
    let nowhere = Launch::new(1 << 50, 1, 1).packet(&rig);
    rig.submit(&mut queue, &[&nowhere]);
    assert_eq!(fault(&rig, &queue, faults + 1), 1 << 50);
    assert_eq!(newest(&rig), (regs::ACCESS_FETCH, regs::VA_RANGE));
}

#[test]
fn nothing_of_a_store_is_made_that_cannot_be_made_whole() {
    let (rig, mut queue, image) = set_up();
    map(&rig, 0, RW);
    let launch = Launch::new(image.symbol("misaligned_store"), 1, 1).integers(&[VA + PAGE - 3]);
    let packet = launch.packet(&rig);
    rig.submit(&mut queue, &[&packet]);
    assert_eq!(fault(&rig, &queue, 1), VA + PAGE);
    assert_eq!(rig.host.bytes.load(PLACE + PAGE - 8).unwrap(), 0);
    map(&rig, 1, RW);
    rig.command(queue.slot, regs::COMMAND_RETRY);
    rig.wait_idle(&queue);
    let bytes = rig.host_read(PLACE + PAGE - 3, 8);
    assert_eq!(bytes, 0x1122_3344_5566_7788_u64.to_le_bytes());
}

#[test]
fn after_an_invalidate_no_access_reaches_the_page() {
    let (rig, mut queue, image) = set_up();
    for (round, name) in (1..).zip(["forever", "add", "forever"]) {
        map(&rig, 0, RW | regs::PTE_ATOMIC);
        let launch = Launch::new(image.symbol(name), 1, 2).integers(&[VA, u64::MAX]);
        let packet = launch.packet(&rig);
        let before = rig.host.bytes.load(PLACE).unwrap();
        rig.submit(&mut queue, &[&packet]);
        rig.until("the program", || {
            rig.host.bytes.load(PLACE).unwrap() > before + 1000
        });
        rig.unmap(1, VA);
        rig.invalidate(1, VA, VA);
        let last = rig.host.bytes.load(PLACE).unwrap();
        assert_eq!(fault(&rig, &queue, round), VA);
        assert_eq!(rig.host.bytes.load(PLACE).unwrap(), last);
        rig.command(queue.slot, regs::COMMAND_CANCEL);
        rig.unbind(&queue);
        queue = rig.queue(1 + round, regs::CLASS_COMPUTE);
    }
    // Nor does a fetch.
    let launch = Launch::new(image.symbol("spin"), 1, 1);
    let packet = launch.packet(&rig);
    rig.submit(&mut queue, &[&packet]);
    rig.wait_state(&queue, regs::STATE_RUNNING);
    let page = image.symbol("spin") & !(PAGE - 1);
    rig.unmap(1, page);
    rig.invalidate(1, page, page);
    assert_eq!(fault(&rig, &queue, 4) & !(PAGE - 1), page);
    assert_eq!(newest(&rig), (regs::ACCESS_FETCH, regs::NOT_PRESENT));
}

#[test]
fn a_program_that_does_not_end_is_ended() {
    let (rig, mut queue, image) = set_up();
    rig.w(regs::MAX_RUN_NS, 50_000_000);
    let launch = Launch::new(image.symbol("spin"), 4, 64);
    let packet = launch.packet(&rig);
    assert_eq!(rig.stop(&mut queue, &[&packet]).0, regs::TIMEOUT);
    assert_eq!(report(&rig)[0], regs::TIMEOUT);
    // Nor one whose threads end at once, but there are many.
    let mut ends = Launch::new(!0xfff, 1, 1024);
    ends.shape([1 << 31, 2, 1], [1024, 1, 1]);
    ends.set(regs::PROGRAM_COUNT, 1 << 32);
    let mut queue = rig.queue(5, regs::CLASS_COMPUTE);
    let ends = ends.packet(&rig);
    assert_eq!(rig.stop(&mut queue, &[&ends]).0, regs::TIMEOUT);
    let packet = launch.packet(&rig);
    rig.w(regs::MAX_RUN_NS, 60_000_000_000);
    let mut queue = rig.queue(2, regs::CLASS_COMPUTE);
    rig.submit(&mut queue, &[&packet]);
    rig.wait_state(&queue, regs::STATE_RUNNING);
    rig.command(queue.slot, regs::COMMAND_RESET);
    rig.wait_state(&queue, regs::STATE_ERROR);
    assert_eq!(rig.slot(queue.slot, regs::SLOT_ERROR), regs::ENGINE_LOST);
    let mut queue = rig.queue(3, regs::CLASS_COMPUTE);
    rig.submit(&mut queue, &[&packet]);
    rig.wait_state(&queue, regs::STATE_RUNNING);
    rig.w(regs::RESET, 1);
    rig.until("the reset", || rig.r(regs::RESET) == 0);
    rig.set_up();
    image.load(&rig);
    let mut queue = rig.queue(4, regs::CLASS_COMPUTE);
    let meet = Launch::new(image.symbol("meet"), 1, 1).integers(&[FREE, 0]);
    meet.run(&rig, &mut queue);
}

/// Tests that all is the same where no page can be accessed directly, and that the bus may refuse.
#[test]
fn a_bus_without_direct_accesses() {
    let (rig, mut queue, image) = set_up();
    *rig.host.slow.lock().unwrap() = Duration::from_nanos(1);
    map(&rig, 0, RW | regs::PTE_ATOMIC);
    map(&rig, 1, RW | regs::PTE_ATOMIC);
    let add = Launch::new(image.symbol("add"), 2, 3).integers(&[VA, 10]);
    add.run(&rig, &mut queue);
    assert_eq!(rig.host.bytes.load(PLACE).unwrap(), 60);
    let copy = Launch::new(image.symbol("copy"), 2, 2).integers(&[100, FREE, VA + 800]);
    rig.host.refused.lock().unwrap().insert(PLACE + PAGE - PAGE);
    let packet = copy.packet(&rig);
    rig.submit(&mut queue, &[&packet]);
    assert_eq!(fault(&rig, &queue, 1), VA + 800);
    assert_eq!(newest(&rig), (regs::ACCESS_WRITE, regs::BUS));
    assert_eq!(rig.host.bytes.load(PLACE + 800).unwrap(), 0);
    rig.host.refused.lock().unwrap().clear();
    rig.command(queue.slot, regs::COMMAND_RETRY);
    rig.wait_idle(&queue);
    for index in 0..400 {
        assert_eq!(rig.host.bytes.load(PLACE + 800 + 8 * index).unwrap(), 1);
    }
    let store = Launch::new(image.symbol("misaligned_store"), 1, 1).integers(&[VA + PAGE - 3]);
    store.run(&rig, &mut queue);
    assert_eq!(
        rig.host_read(PLACE + PAGE - 3, 8),
        0x1122_3344_5566_7788_u64.to_le_bytes()
    );
}

#[test]
fn descriptors_that_are_not_valid() {
    let (rig, _, image) = set_up();
    let entry = image.symbol("meet");
    let cases: [(u64, u64, u64); 8] = [
        (regs::PROGRAM_FLAGS, 4, regs::BAD_FIELD),
        (regs::PROGRAM_ENTRY, entry + 1, regs::BAD_ALIGNMENT),
        (regs::PROGRAM_GRID, 0, regs::BAD_LENGTH),
        (regs::PROGRAM_COUNT, 2, regs::BAD_LENGTH),
        (regs::PROGRAM_STACKS, STACKS + 8, regs::BAD_ALIGNMENT),
        (regs::PROGRAM_SAVE_BYTES, 639, regs::BAD_LENGTH),
        (regs::PROGRAM_SAVE_BYTES + 8, 1, regs::BAD_FIELD),
        (regs::PROGRAM_RING, 8, regs::BAD_ALIGNMENT),
    ];
    for (id, (field, value, code)) in (2..).zip(cases) {
        let mut queue = rig.queue(id, regs::CLASS_COMPUTE);
        let mut launch = Launch::new(entry, 1, 1).integers(&[FREE, 0]);
        launch.set(field, value);
        let packet = launch.packet(&rig);
        assert_eq!(rig.stop(&mut queue, &[&packet]).0, code, "{field:#x}");
    }
    let mut queue = rig.queue(20, regs::CLASS_COMPUTE);
    let packet = crate::rig::launch(regs::KERNEL_PROGRAM, &[DESCRIPTOR + 64]);
    assert_eq!(rig.stop(&mut queue, &[&packet]).0, regs::BAD_ALIGNMENT);
    // No blocks, no effect.
    let mut queue = rig.queue(21, regs::CLASS_COMPUTE);
    let mut nothing = Launch::new(entry, 1, 1);
    nothing.set(regs::PROGRAM_COUNT, 0);
    nothing.run(&rig, &mut queue);
    assert_eq!((report(&rig)[5], word(&rig, FREE)), (0, 0));
}
