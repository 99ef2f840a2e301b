// SPDX-License-Identifier: MIT OR Apache-2.0
//! The player and its server.

use crate::actor::{Stage, VALUES};
use crate::calls::{How, World};
use crate::cast::{in_a_row, kill, Cast};
use crate::memory::{Others, Pattern, POOL, POOL_LENGTH};
use crate::oracle::Oracle;
use crate::program::{Program, Step, Value, ACTORS, MOST_STEPS};
use crate::sys;
use crate::world::{join_cgroup, Machine};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// A post that ends its thread.
pub(crate) const STOP: u32 = u32::MAX;
/// Words in the kernel's record of what a thread executed.
const AREA: usize = 32 << 10;
/// How long a step may take before the next one begins, for people and for the fuzzer.
const STEP: Duration = Duration::from_millis(1500);
const QUICK_STEP: Duration = Duration::from_millis(100);
/// How long a process may take to end.
const END: Duration = Duration::from_secs(60);
/// The ordinary user that programs run as.
pub(crate) const USER: u32 = 1000;

/// Memory that the server shares with a program's processes.
pub(crate) struct Shared {
    /// For each thread: the first of the steps that it is to make, from 0 on.
    pub(crate) first: [AtomicU32; ACTORS],
    /// For each thread: the last of these steps, from 1 on, or [`STOP`].
    pub(crate) post: [AtomicU32; ACTORS],
    /// For each thread: the last step that it has made, from 1 on.
    pub(crate) done: [AtomicU32; ACTORS],
    /// Changes when a step has ended.
    pub(crate) ended: AtomicU32,
    /// For each thread: its id.
    pub(crate) threads: [AtomicU32; ACTORS],
    /// Whether there is a second process.
    pub(crate) second: AtomicU32,
    /// The results of each step.
    pub(crate) values: [[AtomicU64; VALUES]; MOST_STEPS],
    found: AtomicU32,
    text: [AtomicU8; 256],
}

impl Shared {
    /// Tells the player that something is wrong. The first text counts.
    pub(crate) fn find(&self, text: &str) {
        if self.found.swap(1, Ordering::SeqCst) == 0 {
            for (to, byte) in self.text.iter().zip(text.bytes()) {
                to.store(byte, Ordering::SeqCst);
            }
        }
    }

    fn found(&self) -> Option<String> {
        let bytes = self.text.iter().map(|byte| byte.load(Ordering::SeqCst));
        let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        (self.found.load(Ordering::SeqCst) != 0)
            .then(|| String::from_utf8_lossy(&bytes).into_owned())
    }

    fn clear(&self) {
        let words = [&self.ended, &self.second, &self.found];
        let each = self
            .first
            .iter()
            .chain(&self.post)
            .chain(&self.done)
            .chain(&self.threads)
            .chain(words);
        each.for_each(|word| word.store(0, Ordering::SeqCst));
        self.values
            .iter()
            .flatten()
            .for_each(|value| value.store(0, Ordering::SeqCst));
        self.text
            .iter()
            .for_each(|byte| byte.store(0, Ordering::SeqCst));
    }
}

/// The outcome of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is wrong.
    Fine,
    /// Something is wrong.
    Found(String),
}

/// Plays programs.
pub struct Player {
    server: UnixStream,
    process: libc::pid_t,
    areas: Vec<*const u64>,
}

impl Drop for Player {
    /// Waits until the server has left the devices as they were.
    fn drop(&mut self) {
        let _ = self.server.shutdown(Shutdown::Both);
        // SAFETY: No status is wanted.
        unsafe { libc::waitpid(self.process, std::ptr::null_mut(), 0) };
    }
}

impl fmt::Debug for Player {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Player").finish_non_exhaustive()
    }
}

impl Player {
    /// Starts a server, whose patterns have numbers from `first` on. To be called while the process
    /// is small and has one thread, because the server is forked from it.
    pub fn new(first: u32) -> io::Result<Self> {
        let files = coverage_files()?;
        let mut areas = Vec::new();
        for file in &files {
            let area = sys::map(0, AREA * 8, libc::MAP_SHARED, file.as_raw_fd())?;
            areas.push(area.cast::<u64>().cast_const());
        }
        let (server, other) = UnixStream::pair()?;
        let shared = sys::map_shared(std::mem::size_of::<Shared>())?.cast::<Shared>();
        // SAFETY: The process has one thread, by the function's description.
        let process = unsafe { libc::fork() };
        if process < 0 {
            return Err(io::Error::last_os_error());
        }
        if process == 0 {
            drop(server);
            // SAFETY: The mapping is never unmapped, and zeros are a value of the type, whose parts
            // are all atomic.
            let shared = unsafe { &*shared };
            let result = Server::new(other, shared, files, &areas, first).and_then(Server::serve);
            if let Err(error) = &result {
                eprintln!("play: the server ends: {error}");
            }
            std::process::exit(result.is_err().into());
        }
        Ok(Self {
            server,
            process,
            areas,
        })
    }

    /// Plays a program. With `all`, looks at everything that could be wrong afterwards.
    pub fn play(&mut self, program: &Program, all: bool) -> io::Result<Outcome> {
        let text = program.to_string();
        let mut message = vec![u8::from(all)];
        message.extend(&(text.len() as u32).to_le_bytes());
        message.extend(text.as_bytes());
        self.server.write_all(&message)?;
        let found = receive(&mut self.server)?;
        Ok(match found.is_empty() {
            true => Outcome::Fine,
            false => Outcome::Found(String::from_utf8_lossy(&found).into_owned()),
        })
    }

    /// Calls a function with what each thread, and the driver's own ones, executed in the last
    /// program: addresses of instructions of the driver, in order.
    pub fn coverage(&self, mut each: impl FnMut(&[u64])) {
        for area in &self.areas {
            // SAFETY: The mapping has AREA words, the first of which counts those that follow. The
            // kernel writes no more: the program has ended.
            let words = unsafe {
                let count = area.read_volatile() as usize;
                std::slice::from_raw_parts(area.add(1), count.min(AREA - 1))
            };
            each(words);
        }
    }
}

fn receive(from: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Opens a record of coverage for each thread and one for the driver's own threads; none where the
/// kernel has no KCOV.
fn coverage_files() -> io::Result<Vec<OwnedFd>> {
    const KCOV_INIT_TRACE: u64 = 0x8008_6301;
    let mut files = Vec::new();
    for _ in 0..=ACTORS {
        match sys::open("/sys/kernel/debug/kcov", libc::O_RDWR) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            file => files.push(sys::keep(file?)?),
        }
    }
    for file in &files {
        // SAFETY: The request takes a number.
        let result = unsafe {
            let fd = file.as_raw_fd() as u64;
            sys::syscall(libc::SYS_ioctl, [fd, KCOV_INIT_TRACE, AREA as u64, 0, 0, 0])
        };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result as i32));
        }
    }
    Ok(files)
}

struct Server<'a> {
    player: UnixStream,
    shared: &'a Shared,
    machine: Machine,
    oracle: Oracle,
    areas: Vec<OwnedFd>,
    counts: Vec<*mut u64>,
    sockets: [i32; 2],
    next: u32,
}

impl<'a> Server<'a> {
    fn new(
        player: UnixStream,
        shared: &'a Shared,
        areas: Vec<OwnedFd>,
        counts: &[*const u64],
        first: u32,
    ) -> io::Result<Self> {
        let machine = Machine::new()?;
        machine.permit();
        if let Some(own) = areas.get(ACTORS) {
            record_others(own)?;
        }
        let oracle = Oracle::new(&machine.all_nodes())?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        sys::map(POOL, POOL_LENGTH as usize, flags | libc::MAP_NORESERVE, -1)?;
        let limit = libc::rlimit {
            rlim_cur: 64 << 20,
            rlim_max: 64 << 20,
        };
        // SAFETY: The limit is valid; the other call has no pointers.
        unsafe {
            libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit);
            libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        }
        sys::block_sigchld();
        // SAFETY: The descriptor is the server's.
        let player = sys::keep(unsafe { OwnedFd::from_raw_fd(player.into_raw_fd()) })?.into();
        let counts = counts.iter().map(|area| area.cast_mut()).collect();
        Ok(Self {
            player,
            shared,
            machine,
            oracle,
            areas,
            counts,
            sockets: [-1; 2],
            next: first,
        })
    }

    fn serve(mut self) -> io::Result<()> {
        loop {
            let mut all = [0];
            if self.player.read(&mut all)? == 0 {
                self.oracle.leave();
                self.machine.leave();
                return Ok(());
            }
            let text = receive(&mut self.player)?;
            let program: Program = String::from_utf8_lossy(&text)
                .parse()
                .map_err(|error: crate::program::ParseError| io::Error::other(error.to_string()))?;
            let found = self.play(&program, all[0] != 0)?.unwrap_or_default();
            self.player.write_all(&(found.len() as u32).to_le_bytes())?;
            self.player.write_all(found.as_bytes())?;
        }
    }

    fn play(&mut self, program: &Program, all: bool) -> io::Result<Option<String>> {
        self.shared.clear();
        for area in &self.counts {
            // SAFETY: The first word of the record is a count that its reader may change.
            unsafe { area.write_volatile(0) };
        }
        let (one, two) = UnixStream::pair()?;
        let sockets = [sys::keep(one.into())?, sys::keep(two.into())?];
        self.sockets = [sockets[0].as_raw_fd(), sockets[1].as_raw_fd()];
        let pattern = Pattern { program: self.next };
        self.next = self.next.wrapping_add(1);
        let nodes = self.machine.nodes();
        let has = |name: &str| program.steps.iter().any(|step| step.what().name == name);
        if has("module") {
            // Open devices would hold it, here and in the program's processes.
            self.oracle.leave();
        }
        // SAFETY: The server has one thread.
        let first = match unsafe { libc::fork() } {
            0 => {
                if has("limit") {
                    let _ = join_cgroup();
                }
                become_user();
                let stage = Stage {
                    program,
                    shared: self.shared,
                    pattern,
                    nodes: &nodes,
                    areas: &self.areas,
                    sockets: &self.sockets,
                };
                stage.process(0)
            }
            process => process,
        };
        drop(sockets);
        let mut acts = Vec::new();
        let mut others = Vec::new();
        let mut cast = Cast {
            step: if all { STEP } else { QUICK_STEP },
            late: [false; ACTORS],
            shared: self.shared,
            first,
            dead: [false; 2],
            ended: Vec::new(),
            empty: false,
        };
        let mut index = 0;
        while let Some(step) = program.steps.get(index) {
            if let How::World(world) = step.what().how {
                if let (World::Use, Some(Value::Number(pages))) = (world, step.args.first()) {
                    others.push(Others::new(*pages)?);
                } else {
                    self.act(world, step, &mut cast);
                    acts.push(world);
                }
                index += 1;
            } else {
                let count = in_a_row(&program.steps[index..]);
                cast.steps(index, &program.steps[index..index + count]);
                index += count;
            }
        }
        let ended = self.end(&mut cast);
        // A device that does not acknowledge for long is given up, which ends when it is reset.
        if acts.contains(&World::Knob) && self.oracle.is_one_gone() {
            acts.push(World::Reset);
        }
        for world in &acts {
            if let Err(wrong) = self.machine.restore(*world) {
                return Ok(Some(wrong));
            }
        }
        let rebinds = [World::Unbind, World::Bind, World::Reset, World::Module];
        // Some faults come to light only when nobody has the device, or when a page that was freed
        // is used again.
        let is_thorough = all || self.next % 16 == 0;
        if is_thorough || acts.iter().any(|world| rebinds.contains(world)) {
            if let Err(error) = self.oracle.watch(&self.machine.all_nodes()) {
                return Ok(Some(format!("a device cannot be opened any more: {error}")));
            }
        }
        if !ended {
            return Ok(Some("a process does not end".to_owned()));
        }
        if let Some((at, word)) = others.iter().find_map(Others::changed) {
            let what = format!("memory of another user has {word:#x} at its byte {at:#x}");
            return Ok(Some(what));
        }
        if is_thorough {
            drop(Others::new(512)?);
        }
        Ok(self.shared.found().or_else(|| self.oracle.judge(all)))
    }

    fn act(&self, world: World, step: &Step, cast: &mut Cast<'_>) {
        let number = |value: Option<&Value>| match value {
            Some(Value::Number(number)) => *number,
            _ => 0,
        };
        let args = [number(step.args.first()), number(step.args.get(1))];
        let thread = self.shared.threads[args[0] as usize % ACTORS].load(Ordering::SeqCst);
        match world {
            World::Kill => cast.kill(usize::from(args[0] != 0)),
            World::Signal => kill(thread as libc::pid_t, libc::SIGUSR1),
            World::Knob => self.machine.act(world, args),
            World::Use => {}
            _ => {
                // SAFETY: The server has one thread.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    self.machine.act(world, args);
                    // SAFETY: Nothing needs to be done at the end of the process.
                    unsafe { libc::_exit(0) };
                }
                // Also where the program's processes have ended.
                cast.empty = false;
                if !step.nowait {
                    let _ = cast.wait(cast.step, |cast| cast.ended.contains(&child));
                }
            }
        }
    }

    /// Ends the program's processes; tells whether they have ended.
    fn end(&self, cast: &mut Cast<'_>) -> bool {
        for actor in 0..ACTORS {
            // A thread that is in a call is ended with its process.
            let _ = cast.wait(Duration::from_millis(20), |cast| cast.is_idle(actor));
            sys::advance(&self.shared.post[actor], STOP);
        }
        let begun = Instant::now();
        while !cast.empty {
            if begun.elapsed() > END {
                return false;
            }
            if begun.elapsed() > Duration::from_millis(20) {
                cast.kill(0);
                cast.kill(1);
                // Knobs that hold an answer back would hold the end back, too.
                let _ = self.machine.restore(World::Knob);
            }
            if cast.reap().is_none() && !cast.empty {
                sys::wait_for_child(Duration::from_millis(20));
            }
        }
        true
    }
}

fn become_user() {
    // SAFETY: The calls have no pointers but to an array that is there.
    unsafe {
        libc::setpgid(0, 0);
        libc::setgroups(0, std::ptr::null());
        libc::setresgid(USER, USER, USER);
        libc::setresuid(USER, USER, USER);
        // Otherwise the files in /proc are root's.
        libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
    }
}

/// Has the kernel record what the driver's own threads do for the server's children.
fn record_others(area: &OwnedFd) -> io::Result<()> {
    #[repr(C)]
    struct Remote {
        trace_mode: u32,
        area_size: u32,
        num_handles: u32,
        padding: u32,
        common_handle: u64,
    }
    const KCOV_REMOTE_ENABLE: u64 = 0x4018_6366;
    let mut remote = Remote {
        trace_mode: 0,
        area_size: AREA as u32 / 2,
        num_handles: 0,
        padding: 0,
        common_handle: 1,
    };
    match sys::ioctl(area.as_raw_fd(), KCOV_REMOTE_ENABLE, &mut remote) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error as i32)),
    }
}
