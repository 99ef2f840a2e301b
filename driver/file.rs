// SPDX-License-Identifier: GPL-2.0
//! Open files: the table of ioctls and the one dispatcher, mmap, read, poll.

#[cfg(not(pinmap_flat))]
use crate::queue;
use crate::{
    allocation,
    backend::Claim,
    context::Context,
    device::Device,
    dmabuf,
    failure::Failure,
    generations,
    logic::size::{self, Exchange},
    preflight,
    registration::{self, check_flags, Pending},
    show,
    sys::{
        account::Account,
        compat,
        eventfd::EventFd,
        miscdevice::{Files, Operations},
        uapi::{
            self, pinmap_alloc, pinmap_export, pinmap_generations, pinmap_get_totals,
            pinmap_gpu_counters, pinmap_gpu_info, pinmap_gpu_walk, pinmap_import, pinmap_info,
            pinmap_map, pinmap_preflight, pinmap_query, pinmap_queue_create, pinmap_queue_destroy,
            pinmap_queue_notify, pinmap_queue_query, pinmap_queue_submit, pinmap_queue_wait,
            pinmap_register, pinmap_register_fd, pinmap_release, pinmap_reserved, pinmap_reset,
            pinmap_set_eventfd, pinmap_sync, pinmap_unmap,
        },
        vma::{Faults, NewArea, Views},
    },
    view,
};
use core::mem::offset_of;
use kernel::{
    fs::File,
    ioctl::_IO,
    prelude::*,
    seq_file::SeqFile,
    sync::{poll::PollTable, Arc, ArcBorrow},
    transmute::{AsBytes, FromBytes},
    uaccess::{UserPtr, UserSlice, UserSliceReader, UserSliceWriter},
};

/// The struct of one ioctl, and what the ioctl does.
trait Request: FromBytes + AsBytes + Sized {
    /// Number within our type.
    const NR: u32;
    /// Size of the first version of the struct.
    const FIRST_SIZE: usize;

    /// Whether it has anything to say. If not, the struct is not written back.
    const ANSWERS: bool = true;

    /// Whether it has something to say also when it fails.
    const ANSWERS_FAILURE: bool = false;

    /// Does it. The struct is written back if it succeeds, and also if it fails when it has a place
    /// for the failure's detail.
    fn run(&mut self, context: &Arc<Context>) -> core::result::Result<Pending, Failure>;

    /// Where the detail of a failure goes.
    fn detail(&mut self) -> Option<&mut uapi::pinmap_fail> {
        None
    }
}

/// One row of the table.
struct Command {
    /// As passed to `ioctl()`: the sizes are in the structs.
    number: u32,
    first_size: usize,
    known_size: usize,
    run: fn(&Arc<Context>, &mut [u64]) -> Outcome,
}

/// Room for any of the structs, aligned for all of them; and for most.
type Large = [u64; 64];
type Small = [u64; 16];

/// What came of a call, and whether its struct is written back.
struct Outcome {
    result: Result<Pending>,
    respond: bool,
}

const fn command<T: Request>() -> Command {
    assert!(T::FIRST_SIZE <= size_of::<T>() && size_of::<T>() <= size_of::<Large>());
    Command {
        number: _IO(uapi::PINMAP_IOCTL_TYPE, T::NR),
        first_size: T::FIRST_SIZE,
        known_size: size_of::<T>(),
        run: run::<T>,
    }
}

/// Every ioctl there is.
const TABLE: &[Command] = &[
    command::<pinmap_info>(),
    command::<pinmap_reserved>(),
    command::<pinmap_register>(),
    command::<pinmap_release>(),
    command::<pinmap_query>(),
    command::<pinmap_map>(),
    command::<pinmap_unmap>(),
    command::<pinmap_set_eventfd>(),
    command::<pinmap_reset>(),
    command::<pinmap_alloc>(),
    command::<pinmap_gpu_info>(),
    command::<pinmap_gpu_counters>(),
    command::<pinmap_queue_create>(),
    command::<pinmap_queue_destroy>(),
    command::<pinmap_queue_wait>(),
    command::<pinmap_queue_query>(),
    command::<pinmap_queue_submit>(),
    command::<pinmap_queue_notify>(),
    command::<pinmap_gpu_walk>(),
    command::<pinmap_get_totals>(),
    command::<pinmap_export>(),
    command::<pinmap_import>(),
    command::<pinmap_sync>(),
    command::<pinmap_register_fd>(),
    command::<pinmap_preflight>(),
    command::<pinmap_generations>(),
];

fn run<T: Request>(context: &Arc<Context>, buffer: &mut [u64]) -> Outcome {
    let bytes = AsBytes::as_bytes_mut(buffer);
    let request = bytes.get_mut(..size_of::<T>()).and_then(T::from_bytes_mut);
    let Some(request) = request else {
        return Outcome {
            result: Err(EINVAL),
            respond: false,
        };
    };
    if let Some(detail) = request.detail() {
        *detail = uapi::pinmap_fail::default();
    }
    match request.run(context) {
        Ok(pending) => Outcome {
            result: Ok(pending),
            respond: T::ANSWERS,
        },
        Err(failure) => {
            let detail = request.detail();
            let respond = detail.is_some() || T::ANSWERS_FAILURE;
            if let Some(detail) = detail {
                *detail = failure.detail;
            }
            Outcome {
                result: Err(failure.errno),
                respond,
            }
        }
    }
}

/// The dispatcher: the only code that touches the pointer that user space passed.
///
/// The struct is read once, and its size is believed as it was read first. A result is made visible
/// only once the caller has been told.
fn dispatch(context: &Arc<Context>, command: u32, argument: UserPtr) -> Result {
    let row = TABLE
        .iter()
        .find(|row| row.number == command)
        .ok_or(ENOTTY)?;

    let given: u32 = UserSlice::new(argument, size_of::<u32>()).reader().read()?;
    let Exchange { copy, tail } =
        size::exchange(given, row.first_size, row.known_size).map_err(registration::errno)?;
    // Most structs are small, and zeroing what they do not use would take longer than reading them.
    if row.known_size <= size_of::<Small>() {
        exchange(
            context,
            row,
            argument,
            given,
            copy,
            tail,
            &mut Small::default(),
        )
    } else {
        let mut buffer: Large = [0; 64];
        exchange(context, row, argument, given, copy, tail, &mut buffer)
    }
}

/// The same, in `buffer`, which has room for what is known of the struct: reads `copy` bytes of the
/// `given` ones, the last `tail` of which must be zero, and writes as many back.
fn exchange(
    context: &Arc<Context>,
    row: &Command,
    argument: UserPtr,
    given: u32,
    copy: usize,
    tail: usize,
    buffer: &mut [u64],
) -> Result {
    let mut reader = UserSlice::new(argument, given as usize).reader();
    reader.read_slice(
        AsBytes::as_bytes_mut(buffer)
            .get_mut(..copy)
            .ok_or(EINVAL)?,
    )?;
    check_tail(reader, tail)?;
    if let Some(size) = AsBytes::as_bytes_mut(buffer).get_mut(..size_of::<u32>()) {
        size.copy_from_slice(&given.to_ne_bytes());
    }

    context.admit()?;
    let outcome = (row.run)(context, buffer);
    if matches!(outcome.result, Err(error) if error == ENODEV) {
        // Whoever is told so relies on it.
        context.device().await_end();
    }
    let told = if outcome.respond {
        let bytes = AsBytes::as_bytes(buffer).get(..copy).ok_or(EINVAL)?;
        UserSlice::new(argument, copy).writer().write_slice(bytes)
    } else {
        Ok(())
    };
    // If the caller cannot be told, `pending` is dropped and undone.
    let pending = outcome.result?;
    told?;
    pending.publish()
}

/// Bytes that are not known must be zero.
fn check_tail(mut reader: UserSliceReader, mut left: usize) -> Result {
    let mut piece = [0_u8; 64];
    while left != 0 {
        let length = left.min(piece.len());
        let part = piece.get_mut(..length).ok_or(EINVAL)?;
        reader.read_slice(part)?;
        size::check_tail(part).map_err(registration::errno)?;
        left = left.saturating_sub(length);
    }
    Ok(())
}

/// For what has nothing to undo.
fn done(result: Result) -> core::result::Result<Pending, Failure> {
    result.map(|()| Pending::Done).map_err(Failure::from)
}

impl Request for pinmap_info {
    const NR: u32 = uapi::PINMAP_CMD_GET_INFO;
    const FIRST_SIZE: usize = size_of::<Self>();

    fn run(&mut self, context: &Arc<Context>) -> core::result::Result<Pending, Failure> {
        check_flags(self.flags)?;
        context.device().describe(context, self);
        self.out_memlock_limit = Account::limit().unwrap_or(u64::MAX);
        self.out_memlock_used = context.account().used();
        self.out_max_registrations = compat::max_registrations();
        self.out_registrations = context.registrations();
        Ok(Pending::Done)
    }
}

impl Request for pinmap_reserved {
    const NR: u32 = uapi::PINMAP_CMD_GET_RESERVED;
    const FIRST_SIZE: usize = size_of::<Self>();

    fn run(&mut self, context: &Arc<Context>) -> core::result::Result<Pending, Failure> {
        check_flags(self.flags)?;
        done(context.device().describe_reserved(context, self))
    }
}

impl Request for pinmap_get_totals {
    const NR: u32 = uapi::PINMAP_CMD_GET_TOTALS;
    const FIRST_SIZE: usize = size_of::<Self>();

    fn run(&mut self, context: &Arc<Context>) -> core::result::Result<Pending, Failure> {
        check_flags((self.flags & !uapi::PINMAP_TOTALS_CONTEXT) | self.__reserved)?;
        if self.flags & uapi::PINMAP_TOTALS_CONTEXT == 0 {
            context.device().describe_totals(self);
        } else {
            self.out_contexts = 1;
            context.ledger().totals().describe(self);
        }
        Ok(Pending::Done)
    }
}

impl Request for pinmap_register {
    const NR: u32 = uapi::PINMAP_CMD_REGISTER;
    const FIRST_SIZE: usize = size_of::<Self>();

    fn run(&mut self, context: &Arc<Context>) -> core::result::Result<Pending, Failure> {
        registration::register(context, self)
    }

    fn detail(&mut self) -> Option<&mut uapi::pinmap_fail> {
        Some(&mut self.fail)
    }
}

impl Request for pinmap_register_fd {
    const NR: u32 = uapi::PINMAP_CMD_REGISTER_FD;
    const FIRST_SIZE: usize = size_of::<Self>();

    fn run(&mut self, context: &Arc<Context>) -> core::result::Result<Pending, Failure> {
        registration::register_fd(context, self)
    }

    fn detail(&mut self) -> Option<&mut uapi::pinmap_fail> {
        Some(&mut self.fail)
    }
}

impl Request for pinmap_preflight {
    const NR: u32 = uapi::PINMAP_CMD_PREFLIGHT;
    const FIRST_SIZE: usize = size_of::<Self>();

    fn run(&mut self, context: &Arc<Context>) -> core::result::Result<Pending, Failure> {
        preflight::preflight(context, self)
    }

    fn detail(&mut self) -> Option<&mut uapi::pinmap_fail> {
        Some(&mut self.fail)
    }
}

impl Request for pinmap_generations {
    const NR: u32 = uapi::PINMAP_CMD_GENERATIONS;
    const FIRST_SIZE: usize = size_of::<Self>();

    fn run(&mut self, context: &Arc<Context>) -> core::result::Result<Pending, Failure> {
        generations::generations(context, self)
    }
}

impl Request for pinmap_release {
    const NR: u32 = uapi::PINMAP_CMD_RELEASE;
    const FIRST_SIZE: usize = size_of::<Self>();
    const ANSWERS: bool = false;

    fn run(&mut self, context: &Arc<Context>) -> core::result::Result<Pending, Failure> {
        done(registration::release(context, self))
    }
}

impl Request for pinmap_query {
    const NR: u32 = uapi::PINMAP_CMD_QUERY;
    const FIRST_SIZE: usize = 72;

    fn run(&mut self, context: &Arc<Context>) -> core::result::Result<Pending, Failure> {
        done(registration::query(context, self))
    }
}

impl Request for pinmap_map {
    const NR: u32 = uapi::PINMAP_CMD_MAP;
    const FIRST_SIZE: usize = size_of::<Self>();

    fn run(&mut self, context: &Arc<Context>) -> core::result::Result<Pending, Failure> {
        registration::map(context, self)
    }

    fn detail(&mut self) -> Option<&mut uapi::pinmap_fail> {
        Some(&mut self.fail)
    }
}

impl Request for pinmap_unmap {
    const NR: u32 = uapi::PINMAP_CMD_UNMAP;
    const FIRST_SIZE: usize = size_of::<Self>();
    const ANSWERS: bool = false;

    fn run(&mut self, context: &Arc<Context>) -> core::result::Result<Pending, Failure> {
        done(registration::unmap(context, self))
    }
}

impl Request for pinmap_set_eventfd {
    const NR: u32 = uapi::PINMAP_CMD_SET_EVENTFD;
    const FIRST_SIZE: usize = size_of::<Self>();
    const ANSWERS: bool = false;

    fn run(&mut self, context: &Arc<Context>) -> core::result::Result<Pending, Failure> {
        check_flags(self.flags | self.__reserved)?;
        match self.source {
            uapi::PINMAP_SOURCE_VECTOR => {}
            uapi::PINMAP_SOURCE_EVENTS if self.index == 0 => {}
            uapi::PINMAP_SOURCE_EVENTS => return Err(EINVAL.into()),
            _ => return Err(compat::unsupported().into()),
        }
        if self.fd < -1 {
            return Err(EBADF.into());
        }
        context.device().check_here()?;
        let eventfd = if self.fd == -1 {
            None
        } else {
            Some(EventFd::from_fd(self.fd)?)
        };
        if self.source == uapi::PINMAP_SOURCE_EVENTS {
            context.events().set_eventfd(eventfd);
            return Ok(Pending::Done);
        }
        let backend = context.device().backend();
        if !backend.has_vectors() {
            return Err(compat::unsupported().into());
        }
        if !backend.has_vector(self.index) {
            return Err(ENOENT.into());
        }
        let takes = eventfd.is_some();
        let claim = Claim::new(context)?;
        backend.set_vector(self.index, eventfd)?;
        if takes {
            claim.keep();
        }
        Ok(Pending::Done)
    }
}

impl Request for pinmap_reset {
    const NR: u32 = uapi::PINMAP_CMD_RESET;
    const FIRST_SIZE: usize = size_of::<Self>();
    const ANSWERS: bool = false;

    fn run(&mut self, context: &Arc<Context>) -> core::result::Result<Pending, Failure> {
        check_flags(self.flags)?;
        let backend = context.device().backend();
        if !backend.can_reset() {
            return Err(compat::unsupported().into());
        }
        let claim = Claim::new(context)?;
        backend.reset()?;
        claim.keep();
        Ok(Pending::Done)
    }
}

impl Request for pinmap_alloc {
    const NR: u32 = uapi::PINMAP_CMD_ALLOC;
    const FIRST_SIZE: usize = offset_of!(Self, node);

    fn run(&mut self, context: &Arc<Context>) -> core::result::Result<Pending, Failure> {
        allocation::alloc(context, self)
    }

    fn detail(&mut self) -> Option<&mut uapi::pinmap_fail> {
        Some(&mut self.fail)
    }
}

impl Request for pinmap_export {
    const NR: u32 = uapi::PINMAP_CMD_EXPORT;
    const FIRST_SIZE: usize = size_of::<Self>();

    fn run(&mut self, context: &Arc<Context>) -> core::result::Result<Pending, Failure> {
        dmabuf::export(context, self)
    }
}

impl Request for pinmap_import {
    const NR: u32 = uapi::PINMAP_CMD_IMPORT;
    const FIRST_SIZE: usize = size_of::<Self>();

    fn run(&mut self, context: &Arc<Context>) -> core::result::Result<Pending, Failure> {
        dmabuf::import(context, self)
    }
}

impl Request for pinmap_sync {
    const NR: u32 = uapi::PINMAP_CMD_SYNC;
    const FIRST_SIZE: usize = size_of::<Self>();
    const ANSWERS: bool = false;

    fn run(&mut self, context: &Arc<Context>) -> core::result::Result<Pending, Failure> {
        done(dmabuf::sync(context, self))
    }
}

/// What is for paged devices only. A module that knows none knows the calls: they are not supported.
macro_rules! paged {
    ($($request:ty, $nr:ident, $answers:literal, $answers_failure:literal,
        |$this:ident, $context:ident| $run:expr;)*) => {$(
        impl Request for $request {
            const NR: u32 = uapi::$nr;
            const FIRST_SIZE: usize = size_of::<Self>();
            const ANSWERS: bool = $answers;
            const ANSWERS_FAILURE: bool = $answers_failure;

            #[cfg(not(pinmap_flat))]
            fn run(&mut self, $context: &Arc<Context>) -> core::result::Result<Pending, Failure> {
                let $this = self;
                $run
            }

            #[cfg(pinmap_flat)]
            fn run(&mut self, _: &Arc<Context>) -> core::result::Result<Pending, Failure> {
                Err(compat::unsupported().into())
            }
        }
    )*};
}

paged! {
    pinmap_gpu_info, PINMAP_CMD_GPU_INFO, true, false, |this, context| {
        check_flags(this.flags)?;
        let gpu = context.device().backend().gpu();
        gpu.ok_or_else(compat::unsupported)?.describe(this);
        Ok(Pending::Done)
    };
    pinmap_gpu_counters, PINMAP_CMD_GPU_COUNTERS, true, false, |this, context| {
        check_flags(this.flags | this.__reserved)?;
        let gpu = context.device().backend().gpu();
        gpu.ok_or_else(compat::unsupported)?.count(this);
        Ok(Pending::Done)
    };
    pinmap_gpu_walk, PINMAP_CMD_GPU_WALK, true, false, |this, context| done(queue::walk(context, this));
    pinmap_queue_create, PINMAP_CMD_QUEUE_CREATE, true, false, |this, context| queue::create(context, this);
    pinmap_queue_destroy, PINMAP_CMD_QUEUE_DESTROY, false, false, |this, context| {
        done(queue::destroy(context, this))
    };
    pinmap_queue_wait, PINMAP_CMD_QUEUE_WAIT, true, true, |this, context| done(queue::wait(context, this));
    pinmap_queue_query, PINMAP_CMD_QUEUE_QUERY, true, false, |this, context| done(queue::query(context, this));
    pinmap_queue_submit, PINMAP_CMD_QUEUE_SUBMIT, true, false, |this, context| {
        done(queue::submit(context, this))
    };
    pinmap_queue_notify, PINMAP_CMD_QUEUE_NOTIFY, false, false, |this, context| done(queue::notify(context, this));
}

static OPERATIONS: Operations<Context> = Operations::new();

impl Files for Context {
    type Device = Device;

    fn operations() -> &'static Operations<Self> {
        &OPERATIONS
    }

    fn open(device: &Arc<Device>, views: Views) -> Result<Arc<Self>> {
        Device::open(device, views)
    }

    fn release(this: Arc<Self>) {
        this.device().close(&this);
    }

    fn ioctl(this: &Arc<Self>, command: u32, argument: UserPtr) -> Result {
        dispatch(this, command, argument)
    }

    fn read(&self, out: &mut UserSliceWriter, may_wait: bool) -> Result<usize> {
        self.events().read(out, may_wait)
    }

    fn poll(&self, file: &File, table: PollTable<'_>) -> u32 {
        self.events().poll(file, table)
    }

    fn mmap(this: ArcBorrow<'_, Self>, area: NewArea<'_>) -> Result {
        if !area.is_shared() {
            return Err(EINVAL);
        }
        if area.is_executable() {
            return Err(EACCES);
        }
        if area.offset() >= view::START {
            this.check_caller()?;
            return this.view_table().view(area);
        }
        let write_combine = this
            .device()
            .backend()
            .check_view(area.offset(), area.length())?;
        Claim::new(&this)?.keep();
        area.view_device_memory::<Self>(this.into(), write_combine);
        Ok(())
    }

    fn show(&self, out: &SeqFile) {
        show::fdinfo(self, out);
    }
}

impl Faults for Context {
    fn fault(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        self.device().backend().fault(offset, insert)
    }
}
