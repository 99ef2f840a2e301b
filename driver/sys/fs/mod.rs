// SPDX-License-Identifier: GPL-2.0
//! Files: device nodes, dma-bufs, event descriptors, what sysfs and debugfs show, and tracepoints.

pub(crate) mod attributes;
pub(crate) mod debugfs;
pub(crate) mod dmabuf;
pub(crate) mod eventfd;
pub(crate) mod import;
pub(crate) mod miscdevice;
pub(crate) mod trace;
pub(crate) mod user;
