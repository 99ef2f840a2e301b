// SPDX-License-Identifier: GPL-2.0
//! fdinfo of an open file (`/proc/PID/fdinfo`), the attributes of a device in sysfs, and the lists
//! of its buffers, of managed ranges and of managed memory in debugfs.

use crate::{
    buffer::{Buffer, State},
    context::Context,
    device::Device,
    module_parameters,
    stats::Stat,
    sys::{
        fs::{
            attributes::{Attribute, Get},
            debugfs::{File, Show},
        },
        task,
    },
    uapi::{self, pinmap_total},
};
#[cfg(pinmap_mirror)]
use crate::{managed::range::Range as ManagedRange, uapi::pinmap_run, uapi::pinmap_statistics};
use kernel::{prelude::*, seq_file::SeqFile, seq_print};

const KIB: u64 = 1024;

/// Prints the lines of fdinfo in the style of DRM: `key: value [unit]`, with keys that begin with
/// the driver's name.
pub(crate) fn fdinfo(context: &Context, out: &SeqFile) {
    let stats = context.stats();
    let totals = stats.totals();
    let size = |key: &str, bytes: u64| seq_print!(out, "pinmap-{}:\t{} KiB\n", key, bytes / KIB);
    let number = |key: &str, number: u64| seq_print!(out, "pinmap-{}:\t{}\n", key, number);

    seq_print!(out, "pinmap-pdev:\t{}\n", stats.function());
    number("client-id", stats.context());
    number("objects", context.registrations().into());
    number(
        "objects-limit",
        module_parameters::max_registrations.value().into(),
    );
    let each: [(&str, Stat); 4] = [
        ("pinned", Stat::Pinned),
        ("allocated", Stat::Allocated),
        ("vram", Stat::Vram),
        ("shared", Stat::Shared),
    ];
    for (key, stat) in each {
        size(key, totals.of(stat).bytes);
    }
    let pinmap_total {
        number: mappings,
        bytes,
    } = totals.of(Stat::Mapped);
    size("mapped", bytes);
    number("mappings", mappings);
    number("stale", totals.of(Stat::Stale).number);
    size("managed", totals.of(Stat::Managed).bytes);
    number("faults-served", totals.faults_served());
    number("faults-failed", totals.faults_failed());
    size("locked", context.account().used());
    if let Some(limit) = context.opener().memlock() {
        size("limit", limit);
    }
}

/// A number that can only be read.
const fn number(name: &'static CStr, get: fn(&Device) -> Result<u64>) -> Attribute<Device> {
    Attribute {
        name,
        get: Get::Number(get),
        set: None,
    }
}

/// A number that can be set.
#[cfg(not(pinmap_flat))]
const fn setting(
    name: &'static CStr,
    get: fn(&Device) -> Result<u64>,
    set: fn(&Device, u32) -> Result,
) -> Attribute<Device> {
    Attribute {
        name,
        get: Get::Number(get),
        set: Some(set),
    }
}

pub(crate) const ATTRIBUTES: &[Attribute<Device>] = &[
    Attribute {
        name: c"kind",
        get: Get::Word(|device| {
            Ok(match device.backend().kind() {
                uapi::PINMAP_KIND_PAGED => c"paged",
                _ => c"flat",
            })
        }),
        set: None,
    },
    // Open files.
    number(c"contexts", |it| {
        Ok(it.own_totals().of(Stat::Contexts).number)
    }),
    // Bytes of memory that is pinned, and that devices can reach.
    number(c"pinned", |it| Ok(it.totals().of(Stat::Pinned).bytes)),
    number(c"mapped", |it| Ok(it.totals().of(Stat::Mapped).bytes)),
];

/// The attributes that only a paged device has: on others they fail with `EOPNOTSUPP`.
#[cfg(not(pinmap_flat))]
pub(crate) const ATTRIBUTES_OF_PAGED: &[Attribute<Device>] = &[
    // Bytes.
    number(c"managed", |it| {
        it.gpu().map(|_| it.totals().of(Stat::Managed).bytes)
    }),
    number(c"queues", |it| Ok(it.gpu()?.queues().into())),
    // Bytes: all, and free.
    number(c"vram", |it| Ok(it.gpu()?.limits().vram)),
    number(c"vram_free", |it| Ok(it.gpu()?.vram_free())),
    number(c"faults_served", |it| {
        it.gpu().map(|_| it.own_totals().faults_served())
    }),
    number(c"faults_failed", |it| {
        it.gpu().map(|_| it.own_totals().faults_failed())
    }),
    // When a fault stopped a queue last, in seconds since 1970; 0: never.
    number(c"fault_failed_at", |it| {
        it.gpu().map(|_| it.own_totals().fault_failed_at())
    }),
    // How many faults a context may have before it is held off, and for how long.
    setting(
        c"fault_limit",
        |it| Ok(it.gpu()?.fault_limit().into()),
        |it, value| it.gpu().map(|gpu| gpu.set_fault_limit(value)),
    ),
    setting(
        c"fault_hold_off_ms",
        |it| Ok(it.gpu()?.hold_off_ms().into()),
        |it, value| it.gpu().map(|gpu| gpu.set_hold_off_ms(value)),
    ),
    // How often a context was held off.
    number(c"held_off", |it| Ok(it.gpu()?.times_held_off())),
];
#[cfg(pinmap_flat)]
pub(crate) const ATTRIBUTES_OF_PAGED: &[Attribute<Device>] = &[];

impl Show for Device {
    const FILES: &'static [File<Self>] = &[
        File {
            name: c"buffers",
            show: buffers,
        },
        File {
            name: c"managed",
            show: managed,
        },
        File {
            name: c"ranges",
            show: ranges,
        },
    ];
}

/// Prints a line for each buffer that has a handle. Buffers that come or go meanwhile may be
/// missing.
fn buffers(device: &Device, out: &SeqFile) {
    seq_print!(
        out,
        "# device context pid handle kind access state address length runs huge mapped-at\n"
    );
    for context in device.all_contexts() {
        let mut handle_from = 0;
        while let Some((handle, buffer)) = context.find_from(handle_from) {
            handle_from = handle.saturating_add(1);
            task::cond_resched();
            if task::fatal_signal_pending() {
                return;
            }
            line(out, &context, handle, &buffer);
        }
    }
}

/// Prints a line for each run of managed memory that is somewhere: where it is, who can reach
/// it, and why it is there. Memory may move meanwhile.
#[cfg_attr(not(pinmap_mirror), expect(unused_variables))]
fn managed(device: &Device, out: &SeqFile) {
    seq_print!(
        out,
        "# device context pid start length place access advice rule\n"
    );
    #[cfg(pinmap_mirror)]
    for context in device.all_contexts() {
        let Some(managing) = context.managing_now() else {
            continue;
        };
        let Some(mm) = managing.mm().mmget_not_zero() else {
            continue;
        };
        // A fatal signal ends it.
        let _ = managing.each_run(&mm, |run| {
            run_line(out, &context, run);
            Ok(())
        });
    }
}

/// Prints a line for each managed range: what happened to it, and the last fault that was not
/// served.
#[cfg_attr(not(pinmap_mirror), expect(unused_variables))]
fn ranges(device: &Device, out: &SeqFile) {
    seq_print!(
        out,
        "# device context pid handle kind start length faults in home evicted refused \
         last-addr last-access last-reason\n"
    );
    #[cfg(pinmap_mirror)]
    for context in device.all_contexts() {
        let mut handle = 0;
        while let Some((found, range)) = context.range_from(handle) {
            handle = found.saturating_add(1);
            task::cond_resched();
            if task::fatal_signal_pending() {
                return;
            }
            range_line(out, &context, found, &range);
        }
    }
}

#[cfg(pinmap_mirror)]
fn range_line(out: &SeqFile, context: &Context, handle: u64, range: &ManagedRange) {
    let mut told = pinmap_statistics::default();
    range.describe(&mut told);
    let kind = if range.is_window() { "window" } else { "range" };
    seq_print!(
        out,
        "{} {} {} {} {} {:#x} {} ",
        context.stats().function(),
        context.id(),
        context.opener().number(),
        handle,
        kind,
        range.span().start(),
        range.span().length()
    );
    let home = told
        .out_home_touched
        .saturating_add(told.out_home_prefetched);
    seq_print!(
        out,
        "{} {} {} {} {} ",
        told.out_device_faults,
        told.out_in_touched.saturating_add(told.out_in_prefetched),
        home,
        told.out_home_evicted,
        told.out_refused
    );
    if told.out_refused == 0 {
        seq_print!(out, "- - -\n");
        return;
    }
    let access = match told.out_last_access {
        uapi::PINMAP_ACCESS_WRITE => "write",
        uapi::PINMAP_ACCESS_ATOMIC => "atomic",
        _ => "read",
    };
    seq_print!(
        out,
        "{:#x} {} {}\n",
        told.out_last_addr,
        access,
        reason(told.out_last_reason)
    );
}

#[cfg(pinmap_mirror)]
fn run_line(out: &SeqFile, context: &Context, run: &pinmap_run) {
    let place = match run.place {
        uapi::PINMAP_PLACE_HOST => "host",
        uapi::PINMAP_PLACE_DEVICE => "device",
        _ => return,
    };
    let access = match run.access {
        0 => "-",
        uapi::PINMAP_RUN_READ => "r",
        _ => "rw",
    };
    seq_print!(
        out,
        "{} {} {} {:#x} {} {} {} ",
        context.stats().function(),
        context.id(),
        context.opener().number(),
        run.addr,
        run.length,
        place,
        access
    );
    let names = [
        (uapi::PINMAP_ADVICE_PREFER_HOST, "prefer-host"),
        (uapi::PINMAP_ADVICE_PREFER_DEVICE, "prefer-device"),
        (uapi::PINMAP_ADVICE_ACCESSED_BY, "accessed-by"),
        (uapi::PINMAP_ADVICE_READ_MOSTLY, "read-mostly"),
    ];
    let mut separator = "";
    for (_, name) in names.iter().filter(|(bit, _)| run.advice & bit != 0) {
        seq_print!(out, "{}{}", separator, name);
        separator = ",";
    }
    let none = if separator.is_empty() { "-" } else { "" };
    seq_print!(out, "{} {}\n", none, rule(run.rule));
}

/// The name of a `PINMAP_FAULT_` value.
#[cfg(pinmap_mirror)]
fn reason(reason: u32) -> &'static str {
    match reason {
        uapi::PINMAP_FAULT_UNMAPPED => "unmapped",
        uapi::PINMAP_FAULT_HOLE => "hole",
        uapi::PINMAP_FAULT_PERMISSION => "permission",
        uapi::PINMAP_FAULT_DEVICE => "device",
        uapi::PINMAP_FAULT_SECRET => "secret",
        uapi::PINMAP_FAULT_GUARD => "guard",
        uapi::PINMAP_FAULT_FILE => "file",
        uapi::PINMAP_FAULT_POISON => "poison",
        uapi::PINMAP_FAULT_MEMORY => "memory",
        uapi::PINMAP_FAULT_USERFAULTFD => "userfaultfd",
        uapi::PINMAP_FAULT_EXITED => "exited",
        uapi::PINMAP_FAULT_ATOMIC => "atomic",
        _ => "none",
    }
}

/// The name of a `PINMAP_RULE_` value.
#[cfg(pinmap_mirror)]
fn rule(rule: u32) -> &'static str {
    match rule {
        uapi::PINMAP_RULE_FIXED => "fixed",
        uapi::PINMAP_RULE_ADVISED => "advised",
        uapi::PINMAP_RULE_THRASHING => "thrashing",
        uapi::PINMAP_RULE_NO_ROOM => "no_room",
        uapi::PINMAP_RULE_PREFERRED => "preferred",
        uapi::PINMAP_RULE_TOUCHED => "touched",
        uapi::PINMAP_RULE_PREFETCHED => "prefetched",
        uapi::PINMAP_RULE_HOME => "home",
        uapi::PINMAP_RULE_EVICTED => "evicted",
        uapi::PINMAP_RULE_CROWDED => "crowded",
        uapi::PINMAP_RULE_ATOMIC => "atomic",
        _ => "none",
    }
}

fn line(out: &SeqFile, context: &Context, handle: u64, buffer: &Buffer) {
    let status = buffer.status(context.space());
    let contiguity = buffer.contiguity();
    let kind = match buffer.kind() {
        uapi::PINMAP_BUFFER_USER => "registered",
        uapi::PINMAP_BUFFER_FILE => "file",
        uapi::PINMAP_BUFFER_HOST => "allocated",
        uapi::PINMAP_BUFFER_VRAM => "vram",
        _ => "shared",
    };
    let access = if buffer.writable() { "rw" } else { "r" };
    let state = match status.state {
        State::Live => "live",
        State::Stale => "stale",
        State::Building | State::Doomed => "new",
        State::Released | State::Gone => "ending",
    };
    seq_print!(
        out,
        "{} {} {} {} {} {} {} ",
        context.stats().function(),
        context.id(),
        context.opener().number(),
        handle,
        kind,
        access,
        state
    );
    if buffer.is_user_memory() {
        seq_print!(out, "{:#x}", buffer.span().start());
    } else {
        seq_print!(out, "-");
    }
    seq_print!(
        out,
        " {} {} {}%",
        buffer.span().length(),
        contiguity.runs,
        contiguity.huge_percent()
    );
    let mut separator = ' ';
    buffer.each_device_addr(context.space(), |device_addr| {
        seq_print!(out, "{}{:#x}", separator, device_addr);
        separator = ',';
    });
    let nowhere = if separator == ' ' { " -" } else { "" };
    seq_print!(out, "{}\n", nowhere);
}
