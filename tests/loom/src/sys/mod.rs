// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system below the files of the crate: some of it as it is, the rest a model.

pub(crate) mod background;
#[path = "../../../../userlib/src/sys/barrier.rs"]
pub(crate) mod barrier;
#[path = "../../../../userlib/src/sys/bindings.rs"]
pub(crate) mod bindings;
pub mod eventfd;
pub(crate) mod inside;
pub(crate) mod ioctl;
pub(crate) mod map;
pub mod models;
#[path = "../../../../userlib/src/sys/pci.rs"]
pub(crate) mod pci;
pub(crate) mod poll;
pub(crate) mod sync;
#[path = "../../../../userlib/src/sys/sysfs.rs"]
pub(crate) mod sysfs;
#[path = "../../../../userlib/src/sys/trace.rs"]
pub(crate) mod trace;
#[path = "../../../../userlib/src/sys/watch.rs"]
pub(crate) mod watch;
#[path = "../../../../userlib/src/sys/word.rs"]
pub(crate) mod word;

pub(crate) use real_nix::sys::resource;
