// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model of AMD's DMA/Bridge Subsystem for PCI Express, with a design behind it. `XDMA.md` says
//! what is modelled; the core's manual is PG195.

#![forbid(unsafe_code)]

mod engine;
mod registers;
mod state;
mod stream;

use registers::{MSIX_PENDING, MSIX_TABLE};
use state::State;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use vfio_user_device::{answer, memory_file, number, Bar, Bus, Function, Identity, Mapping, Msix};

/// The BAR of the design's registers, of the core's, and of the AXI memory.
const USER: u32 = 0;
const CORE: u32 = 1;
const BYPASS: u32 = 2;

const USER_SIZE: u64 = 4096;
const CORE_SIZE: u64 = 64 << 10;

/// AXI addresses at which each access ends with a slave error.
const SLAVE_ERROR: Range<u64> = 0x8000_0000..0x8000_1000;

/// How the core is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Channels in each direction, 1 to 4.
    pub pairs: usize,
    /// Whether the channels are streams, each pair a loop; otherwise they reach the AXI memory.
    pub stream: bool,
    /// Bytes of AXI memory, a power of two.
    pub memory: u64,
    /// Alignment of source and target addresses: a power of two, at most 64.
    pub alignment: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pairs: 2,
            stream: false,
            memory: 4 << 20,
            alignment: 1,
        }
    }
}

impl Options {
    /// The register that tells alignment, granularity, and the bits of addresses.
    fn alignments(&self) -> u32 {
        let unit = self.alignment as u32;
        (unit << 16) | (unit << 8) | 64
    }
}

/// The card. Dropping it ends its threads.
#[derive(Debug)]
pub struct Xdma {
    shared: Arc<Shared>,
    engines: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    bus: Arc<dyn Bus>,
    options: Options,
    memory: Mapping,
    state: Mutex<State>,
    /// There may be something to do.
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let woken = self.changed.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Xdma {
    /// Makes a card on a bus, and starts its engines.
    pub fn start(bus: Arc<dyn Bus>, options: Options) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            bus,
            options,
            memory: Mapping::new(memory_file(c"axi", options.memory)?, options.memory)?,
            state: Mutex::new(State::new(options)),
            changed: Condvar::new(),
        });
        let mut card = Self {
            shared,
            engines: Vec::new(),
        };
        for index in 0..2 * options.pairs {
            let shared = Arc::clone(&card.shared);
            let thread = std::thread::Builder::new().name(format!("engine-{index}"));
            card.engines.push(thread.spawn(move || shared.run(index))?);
        }
        Ok(card)
    }

    /// Registers are accessed as words.
    fn is_word(at: u64, bytes: usize) -> bool {
        bytes == 4 && at % 4 == 0
    }
}

impl Drop for Xdma {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        for engine in self.engines.drain(..) {
            // The thread's panic has been printed already.
            let _ = engine.join();
        }
    }
}

impl Function for Xdma {
    fn identity(&self) -> Identity {
        Identity {
            vendor: 0x10ee,
            device: 0x9038,
            subsystem_vendor: 0x10ee,
            subsystem: 7,
            class: 0x05_8000, // another kind of memory
            revision: 0,
            vectors: 32,
        }
    }

    fn bar(&self, number: u32) -> Bar<'_> {
        match number {
            USER => Bar::registers(USER_SIZE),
            CORE => Bar::registers(CORE_SIZE),
            BYPASS => Bar::registers(self.shared.options.memory),
            _ => Bar::default(),
        }
    }

    fn msix(&self) -> Msix {
        Msix {
            bar: CORE,
            table: MSIX_TABLE,
            pending: MSIX_PENDING,
        }
    }

    fn read(&self, bar: u32, offset: u64, to: &mut [u8]) {
        let is_word = Self::is_word(offset, to.len());
        let mut state = self.shared.lock();
        let value = match bar {
            BYPASS => {
                drop(state);
                self.shared.memory.read(offset, to);
                return;
            }
            _ if state.is_dead() => u64::MAX,
            _ if !is_word => {
                state.forbid(&format!("{} bytes are read at {offset:#x}", to.len()));
                u64::MAX
            }
            USER => state.read_board(offset).into(),
            _ => state.read(offset).into(),
        };
        // A read can clear a status.
        state.interrupt(&*self.shared.bus);
        drop(state);
        answer(to, value);
    }

    fn write(&self, bar: u32, offset: u64, from: &[u8]) {
        let value = number(from) as u32;
        let mut state = self.shared.lock();
        match bar {
            BYPASS => {
                drop(state);
                self.shared.memory.write(offset, from);
                return;
            }
            _ if state.is_dead() => {}
            _ if !Self::is_word(offset, from.len()) => {
                state.forbid(&format!("{} bytes are written at {offset:#x}", from.len()));
            }
            USER => state.write_board(offset, value),
            _ => state.write(offset, value),
        }
        state.interrupt(&*self.shared.bus);
        drop(state);
        self.shared.changed.notify_all();
    }

    fn reset(&self) {
        self.shared.lock().reset();
        self.shared.changed.notify_all();
    }
}
