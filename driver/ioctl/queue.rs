// SPDX-License-Identifier: GPL-2.0
//! QUEUE_CREATE, QUEUE_DESTROY, QUEUE_WAIT, QUEUE_NOTIFY, QUEUE_QUERY and QUEUE_SUBMIT.

use super::{
    gpu::gpu_of,
    pending::{check_flags, errno, Pending, Publish},
    Request,
};
use crate::{
    address_space::{AddressSpace, IovaRange},
    allocation,
    claim::Claim,
    context::Context,
    failure::Failure,
    gpu::{
        self,
        member::Member,
        sched::queue::{Queue, QueueMemory, QueueParams},
        Gpu,
    },
    logic::{
        place::Placement,
        pte::Access,
        request::Target,
        ring::{self, Ring},
        PAGE_SIZE,
    },
    mapping::{Mapping, Memory},
    sys::{fs::eventfd::EventFd, mm::folios::Folios},
    uapi::{
        self, pinmap_fail, pinmap_queue_create, pinmap_queue_destroy, pinmap_queue_notify,
        pinmap_queue_query, pinmap_queue_submit, pinmap_queue_wait,
    },
    view::{MmapOffsets, MmapSource},
};
use kernel::{
    prelude::*,
    sync::Arc,
    uaccess::{UserPtr, UserSlice},
};

/// Fences of a queue: a page of them.
const FENCES: u64 = PAGE_SIZE / 8;

/// A queue whose owner has not been told of it. Dropping it closes it.
struct FreshQueue {
    gpu: Arc<Gpu>,
    member: Arc<Member>,
    queue: Arc<Queue>,
    handle: u64,
    /// Until it is published.
    claim: Option<Claim>,
}

impl Publish for FreshQueue {
    fn publish(&mut self) -> Result {
        self.member.publish(self.handle)?;
        if let Some(claim) = self.claim.take() {
            claim.keep();
        }
        Ok(())
    }
}

impl Drop for FreshQueue {
    fn drop(&mut self) {
        if self.claim.is_some() {
            self.member.forget(self.handle);
            gpu::close(&self.gpu, &self.queue);
        }
    }
}

/// Finds the queue of `context` that is called `handle`.
fn find(context: &Context, handle: u64) -> Result<(&Arc<Gpu>, Arc<Queue>)> {
    let (gpu, member) = gpu_of(context)?;
    let queue = member.find(handle)?;
    Ok((gpu, queue))
}

/// Checks that the device of `context` is paged, and that a queue has this fence.
fn check_fence(context: &Context, fence: u32) -> Result {
    context.device().gpu()?;
    if u64::from(fence) >= FENCES {
        return Err(EINVAL);
    }
    Ok(())
}

/// Maps memory of the driver in the driver's part of the context's address space.
fn map(
    space: &Arc<AddressSpace>,
    folios: &Arc<Folios>,
    access: Access,
) -> Result<Mapping, Failure> {
    let anywhere = Target {
        placement: Placement::Near(space.aperture().start()),
        address_bits: u64::BITS,
    };
    let memory = Memory::Host(folios.clone());
    let mut mapping = Mapping::new(IovaRange::take(space, memory.length(), anywhere)?);
    mapping.fill(memory, access, || Ok(()))?;
    Ok(mapping)
}

impl Request for pinmap_queue_create {
    const NR: u32 = uapi::PINMAP_CMD_QUEUE_CREATE;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        const CLASSES: u32 = uapi::PINMAP_QUEUE_COPY | uapi::PINMAP_QUEUE_COMPUTE;

        check_flags(self.flags & !CLASSES)?;
        let limits = *context.device().gpu()?.limits();
        let ring = Ring::new(self.packets).map_err(errno)?;
        if self.flags == 0 || self.priority > limits.max_priority {
            return Err(EINVAL.into());
        }
        let (gpu, member) = gpu_of(context)?;
        context.check_caller()?;
        let claim = Claim::new(context)?;
        let doorbell = Member::doorbell(member, gpu)?;
        let pages = ring.bytes() / PAGE_SIZE;
        let ring_memory = allocation::host_memory(context.account(), pages)?;
        let fences = allocation::host_memory(context.account(), 1)?;
        let ring_mapping = map(member.upper(), &ring_memory, Access::Fetch)?;
        let fence_mapping = map(member.upper(), &fences, Access::Write)?;

        let show = |length, shown| MmapOffsets::add(context.mmap_offsets(), length, shown, true);
        let ring_view = show(ring.bytes(), MmapSource::Host(ring_memory.clone()))?;
        let fence_view = show(PAGE_SIZE, MmapSource::Host(fences.clone()))?;
        let doorbell_view = show(PAGE_SIZE, MmapSource::Device(doorbell.clone()))?;
        self.out_ring_offset = ring_view.offset();
        self.out_ring_length = ring.bytes();
        self.out_fence_offset = fence_view.offset();
        self.out_doorbell_offset = doorbell_view.offset();
        self.out_fence_addr = fence_mapping.device_addr();

        let params = QueueParams {
            doorbell,
            vm: member.vm().clone(),
            classes: self.flags,
            priority: self.priority,
            ring,
            ring_addr: ring_mapping.device_addr(),
            ring_memory,
            fences,
            events: context.events().clone(),
        };
        let memory = QueueMemory {
            _mappings: [ring_mapping, fence_mapping],
            _views: [ring_view, fence_view, doorbell_view],
        };
        let queue = Queue::new(params, memory)?;
        let handle = member.add(gpu, &queue)?;
        self.out_queue = handle;
        let fresh = FreshQueue {
            gpu: gpu.clone(),
            member: member.clone(),
            queue,
            handle,
            claim: Some(claim),
        };
        Ok(Pending::Other(KBox::new(fresh, GFP_KERNEL_ACCOUNT)?))
    }

    fn detail(&mut self) -> Option<&mut pinmap_fail> {
        Some(&mut self.fail)
    }
}

impl Request for pinmap_queue_destroy {
    const NR: u32 = uapi::PINMAP_CMD_QUEUE_DESTROY;
    const ANSWERS: bool = false;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags(self.flags)?;
        let (gpu, member) = gpu_of(context)?;
        let queue = member.take(self.queue)?;
        gpu::close(gpu, &queue);
        gpu.check_here()?;
        Ok(Pending::Done)
    }
}

/// QUEUE_WAIT answers how far the queue came and how much time is left, even if it fails.
impl Request for pinmap_queue_wait {
    const NR: u32 = uapi::PINMAP_CMD_QUEUE_WAIT;
    const ANSWERS_FAILURE: bool = true;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags(self.flags | self.__reserved)?;
        check_fence(context, self.fence)?;
        let (gpu, queue) = find(context, self.queue)?;
        let waited = queue.wait(gpu, self.fence.into(), self.value, self.timeout_ns);
        self.timeout_ns = waited.left;
        self.out_value = waited.value;
        waited.result?;
        Ok(Pending::Done)
    }
}

impl Request for pinmap_queue_notify {
    const NR: u32 = uapi::PINMAP_CMD_QUEUE_NOTIFY;
    const ANSWERS: bool = false;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags(self.flags)?;
        check_fence(context, self.fence)?;
        let (_, queue) = find(context, self.queue)?;
        let eventfd = EventFd::from_fd(self.fd)?;
        queue.notify(self.fence.into(), self.value, eventfd)?;
        Ok(Pending::Done)
    }
}

impl Request for pinmap_queue_query {
    const NR: u32 = uapi::PINMAP_CMD_QUEUE_QUERY;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags(self.flags | self.__reserved)?;
        let (gpu, queue) = find(context, self.queue)?;
        let (executed, stop) = gpu.progress(&queue);
        self.out_state = uapi::PINMAP_QUEUE_READY;
        self.out_code = 0;
        self.out_access = 0;
        self.out_reason = uapi::PINMAP_FAULT_NONE;
        self.out_addr = 0;
        self.out_index = executed;
        self.out_vma_start = 0;
        self.out_vma_end = 0;
        self.out_vma_flags = 0;
        if let Some(stop) = stop {
            self.out_state = if stop.is_fault {
                uapi::PINMAP_QUEUE_FAULTED
            } else {
                uapi::PINMAP_QUEUE_ERROR
            };
            self.out_code = stop.code;
            self.out_access = stop.access().unwrap_or(0);
            self.out_reason = stop.reason;
            self.out_addr = stop.addr;
            self.out_index = stop.index;
            if let Some(area) = stop.area {
                self.out_vma_start = area.span.start();
                self.out_vma_end = area.span.last().saturating_add(1);
                self.out_vma_flags = area.flags;
            }
        }
        Ok(Pending::Done)
    }
}

/// QUEUE_SUBMIT does what a program can do by itself with ring and doorbell.
impl Request for pinmap_queue_submit {
    const NR: u32 = uapi::PINMAP_CMD_QUEUE_SUBMIT;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags(self.flags | self.__reserved)?;
        let (gpu, queue) = find(context, self.queue)?;
        let ring = queue.ring();
        if self.count == 0 || self.count > ring.packets() {
            return Err(EINVAL.into());
        }
        let bytes = u64::from(self.count).saturating_mul(ring::PACKET);
        let mut packets = KVVec::new();
        let from = UserPtr::from_addr(usize::try_from(self.packets).map_err(|_| EFAULT)?);
        UserSlice::new(from, bytes as usize).read_all(&mut packets, GFP_KERNEL_ACCOUNT)?;

        // Nothing from here on can be delayed by user space.
        let _one_at_a_time = queue.submitting.lock();
        let (executed, stop) = gpu.progress(&queue);
        if stop.is_some() {
            return Err(EIO.into());
        }
        let written = gpu.published(&queue);
        gpu.check_here()?;
        let after = ring.add(written, executed, self.count).ok_or(EAGAIN)?;
        let mut index = written;
        for packet in packets.chunks_exact(ring::PACKET as usize) {
            queue.ring_memory().store(ring.offset(index), packet)?;
            index = index.wrapping_add(1);
        }
        gpu.publish(&queue, after)?;
        self.out_index = after;
        Ok(Pending::Done)
    }
}
