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
            attributes::Attribute,
            debugfs::{Show, BUFFERS, MANAGED, RANGES},
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

/// The value of an attribute of `device`. `EOPNOTSUPP`: the device does not have it.
pub(crate) fn attribute(device: &Device, which: Attribute) -> Result<u64> {
    match which {
        Attribute::Kind => Ok(device.backend().kind().into()),
        Attribute::Contexts => Ok(device.own_totals().of(Stat::Contexts).number),
        Attribute::Pinned => Ok(device.totals().of(Stat::Pinned).bytes),
        Attribute::Mapped => Ok(device.totals().of(Stat::Mapped).bytes),
        which => of_paged(device, which),
    }
}

/// The value of an attribute that only paged devices have.
#[cfg(not(pinmap_flat))]
fn of_paged(device: &Device, which: Attribute) -> Result<u64> {
    let (gpu, totals) = (device.gpu()?, device.own_totals());
    Ok(match which {
        Attribute::Managed => device.totals().of(Stat::Managed).bytes,
        Attribute::Queues => gpu.queues().into(),
        Attribute::Vram => gpu.limits().vram,
        Attribute::VramFree => gpu.vram_free(),
        Attribute::FaultsServed => totals.faults_served(),
        Attribute::FaultsFailed => totals.faults_failed(),
        Attribute::FaultFailedAt => totals.fault_failed_at(),
        Attribute::FaultLimit => gpu.fault_limit().into(),
        Attribute::FaultHoldOff => gpu.hold_off_ms().into(),
        Attribute::HeldOff => gpu.times_held_off(),
        _ => return Err(EINVAL),
    })
}

#[cfg(pinmap_flat)]
fn of_paged(_device: &Device, _which: Attribute) -> Result<u64> {
    Err(EOPNOTSUPP)
}

/// Sets an attribute of `device`.
#[cfg_attr(pinmap_flat, expect(unused_variables))]
pub(crate) fn set_attribute(device: &Device, which: Attribute, value: u32) -> Result {
    #[cfg(not(pinmap_flat))]
    match which {
        Attribute::FaultLimit => {
            device.gpu()?.set_fault_limit(value);
            return Ok(());
        }
        Attribute::FaultHoldOff => {
            device.gpu()?.set_hold_off_ms(value);
            return Ok(());
        }
        _ => {}
    }
    Err(EPERM)
}

impl Show<BUFFERS> for Device {
    /// Prints a line for each buffer that has a handle. Buffers that come or go meanwhile may be
    /// missing: nothing is locked from one line to the next.
    fn show(&self, out: &SeqFile) {
        seq_print!(
            out,
            "# device context pid handle kind access state address length runs huge mapped-at\n"
        );
        let mut context_from = 0;
        while let Some(context) = self.context_from(context_from) {
            context_from = context.id().saturating_add(1);
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
}

impl Show<MANAGED> for Device {
    /// Prints a line for each run of managed memory that is somewhere: where it is, who can reach
    /// it, and why it is there. Memory may move meanwhile.
    fn show(&self, out: &SeqFile) {
        seq_print!(
            out,
            "# device context pid start length place access advice rule\n"
        );
        #[cfg(pinmap_mirror)]
        {
            let mut from = 0;
            while let Some(context) = self.context_from(from) {
                from = context.id().saturating_add(1);
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
    }
}

impl Show<RANGES> for Device {
    /// Prints a line for each managed range: what happened to it, and the last fault that was not
    /// served.
    fn show(&self, out: &SeqFile) {
        seq_print!(
            out,
            "# device context pid handle kind start length faults in home evicted refused \
             last-addr last-access last-reason\n"
        );
        #[cfg(pinmap_mirror)]
        {
            let mut from = 0;
            while let Some(context) = self.context_from(from) {
                from = context.id().saturating_add(1);
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
