// SPDX-License-Identifier: MIT OR Apache-2.0
//! Causes and hints of errors: what an errno means for an operation, and what to do about it.

use nix::errno::Errno;

use super::failure::{Failure, Reason};
use super::fault::FaultReason;
use super::operation::Operation;
use crate::sys::pci::PciAddress;
use crate::sys::sysfs::Sysfs;

/// The cause that the errno gives for an operation.
pub(crate) fn cause(operation: Operation, errno: Errno) -> String {
    let text = match (operation, errno) {
        (Operation::Open, Errno::ENOENT) => "there is no such device node",
        (Operation::Open, Errno::EACCES) => "this user may not open it",
        (Operation::Open, Errno::EPERM) => "the control group of this process may not have it",
        (Operation::Open, Errno::ENOTTY) => "it is not a pinmap device",
        (Operation::Open | Operation::Find, Errno::ENODEV | Errno::ENXIO) => {
            "the driver is not bound to it"
        }
        (Operation::Open, Errno::ENOSPC) => {
            "this user has it open as often as one user may: 1024 times, or as often as the device \
             has room for page tables"
        }
        (Operation::Allocate, Errno::ENOMEM) => "there is not enough memory of that kind",
        (Operation::Allocate, Errno::EDQUOT) => {
            "the control group may not have so much of the device's memory"
        }
        (Operation::StayAwake, Errno::EPERM) => {
            "the program lacks the capability to keep the system awake"
        }
        (Operation::Register, Errno::EPERM) => {
            "memory can be registered only by the process that opened the device"
        }
        (Operation::Allocate | Operation::Queue, Errno::EPERM) => {
            "only the process that opened the device can map what the driver allocates"
        }
        (Operation::Manage, Errno::EPERM) => {
            "memory can be managed only for the process that opened the device"
        }
        (Operation::Prefetch | Operation::Advise | Operation::Residency, Errno::ENOENT) => {
            "some of it is not managed"
        }
        (Operation::Budget, Errno::ENOENT) => "nothing is managed",
        (Operation::Advise | Operation::Residency | Operation::Budget, Errno::EPERM) => {
            "only the process that opened the device can do that with its memory"
        }
        (Operation::Prefetch, Errno::EIO) => "the device did not copy it",
        (Operation::Prefetch, Errno::EPERM) => {
            "memory can be moved only by the process that opened the device"
        }
        (
            Operation::Manage
            | Operation::Prefetch
            | Operation::Advise
            | Operation::Residency
            | Operation::Statistics
            | Operation::Budget,
            Errno::EOPNOTSUPP,
        ) => "the device cannot fault, or the kernel lets no driver follow the memory of programs",
        (Operation::Manage, Errno::EEXIST) => "some of it is managed already",
        (Operation::Register | Operation::Import, Errno::EREMOTEIO) => {
            "it is memory of a device that the bus does not let this one reach"
        }
        (Operation::Register, Errno::EACCES) => "the file is not open for that",
        (Operation::Map, Errno::EACCES) => "it was registered for reading only",
        (Operation::Export | Operation::Import, Errno::EPERM) => {
            "only the process that opened the device can share memory by it"
        }
        (Operation::Export, Errno::EOPNOTSUPP) => {
            "it was imported from another driver or from a device, which export it themselves"
        }
        (Operation::Import, Errno::EOPNOTSUPP) => {
            "it is a dma-buf of another driver, which may move its memory"
        }
        (Operation::Import, Errno::EINVAL) => {
            "it is no dma-buf, or the CPU cannot map it: registered memory, or another device's"
        }
        (Operation::Import, Errno::ESTALE) => "its owner has taken the memory back",
        (Operation::Bar, Errno::EOPNOTSUPP) => {
            "it consists of I/O ports, or is smaller than a page"
        }
        (Operation::Reset, Errno::EOPNOTSUPP) => "the function has no reset",
        (Operation::Reset, Errno::EAGAIN) => {
            "the device is being bound, unbound or reset by someone else"
        }
        (Operation::Accelerator, Errno::EOPNOTSUPP) => "it is a flat device: it has no queues",
        (Operation::Allocate, Errno::EOPNOTSUPP) if cfg!(target_arch = "x86_64") => {
            "the device has no memory of its own"
        }
        (Operation::Allocate, Errno::EOPNOTSUPP) => {
            "the device has no memory of its own, or it was to be write-combined, which is for x86"
        }
        (Operation::Queue, Errno::ENOSPC) => "the device has no queue left",
        (Operation::Stream, Errno::ENOSPC) => "too many are waited for at once",
        (Operation::Stream, Errno::EAGAIN) => "the device has not come to it yet",
        (_, Errno::EDEADLK) => "this is a host function, for which a stream waits",
        (Operation::Submit, Errno::EAGAIN) => "the ring is full",
        (Operation::Submit | Operation::Wait, Errno::EIO) => "the queue has stopped",
        (Operation::Release, Errno::ESTALE) => "it was released before",
        (_, Errno::EBUSY) => "another context owns the device",
        (_, Errno::ENODEV) => "the device is gone",
        (_, Errno::ESTALE) => "its memory went away",
        (_, Errno::ENOTTY | Errno::E2BIG) => "the driver is older than this crate",
        (_, Errno::EOPNOTSUPP) => "the driver, the device or the IOMMU cannot do that",
        (_, Errno::EOVERFLOW) => "the end lies outside of the 64-bit address space",
        (_, Errno::ETIMEDOUT) => "the time was up",
        (_, Errno::EINTR) => "a signal arrived meanwhile",
        _ => return errno.desc().to_lowercase(),
    };
    text.to_owned()
}

/// The hint for an operation that failed with the errno, if there is one.
pub(crate) fn hint(operation: Operation, errno: Errno) -> Option<String> {
    let text = match (operation, errno) {
        (Operation::Open | Operation::Find, Errno::ENOENT | Errno::ENODEV | Errno::ENXIO) => {
            return Some(no_device(&Sysfs::system()));
        }
        (Operation::Open, Errno::EACCES) => {
            "be a member of the group `pinmap` (`usermod -a -G pinmap USER`, then log in again), \
             or root; a container without root needs `--group-add keep-groups`, too"
        }
        (Operation::Open, Errno::EPERM) => {
            "give the container the device by `--device`, or a systemd unit by `DeviceAllow=`"
        }
        (Operation::Open, Errno::ENOSPC) => {
            "close some of them (`fuser -v /dev/pinmap*` shows which programs have them)"
        }
        (Operation::Open, Errno::EMFILE) => "raise the limit of open files (`ulimit -n`)",
        (Operation::StayAwake, Errno::EPERM) => {
            "give it CAP_BLOCK_SUSPEND: `setcap cap_block_suspend+ep PROGRAM`, or \
             `AmbientCapabilities=CAP_BLOCK_SUSPEND` in a systemd unit"
        }
        (Operation::Allocate, Errno::EDQUOT) => {
            "raise `dmem.max` of the control group, or of one above it"
        }
        (Operation::Allocate, Errno::ENOMEM) => {
            "set huge pages aside with `sysctl vm.nr_hugepages=N` if it is to have them"
        }
        (
            Operation::Register
            | Operation::Allocate
            | Operation::Queue
            | Operation::Manage
            | Operation::Prefetch
            | Operation::Advise
            | Operation::Residency
            | Operation::Budget,
            Errno::EPERM,
        ) => "open the device again in this process, for instance after fork()",
        (Operation::Manage, Errno::EOPNOTSUPP) => {
            "register the memory; slices as operands are registered by themselves"
        }
        (Operation::Manage, Errno::EEXIST) => {
            "drop what manages it, or manage all addresses before ranges: ranges can lie in that"
        }
        (
            Operation::Prefetch | Operation::Advise | Operation::Residency | Operation::Budget,
            Errno::ENOENT,
        ) => {
            "have it managed before (`Accelerator::manage`, `manage_all`), or allocate it with \
             `Accelerator::alloc_managed`"
        }
        (Operation::Map, Errno::EACCES) => "register the memory with `Access::ReadWrite`",
        (Operation::Reset, Errno::EAGAIN) => "try again",
        (Operation::Accelerator, Errno::EOPNOTSUPP) => {
            "a device with an MMU of its own is needed: `pinmap info` shows the kind of each"
        }
        (Operation::Queue, Errno::ENOSPC) => "drop a queue first",
        (_, Errno::EDEADLK) => "have another thread do it, or the one that submitted",
        (Operation::Submit, Errno::EAGAIN) => "wait for some of the work, or make a longer ring",
        (_, Errno::EBUSY) => {
            "wait until the program that owns it has closed it (`fuser -v /dev/pinmap*` shows \
             which)"
        }
        (_, Errno::ENODEV) => "it was unbound or removed: `pinmap info` shows what there is now",
        (_, Errno::E2BIG) => "update the driver",
        _ => return None,
    };
    Some(text.to_owned())
}

/// How to get a device: the steps that this system still needs.
pub(crate) fn no_device(sysfs: &Sysfs) -> String {
    load(
        sysfs,
        "give it a function with `pinmap bind BDF`, where `lspci -D` shows the BDF",
    )
}

/// Why none of some devices was found, and how to go on: the driver is not loaded, or not `bound`,
/// in which case the step is `then`.
pub(crate) fn none_found(sysfs: &Sysfs, bound: &'static str, then: &str) -> (&'static str, String) {
    let cause = match sysfs.driver_loaded() {
        true => bound,
        false => "the driver is not loaded",
    };
    let hint = format!(
        "{}; `pinmap doctor` shows what is missing",
        load(sysfs, then)
    );
    (cause, hint)
}

/// How to get the device of a PCI function.
pub(crate) fn unbound(sysfs: &Sysfs, pci: PciAddress) -> String {
    load(
        sysfs,
        &format!("give it the function with `pinmap bind {pci}`"),
    )
}

/// The step `then`, after loading the driver where that is still to be done.
fn load(sysfs: &Sysfs, then: &str) -> String {
    if sysfs.driver_loaded() {
        then.to_owned()
    } else {
        format!("load the driver with `modprobe pinmap`, then {then}")
    }
}

/// The hint for a failure, if there is one.
pub(crate) fn for_failure(failure: &Failure) -> Option<String> {
    let text = match failure.reason {
        Reason::Memlock => return Some(raise_memlock(failure.needed)),
        Reason::Hole => "map the whole range before",
        Reason::Fault => "make the file long enough, and leave out guard pages",
        Reason::Memory => {
            "free memory, or raise the limit of the memory cgroup (`memory.max`, or \
             `MemoryMax=` in the service's systemd unit)"
        }
        Reason::Stale => "keep the memory mapped until it is registered",
        Reason::Permission => {
            "use memory that is mapped readable, and writable if the device is to write"
        }
        Reason::File => {
            "register it with `Access::Read`, or use a private mapping, a memfd or tmpfs"
        }
        Reason::Secret | Reason::Device => "use ordinary memory",
        Reason::Overlap => "release that first, or demand another device address",
        Reason::Window => {
            "use memory of the window as it is, which the device reaches, or release the window"
        }
        Reason::Aperture | Reason::Reserved => {
            "demand another device address, or let the driver choose one"
        }
        Reason::Full => "release something first, or allow more address bits",
        Reason::Objects => {
            "release something first, register larger ranges, or load the module with a higher \
             `max_registrations`"
        }
        _ => return None,
    };
    Some(text.to_owned())
}

/// The hint for the reason of a fault, if there is one.
pub(crate) fn for_fault(reason: FaultReason) -> Option<&'static str> {
    Some(match reason {
        FaultReason::Unmapped => {
            "register the memory with that access, or have it managed (`Accelerator::manage`)"
        }
        FaultReason::Hole => "keep the memory mapped until the work is done",
        FaultReason::Permission => {
            "use memory that is mapped readable, and writable if the device is to write"
        }
        FaultReason::Device | FaultReason::Secret | FaultReason::Guard => "use ordinary memory",
        FaultReason::File => "make the file long enough",
        FaultReason::Memory => {
            "free memory, or raise the limit of the memory cgroup (`memory.max`, or \
             `MemoryMax=` in the service's systemd unit)"
        }
        FaultReason::Userfaultfd => {
            "touch the memory before the device does, or use a userfaultfd without \
             `UFFD_USER_MODE_ONLY` and `UFFD_FEATURE_SIGBUS`"
        }
        FaultReason::Atomic => {
            "use private anonymous memory that is not locked or pinned, or register it and keep \
             the CPU away meanwhile"
        }
        FaultReason::Poison | FaultReason::Exited | FaultReason::Other(_) => return None,
    })
}

/// How to raise `RLIMIT_MEMLOCK` to a number of bytes.
pub(crate) fn raise_memlock(needed: u64) -> String {
    let kib = needed.div_ceil(1024);
    format!(
        "raise the limit: `ulimit -l {kib}` in the shell, up to its hard limit; for good \
         `* - memlock {kib}` in /etc/security/limits.conf, or `LimitMEMLOCK={needed}` in the \
         service's systemd unit"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memlock_is_told_in_the_units_of_each_tool() {
        let failure = Failure {
            reason: Reason::Memlock,
            addr: 0,
            needed: 1025,
            allowed: 1024,
        };
        let hint = for_failure(&failure).expect("a hint");
        assert!(hint.contains("`ulimit -l 2`"), "{hint}");
        assert!(hint.contains("memlock 2`"), "{hint}");
        assert!(hint.contains("`LimitMEMLOCK=1025`"), "{hint}");
    }

    #[test]
    fn every_failure_says_what_to_do() {
        let hint = |reason| {
            for_failure(&Failure {
                reason,
                addr: 0x1000,
                needed: 2,
                allowed: 1,
            })
        };
        for reason in [
            Reason::Hole,
            Reason::Permission,
            Reason::File,
            Reason::Secret,
            Reason::Device,
            Reason::Fault,
            Reason::Memlock,
            Reason::Memory,
            Reason::Overlap,
            Reason::Aperture,
            Reason::Reserved,
            Reason::Full,
            Reason::Objects,
            Reason::Stale,
            Reason::Window,
        ] {
            assert!(hint(reason).is_some(), "{reason:?}");
        }
        assert!(hint(Reason::Objects).is_some_and(|hint| hint.contains("max_registrations")));
        assert!(hint(Reason::Memory).is_some_and(|hint| hint.contains("MemoryMax=")));
        // Nobody knows yet.
        assert_eq!(hint(Reason::Other(99)), None);
    }

    #[test]
    fn the_words_of_errors_go_into_sentences() {
        use Errno as E;
        use Operation as O;
        let operations = [
            [O::Find, O::Open, O::Info, O::Query, O::Allocate],
            [O::Register, O::Cache, O::Manage, O::Prefetch, O::Advise],
            [O::Residency, O::Statistics, O::Budget, O::Release, O::Map],
            [O::Unmap, O::Access, O::Bar, O::Eventfd, O::Wait],
            [O::Event, O::Reset, O::Accelerator, O::Queue, O::Submit],
            [O::Destroy, O::Export, O::Import, O::Sync, O::StayAwake],
            [O::Stream; 5],
        ];
        let errnos = [
            [E::ENOENT, E::EACCES, E::EPERM, E::EBUSY, E::ENODEV],
            [E::ENXIO, E::ESTALE, E::EINVAL, E::EOVERFLOW, E::E2BIG],
            [E::EFAULT, E::EEXIST, E::ENOMEM, E::ENOSPC, E::EOPNOTSUPP],
            [E::ENOTTY, E::EAGAIN, E::ETIMEDOUT, E::EINTR, E::EDEADLK],
            [E::EIO, E::EMFILE, E::EBADF, E::ENOSYS, E::EDQUOT],
        ];
        for (operation, errno) in operations.into_iter().flatten().flat_map(|operation| {
            errnos
                .iter()
                .flatten()
                .map(move |errno| (operation, *errno))
        }) {
            for text in [Some(cause(operation, errno)), hint(operation, errno)] {
                let Some(text) = text else { continue };
                let begins = text.starts_with(|first: char| first.is_lowercase());
                assert!(
                    begins && !text.ends_with('.'),
                    "{operation:?} {errno}: {text}"
                );
            }
        }
    }

    #[test]
    fn every_fault_that_can_be_avoided_says_how() {
        let hints = (1..=13).map(|reason| {
            let reason = FaultReason::from_abi(reason).expect("a reason");
            (reason, for_fault(reason))
        });
        for (reason, hint) in hints {
            let is_fate = matches!(
                reason,
                FaultReason::Poison | FaultReason::Exited | FaultReason::Other(_)
            );
            assert_eq!(hint.is_none(), is_fate, "{reason:?}");
        }
    }

    #[test]
    fn the_same_errno_differs_by_operation() {
        assert_ne!(
            cause(Operation::Release, Errno::ESTALE),
            cause(Operation::Query, Errno::ESTALE)
        );
        assert_ne!(
            cause(Operation::Open, Errno::EACCES),
            cause(Operation::Map, Errno::EACCES)
        );
        assert_ne!(
            cause(Operation::Reset, Errno::EOPNOTSUPP),
            cause(Operation::Bar, Errno::EOPNOTSUPP)
        );
    }

    #[test]
    fn an_owned_device_names_the_way_to_find_the_owner() {
        for operation in [
            Operation::Register,
            Operation::Map,
            Operation::Bar,
            Operation::Eventfd,
            Operation::Reset,
        ] {
            assert!(cause(operation, Errno::EBUSY).contains("another context"));
            assert!(hint(operation, Errno::EBUSY)
                .expect("a hint")
                .contains("fuser"));
        }
    }

    #[test]
    fn what_is_not_managed_says_so() {
        for operation in [Operation::Prefetch, Operation::Advise, Operation::Residency] {
            assert!(cause(operation, Errno::ENOENT).contains("not managed"));
            assert!(cause(operation, Errno::EOPNOTSUPP).contains("cannot fault"));
            assert!(cause(operation, Errno::ENOTTY).contains("older"));
            let hint = hint(operation, Errno::ENOENT).expect("a hint");
            assert!(hint.contains("Accelerator::manage"), "{hint}");
        }
        assert!(cause(Operation::Manage, Errno::EEXIST).contains("already"));
    }

    #[test]
    fn other_errors_keep_the_words_of_the_system() {
        assert_eq!(cause(Operation::Wait, Errno::EBADF), "bad file number");
        assert_eq!(hint(Operation::Wait, Errno::EBADF), None);
    }
}
