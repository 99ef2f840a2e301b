// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device: its state, its threads, and the accesses to it: registers, doorbells, resets. None
//! of these accesses blocks, unless [`Settings::prompt`] asks for it.

use crate::hardware::{Hardware, Settings};
use crate::posted::Write;
use crate::regs;
use crate::state::{kinds_in, Reset, State, WAKE_CONTROL, WAKE_PAGING};
use crate::{control, engine, registers};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vfio_user_device::Bus;

/// How long a read of `INV_DONE` or `PAGING_DONE` waits at most, and how long between two looks.
const PROMPT: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_micros(20);

/// The device, which works as long as it is open.
#[derive(Debug)]
pub struct Device {
    hardware: Arc<Hardware>,
    state: Mutex<State>,
    copy: Condvar,
    compute: Condvar,
    paging: Condvar,
    control: Condvar,
    /// Engines that must abandon what they hold.
    abandon: [AtomicBool; regs::ENGINE_COUNT],
}

/// A device with running threads. Dropping it ends them.
#[derive(Debug)]
pub struct Running {
    device: Arc<Device>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    /// Makes a device and starts it.
    pub fn start(settings: Settings, bus: Arc<dyn Bus>) -> io::Result<Self> {
        let hardware = Arc::new(Hardware::new(settings, bus)?);
        let device = Arc::new(Device {
            state: Mutex::new(State::new(Arc::clone(&hardware))),
            hardware,
            copy: Condvar::new(),
            compute: Condvar::new(),
            paging: Condvar::new(),
            control: Condvar::new(),
            abandon: Default::default(),
        });
        let mut running = Self {
            device,
            threads: Vec::new(),
        };
        for number in 0..regs::PACKET_ENGINE_COUNT {
            running.spawn(format!("engine-{number}"), move |device| {
                engine::run(device, number);
            })?;
        }
        running.spawn("paging".into(), engine::run_paging)?;
        running.spawn("control".into(), control::run)?;
        Ok(running)
    }

    fn spawn(
        &mut self,
        name: String,
        body: impl FnOnce(&Device) + Send + 'static,
    ) -> io::Result<()> {
        let device = Arc::clone(&self.device);
        let thread = std::thread::Builder::new().name(name);
        self.threads.push(thread.spawn(move || body(&device))?);
        Ok(())
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.device.lock().closed = true;
        self.device.abandon_all();
        for condition in [
            &self.device.copy,
            &self.device.compute,
            &self.device.paging,
            &self.device.control,
        ] {
            condition.notify_all();
        }
        for thread in self.threads.drain(..) {
            // The thread's panic has been printed already.
            let _ = thread.join();
        }
    }
}

impl Device {
    /// State that the engines share.
    pub fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    /// Reads BAR 0. An access that the manual does not allow returns all ones.
    pub fn read_register(&self, offset: u64, bytes: usize) -> u64 {
        if self.hardware.settings().prompt {
            self.wait_until_done(offset);
        }
        let mut state = self.lock();
        self.arrive(&mut state, None);
        let value = registers::read(&state, offset, bytes);
        if offset & !7 == regs::INV_FREE && state.invalidates.looked() {
            state.wake |= WAKE_CONTROL;
        }
        self.unlock(state);
        value
    }

    /// Waits until what this register tells of is done.
    fn wait_until_done(&self, offset: u64) {
        let begin = Instant::now();
        while begin.elapsed() < PROMPT {
            let mut state = self.lock();
            self.arrive(&mut state, None);
            let done = match offset & !7 {
                regs::INV_DONE => state.invalidates.is_done(),
                regs::PAGING_DONE => state.paging.is_done(),
                _ => true,
            };
            self.unlock(state);
            if done {
                break;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Reads BAR 1, which returns zero.
    pub fn read_doorbell(&self) {
        let mut state = self.lock();
        self.arrive(&mut state, None);
        self.unlock(state);
    }

    /// Writes BAR 0.
    pub fn write_register(&self, offset: u64, bytes: usize, value: u64) {
        self.write(Write {
            is_doorbell: false,
            offset,
            bytes,
            value,
        });
    }

    /// Writes BAR 1.
    pub fn write_doorbell(&self, offset: u64, bytes: usize, value: u64) {
        self.write(Write {
            is_doorbell: true,
            offset,
            bytes,
            value,
        });
    }

    fn write(&self, write: Write) {
        let mut state = self.lock();
        let is_knob = !write.is_doorbell && write.offset & !7 == regs::KNOB_POST_NS;
        if is_knob || !state.posted.post(Instant::now(), write) {
            // Takes effect after the writes that are on their way.
            self.arrive(&mut state, None);
            self.carry_out(&mut state, write);
        } else {
            state.wake |= WAKE_CONTROL;
        }
        self.unlock(state);
    }

    /// Delivers posted writes: all of them, or those that are due by the given time.
    pub(crate) fn arrive(&self, state: &mut State, now: Option<Instant>) {
        while let Some(write) = state.posted.take(now) {
            self.carry_out(state, write);
        }
    }

    fn carry_out(&self, state: &mut State, write: Write) {
        let Write {
            is_doorbell,
            offset,
            bytes,
            value,
        } = write;
        if !is_doorbell {
            registers::write(self, state, offset, bytes, value);
            return;
        }
        let queue = usize::try_from(offset / regs::PAGE).unwrap_or(usize::MAX);
        let heard = offset % regs::PAGE == 0
            && bytes == 8
            && queue < regs::QUEUE_COUNT
            && state.ring(queue, value);
        let counter = match heard {
            true => regs::DOORBELL_WRITES,
            false => regs::IGNORED_DOORBELLS,
        };
        self.hardware.counters.add(counter, 1);
    }

    /// Begins a reset.
    pub fn reset(&self, reset: Reset) {
        let mut state = self.lock();
        self.arrive(&mut state, None);
        self.begin_reset(&mut state, reset);
        self.unlock(state);
    }

    pub(crate) fn begin_reset(&self, state: &mut State, reset: Reset) {
        state.resetting = state.resetting.max(Some(reset));
        state.wake |= WAKE_CONTROL;
        self.abandon_all();
    }

    fn abandon_all(&self) {
        for flag in &self.abandon {
            flag.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn abandon(&self, engine: usize) -> &AtomicBool {
        &self.abandon[engine]
    }

    pub(crate) fn end_reset(&self, state: &mut State) {
        for flag in &self.abandon {
            flag.store(state.closed, Ordering::Relaxed);
        }
        state.resetting = None;
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the lock and wakes up the threads that now have something to do.
    pub(crate) fn unlock(&self, mut state: MutexGuard<'_, State>) {
        let wake = std::mem::take(&mut state.wake);
        drop(state);
        if wake & kinds_in(regs::CLASS_COPY) != 0 {
            // The packet decides which of them can execute it.
            self.copy.notify_all();
        }
        for (bit, condition) in [
            (regs::CLASS_COMPUTE, &self.compute),
            (WAKE_PAGING, &self.paging),
            (WAKE_CONTROL, &self.control),
        ] {
            if wake & bit != 0 {
                condition.notify_one();
            }
        }
    }

    /// Waits to be woken up as an engine of this class, as the paging engine, or as the control
    /// thread.
    pub(crate) fn wait(&self, state: MutexGuard<'_, State>, who: u64, until: Option<Instant>) {
        let condition = match who {
            regs::CLASS_COPY => &self.copy,
            regs::CLASS_COMPUTE => &self.compute,
            WAKE_PAGING => &self.paging,
            _ => &self.control,
        };
        match until {
            None => drop(
                condition
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
            ),
            Some(until) => {
                let time = until.saturating_duration_since(Instant::now());
                drop(
                    condition
                        .wait_timeout(state, time)
                        .unwrap_or_else(PoisonError::into_inner),
                );
            }
        }
    }
}
