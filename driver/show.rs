// SPDX-License-Identifier: GPL-2.0
//! fdinfo of an open file (`/proc/PID/fdinfo`), the attributes of a device in sysfs, and the list
//! of its buffers in debugfs.

use crate::{
    buffer::{Buffer, State},
    context::Context,
    device::Device,
    stats::Stat,
    sys::{
        attributes::Attribute,
        compat,
        debugfs::Show,
        task,
        uapi::{self, pinmap_total},
    },
};
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
    number("objects-limit", compat::max_registrations().into());
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
    let totals = device.totals();
    match which {
        Attribute::Kind => Ok(device.backend().kind().into()),
        Attribute::Contexts => Ok(totals.of(Stat::Contexts).number),
        Attribute::Pinned => Ok(totals.of(Stat::Pinned).bytes),
        Attribute::Mapped => Ok(totals.of(Stat::Mapped).bytes),
        which => of_paged(device, which),
    }
}

/// The value of an attribute that only paged devices have.
#[cfg(not(pinmap_flat))]
fn of_paged(device: &Device, which: Attribute) -> Result<u64> {
    let (gpu, totals) = (device.gpu()?, device.totals());
    Ok(match which {
        Attribute::Managed => totals.of(Stat::Managed).bytes,
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
    Err(compat::unsupported())
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

impl Show for Device {
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
