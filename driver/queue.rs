// SPDX-License-Identifier: GPL-2.0
//! GPU_WALK, QUEUE_CREATE, QUEUE_DESTROY, QUEUE_WAIT, QUEUE_NOTIFY, QUEUE_QUERY and QUEUE_SUBMIT.

use crate::{
    allocation,
    context::Context,
    failure::Failure,
    gpu::{
        self,
        member::Member,
        queue::{Held, Parts, Queue},
        Gpu,
    },
    logic::{
        place::Wish,
        pte::Access,
        request::Target,
        ring::{self, Ring},
        PAGE_SIZE,
    },
    mapping::{AddressSpace, Mapping, Memory},
    registration::{check_flags, errno, Pending, Publish},
    sys::{
        compat,
        eventfd::EventFd,
        folios::Folios,
        uapi::{
            self, pinmap_gpu_walk, pinmap_queue_create, pinmap_queue_destroy, pinmap_queue_notify,
            pinmap_queue_query, pinmap_queue_submit, pinmap_queue_wait,
        },
    },
    view::{Shown, ViewTable},
};
use kernel::{
    prelude::*,
    sync::Arc,
    uaccess::{UserPtr, UserSlice},
};

/// Fences of a queue: a page of them.
const FENCES: u64 = PAGE_SIZE / 8;

/// A queue that its owner has not been told of. Dropping it closes it.
struct FreshQueue {
    gpu: Arc<Gpu>,
    member: Arc<Member>,
    queue: Arc<Queue>,
    handle: u64,
    published: bool,
}

impl Publish for FreshQueue {
    fn publish(&mut self) -> Result {
        self.member.publish(self.handle)?;
        self.published = true;
        Ok(())
    }
}

impl Drop for FreshQueue {
    fn drop(&mut self) {
        if !self.published {
            self.member.forget(self.handle);
            gpu::close(&self.gpu, &self.queue);
        }
    }
}

/// The paged device of `context`, and what it knows of the context.
fn gpu_of(context: &Context) -> Result<(&Arc<Gpu>, Arc<Member>)> {
    let gpu = context.device().backend().gpu();
    let gpu = gpu.ok_or_else(compat::unsupported)?;
    let member = gpu.member(context.id())?;
    Ok((gpu, member))
}

/// GPU_WALK.
pub(crate) fn walk(context: &Context, args: &mut pinmap_gpu_walk) -> Result {
    check_flags(args.flags)?;
    gpu_of(context)?.1.vm().walk(args)
}

/// The queue of `context` named `handle`.
fn find(context: &Context, handle: u64) -> Result<(&Arc<Gpu>, Arc<Queue>)> {
    let (gpu, member) = gpu_of(context)?;
    let queue = member.find(handle)?;
    Ok((gpu, queue))
}

/// Driver-allocated memory in the driver's part of the context's address space.
fn map(
    space: &Arc<AddressSpace>,
    folios: &Arc<Folios>,
    access: Access,
) -> core::result::Result<Mapping, Failure> {
    let anywhere = Target {
        wish: Wish::Near(space.aperture().start()),
        bits: u64::BITS,
    };
    let memory = Memory::Host(folios.clone());
    Mapping::new(space, &memory, anywhere, access, || Ok(()))
}

/// QUEUE_CREATE.
pub(crate) fn create(
    context: &Arc<Context>,
    args: &mut pinmap_queue_create,
) -> core::result::Result<Pending, Failure> {
    const CLASSES: u32 = uapi::PINMAP_QUEUE_COPY | uapi::PINMAP_QUEUE_COMPUTE;

    check_flags(args.flags & !CLASSES)?;
    let device = context.device().backend().gpu();
    let limits = *device.ok_or_else(compat::unsupported)?.limits();
    let ring = Ring::new(args.packets).map_err(errno)?;
    if args.flags == 0 || args.priority > limits.max_priority {
        return Err(EINVAL.into());
    }
    let (gpu, member) = gpu_of(context)?;
    if !context.account().is_current() {
        return Err(EPERM.into());
    }
    let doorbell = Member::doorbell(&member, gpu)?;
    let pages = ring.bytes() / PAGE_SIZE;
    let ring_memory = allocation::host_memory(context.account(), pages)?;
    let fences = allocation::host_memory(context.account(), 1)?;
    let ring_mapping = map(member.upper(), &ring_memory, Access::Fetch)?;
    let fence_mapping = map(member.upper(), &fences, Access::Write)?;
    let fence_addr = fence_mapping.device_addr();

    let views = context.view_table();
    let ring_view = ViewTable::show(views, ring.bytes(), Shown::Host(ring_memory.clone()))?;
    let fence_view = ViewTable::show(views, PAGE_SIZE, Shown::Host(fences.clone()))?;
    let doorbell_view = ViewTable::show(views, PAGE_SIZE, Shown::Device(doorbell.clone()))?;
    args.out_ring_offset = ring_view.offset();
    args.out_ring_length = ring.bytes();
    args.out_fence_offset = fence_view.offset();
    args.out_doorbell_offset = doorbell_view.offset();
    args.out_fence_addr = fence_addr;

    let parts = Parts {
        doorbell,
        vm: member.vm().clone(),
        classes: args.flags,
        priority: args.priority,
        ring,
        ring_addr: ring_mapping.device_addr(),
        ring_memory,
        fences,
        events: context.events().clone(),
    };
    let held = Held {
        _mappings: [ring_mapping, fence_mapping],
        _views: [ring_view, fence_view, doorbell_view],
    };
    let queue = Queue::new(parts, held)?;
    let handle = member.add(gpu, &queue)?;
    args.out_queue = handle;
    let fresh = FreshQueue {
        gpu: gpu.clone(),
        member,
        queue,
        handle,
        published: false,
    };
    Ok(Pending::Other(KBox::new(fresh, GFP_KERNEL)?))
}

/// QUEUE_DESTROY.
pub(crate) fn destroy(context: &Context, args: &pinmap_queue_destroy) -> Result {
    check_flags(args.flags)?;
    let (gpu, member) = gpu_of(context)?;
    let queue = member.take(args.queue)?;
    gpu::close(gpu, &queue);
    gpu.check_here()
}

/// QUEUE_WAIT. Tells in `args` how far it came, also if it fails.
pub(crate) fn wait(context: &Context, args: &mut pinmap_queue_wait) -> Result {
    check_flags(args.flags | args.__reserved)?;
    let device = context.device().backend().gpu();
    device.ok_or_else(compat::unsupported)?;
    if u64::from(args.fence) >= FENCES {
        return Err(EINVAL);
    }
    let (gpu, queue) = find(context, args.queue)?;
    let waited = queue.wait(gpu, args.fence.into(), args.value, args.timeout_ns);
    args.timeout_ns = waited.left;
    args.out_value = waited.value;
    waited.result
}

/// QUEUE_NOTIFY.
pub(crate) fn notify(context: &Context, args: &pinmap_queue_notify) -> Result {
    check_flags(args.flags)?;
    let device = context.device().backend().gpu();
    device.ok_or_else(compat::unsupported)?;
    if u64::from(args.fence) >= FENCES {
        return Err(EINVAL);
    }
    let (_, queue) = find(context, args.queue)?;
    let eventfd = EventFd::from_fd(args.fd)?;
    queue.notify(args.fence.into(), args.value, eventfd)
}

/// QUEUE_QUERY.
pub(crate) fn query(context: &Context, args: &mut pinmap_queue_query) -> Result {
    check_flags(args.flags | args.__reserved)?;
    let (gpu, queue) = find(context, args.queue)?;
    let (executed, stop) = gpu.progress(&queue);
    args.out_state = uapi::PINMAP_QUEUE_READY;
    args.out_code = 0;
    args.out_access = 0;
    args.out_addr = 0;
    args.out_index = executed;
    if let Some(stop) = stop {
        args.out_state = if stop.is_fault {
            uapi::PINMAP_QUEUE_FAULTED
        } else {
            uapi::PINMAP_QUEUE_ERROR
        };
        args.out_code = stop.code;
        args.out_access = if stop.is_fault { stop.access } else { 0 };
        args.out_addr = stop.addr;
        args.out_index = stop.index;
    }
    Ok(())
}

/// QUEUE_SUBMIT: what a program does by itself with ring and doorbell.
pub(crate) fn submit(context: &Context, args: &mut pinmap_queue_submit) -> Result {
    check_flags(args.flags | args.__reserved)?;
    let (gpu, queue) = find(context, args.queue)?;
    let ring = queue.ring();
    if args.count == 0 || args.count > ring.packets() {
        return Err(EINVAL);
    }
    let bytes = u64::from(args.count).saturating_mul(ring::PACKET);
    let mut packets = KVVec::new();
    let from = UserPtr::from_addr(usize::try_from(args.packets).map_err(|_| EFAULT)?);
    UserSlice::new(from, bytes as usize).read_all(&mut packets, GFP_KERNEL_ACCOUNT)?;

    // What user space may hold up is done.
    let _one_at_a_time = queue.submitting.lock();
    let (executed, stop) = gpu.progress(&queue);
    if stop.is_some() {
        return Err(EIO);
    }
    let written = gpu.published(&queue);
    gpu.check_here()?;
    let after = ring.add(written, executed, args.count).ok_or(EAGAIN)?;
    let mut index = written;
    for packet in packets.chunks_exact(ring::PACKET as usize) {
        queue.ring_memory().store(ring.offset(index), packet)?;
        index = index.wrapping_add(1);
    }
    gpu.publish(&queue, after)?;
    args.out_index = after;
    Ok(())
}
