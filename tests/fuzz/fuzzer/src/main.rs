// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds programs of calls that reach code of the driver that no other has reached, until one does
//! what must never happen.
//!
//! usage: fuzzer --seconds N --out FOLDER CORPUS...
//!
//! In FOLDER it writes `corpus/`, the programs that reached something new; `finds/`, the programs
//! after which something was wrong, with what it was; `progress.csv`, a line each ten seconds
//! (seconds, programs, programs that are kept, instructions reached), and `reached`, the
//! instructions of the driver that were reached, as distances from its beginning. After a find it
//! ends with status 10: the machine is no longer sound.

mod change;

use change::Changer;
use libafl::corpus::{Corpus, CorpusId, InMemoryCorpus};
use libafl::events::SimpleEventManager;
use libafl::executors::{Executor, ExitKind, HasObservers};
use libafl::feedbacks::MaxMapFeedback;
use libafl::inputs::Input;
use libafl::monitors::NopMonitor;
use libafl::mutators::{MutationResult, Mutator};
use libafl::observers::{CanTrack, ExplicitTracking, StdMapObserver};
use libafl::schedulers::{IndexesLenTimeMinimizerScheduler, QueueScheduler};
use libafl::stages::StdMutationalStage;
use libafl::state::{HasCorpus, HasExecutions, HasRand, StdState, UsesState};
use libafl::{Evaluator, Fuzzer, StdFuzzer};
use libafl_bolts::rands::{Rand, StdRand};
use libafl_bolts::tuples::{tuple_list, RefIndexable};
use libafl_bolts::{HasLen, Named};
use play::{Outcome, Player, Program};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Pairs of instructions that can be told apart.
const MAP: usize = 1 << 16;
/// Bytes that the driver's code has at most, with what the compiler adds for KASAN and KCOV.
const MOST_CODE: usize = 32 << 20;
/// Calls that take long.
const DEAR: [&str; 5] = ["bind", "unbind", "reset", "module", "swap"];
/// One of so many programs with such a call is played.
const DEAR_ONES: NonZeroUsize = NonZeroUsize::new(8).unwrap();
/// The programs that are written down with a find: a leak is seen only each sixteenth program.
const RECENT: usize = 18;

#[derive(Debug, Clone, Hash)]
struct Calls(Program);

impl Serialize for Calls {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Calls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

impl HasLen for Calls {
    fn len(&self) -> usize {
        self.0.steps.len()
    }
}

impl Input for Calls {
    fn generate_name(&self, _: Option<CorpusId>) -> String {
        name(&self.0)
    }
}

fn name(program: &Program) -> String {
    let mut hasher = DefaultHasher::new();
    program.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

type State = StdState<Calls, InMemoryCorpus<Calls>, StdRand, InMemoryCorpus<Calls>>;
type Map = ExplicitTracking<StdMapObserver<'static, u8, false>, true, false>;

/// Plays an input, and writes down what it reached.
struct Playing {
    player: Player,
    observers: (Map, ()),
    recent: VecDeque<String>,
    /// Whether an instruction was reached, by its distance from the beginning of the code.
    reached: Vec<bool>,
    /// Where the driver's code is, and how long.
    texts: Texts,
    /// The program that is played. The machine may end before it has.
    current: fs::File,
    out: PathBuf,
}

impl UsesState for Playing {
    type State = State;
}

impl HasObservers for Playing {
    type Observers = (Map, ());

    fn observers(&self) -> RefIndexable<&Self::Observers, Self::Observers> {
        RefIndexable::from(&self.observers)
    }

    fn observers_mut(&mut self) -> RefIndexable<&mut Self::Observers, Self::Observers> {
        RefIndexable::from(&mut self.observers)
    }
}

impl<EM: UsesState<State = State>, Z: UsesState<State = State>> Executor<EM, Z> for Playing {
    /// Plays a program. A find is an error, so that nothing else is played.
    fn run_target(
        &mut self,
        _: &mut Z,
        state: &mut State,
        _: &mut EM,
        input: &Calls,
    ) -> Result<ExitKind, libafl::Error> {
        *state.executions_mut() += 1;
        self.recent.push_back(input.0.to_string());
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        self.write_current()?;
        let outcome = self.player.play(&input.0, false)?;
        if input
            .0
            .steps
            .iter()
            .any(|step| step.what().name == "module")
        {
            self.texts.look();
        }
        let map: &mut [u8] = self.observers.0.as_mut();
        self.player.coverage(|reached| {
            let mut before = 0;
            for at in reached.iter().filter_map(|at| self.texts.distance(*at)) {
                let pair = (at ^ before).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
                let count = &mut map[pair as usize % MAP];
                *count = count.saturating_add(1);
                before = at >> 1;
                if let Some(is) = self.reached.get_mut(at as usize) {
                    *is = true;
                }
            }
        });
        for count in map {
            *count = class(*count);
        }
        match outcome {
            Outcome::Fine => Ok(ExitKind::Ok),
            Outcome::Found(what) => {
                self.write_find(&input.0, &what)?;
                Err(libafl::Error::shutting_down())
            }
        }
    }
}

/// Whether a find has ended a part of the run.
fn is_find<T>(result: Result<T, libafl::Error>) -> Result<bool, libafl::Error> {
    match result {
        Err(libafl::Error::ShuttingDown) => Ok(true),
        result => result.map(|_| false),
    }
}

/// The class of a count: one of a larger class is something new.
fn class(count: u8) -> u8 {
    match count {
        0..=3 => count,
        4..=7 => 4,
        8..=15 => 5,
        16..=31 => 6,
        32..=127 => 7,
        _ => 8,
    }
}

impl Playing {
    /// Writes down the program that is about to be played. As one write: each takes a while from a
    /// virtual machine.
    fn write_current(&mut self) -> std::io::Result<()> {
        let before = self
            .recent
            .len()
            .checked_sub(2)
            .map(|at| self.recent[at].len());
        let mut text = self.recent[self.recent.len() - 1].clone();
        // Lines of the last one that reach further are erased.
        let rest = before.unwrap_or(0).saturating_sub(text.len());
        text.extend(std::iter::repeat_n('\n', rest));
        self.current.write_all_at(text.as_bytes(), 0)
    }

    fn write_find(&self, program: &Program, what: &str) -> std::io::Result<()> {
        println!("{what}\n{program}");
        let mut text = format!("// {what}\n{program}");
        text.push_str("\n// The programs before it, the last one first:\n");
        for program in self.recent.iter().rev().skip(1) {
            text.push_str("//\n");
            for line in program.lines() {
                text.push_str(&format!("// {line}\n"));
            }
        }
        fs::write(self.out.join("finds").join(name(program) + ".c"), text)
    }
}

/// Changes inputs.
struct Changes;

impl Named for Changes {
    fn name(&self) -> &Cow<'static, str> {
        &Cow::Borrowed("changes")
    }
}

impl Mutator<Calls, State> for Changes {
    fn mutate(
        &mut self,
        state: &mut State,
        input: &mut Calls,
    ) -> Result<MutationResult, libafl::Error> {
        let ids: Vec<CorpusId> = state.corpus().ids().collect();
        let other = match state.rand_mut().choose(ids) {
            Some(id) => state.corpus().cloned_input_for_id(id).ok(),
            None => None,
        };
        let mut changer = Changer {
            rand: state.rand_mut(),
        };
        changer.change(&mut input.0, other.as_ref().map(|other| &other.0));
        // One of these takes as long as several others.
        let is_dear = input
            .0
            .steps
            .iter()
            .any(|step| DEAR.contains(&step.what().name));
        if is_dear && state.rand_mut().below(DEAR_ONES) != 0 {
            return Ok(MutationResult::Skipped);
        }
        Ok(MutationResult::Mutated)
    }
}

struct Options {
    seconds: u64,
    out: PathBuf,
    corpora: Vec<PathBuf>,
}

impl Options {
    fn parse() -> Result<Self, Box<dyn Error>> {
        let mut options = Self {
            seconds: 60,
            out: PathBuf::new(),
            corpora: Vec::new(),
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match &*arg {
                "--seconds" => options.seconds = args.next().ok_or("--seconds N")?.parse()?,
                "--out" => options.out = args.next().ok_or("--out FOLDER")?.into(),
                _ => options.corpora.push(arg.into()),
            }
        }
        Ok(options)
    }
}

/// The programs in a folder.
fn programs(folder: &Path) -> Vec<Program> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| fs::read_to_string(entry.path()).ok()?.parse().ok())
        .collect()
}

/// Where the driver's code is and was: it is somewhere else when the module was loaded again.
#[derive(Default)]
struct Texts(Vec<Range<u64>>);

impl Texts {
    /// Looks where the code is now.
    fn look(&mut self) {
        let read = |name: &str| fs::read_to_string(format!("/sys/module/pinmap/{name}"));
        let begin = read("sections/.text").unwrap_or_default();
        let begin = u64::from_str_radix(begin.trim().trim_start_matches("0x"), 16).unwrap_or(0);
        let length: u64 = read("coresize").map_or(0, |size| size.trim().parse().unwrap_or(0));
        self.0.insert(0, begin..begin.saturating_add(length));
        // The last one is where the program before this one left it.
        self.0.truncate(2);
    }

    /// The distance of an instruction from the beginning of the code.
    fn distance(&self, at: u64) -> Option<u64> {
        let text = self.0.iter().find(|text| text.contains(&at));
        text.map(|text| at - text.start)
    }
}

fn run() -> Result<bool, Box<dyn Error>> {
    let options = Options::parse()?;
    for folder in ["corpus", "finds"] {
        fs::create_dir_all(options.out.join(folder))?;
    }
    let seed = libafl_bolts::current_nanos();
    let player = Player::new(seed as u32)?;
    let map = StdMapObserver::owned("reached", vec![0u8; MAP]).track_indices();
    let mut feedback = MaxMapFeedback::new(&map);
    let mut state: State = StdState::new(
        StdRand::with_seed(seed),
        InMemoryCorpus::new(),
        InMemoryCorpus::new(),
        &mut feedback,
        &mut (),
    )?;
    let scheduler = IndexesLenTimeMinimizerScheduler::new(&map, QueueScheduler::new());
    let mut fuzzer = StdFuzzer::new(scheduler, feedback, ());
    let mut manager = SimpleEventManager::new(NopMonitor::new());
    let mut playing = Playing {
        player,
        observers: tuple_list!(map),
        recent: VecDeque::new(),
        reached: vec![false; MOST_CODE],
        texts: Texts::default(),
        current: fs::File::create(options.out.join("current"))?,
        out: options.out.clone(),
    };
    playing.texts.look();
    let begun = Instant::now();
    let mut reported = Instant::now();
    let mut progress = fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(options.out.join("progress.csv"))?;
    let mut report = |state: &State, playing: &Playing| -> std::io::Result<()> {
        let (seconds, programs) = (begun.elapsed().as_secs(), *state.executions());
        let reached = || (0..MOST_CODE).filter(|at| playing.reached[*at]);
        let (kept, number) = (state.corpus().count(), reached().count());
        writeln!(progress, "{seconds},{programs},{kept},{number}")?;
        println!("# {seconds} s: {programs} programs, {kept} kept, {number} instructions reached");
        let mut lines = String::new();
        for at in reached() {
            let _ = writeln!(lines, "{at:#x}");
        }
        fs::write(playing.out.join("reached"), lines)
    };

    let mut seeds: Vec<Program> = options
        .corpora
        .iter()
        .flat_map(|path| programs(path))
        .collect();
    seeds.extend((0..16).map(|_| {
        Changer {
            rand: state.rand_mut(),
        }
        .new_program()
    }));
    for program in seeds {
        let program = Calls(program);
        if is_find(fuzzer.evaluate_input(&mut state, &mut playing, &mut manager, program))? {
            return Ok(false);
        }
    }
    let mut stages = tuple_list!(StdMutationalStage::with_max_iterations(
        Changes,
        const { NonZeroUsize::new(32).unwrap() }
    ));
    let (mut kept, mut found) = (0, false);
    while begun.elapsed() < Duration::from_secs(options.seconds) && !found {
        found = is_find(fuzzer.fuzz_one(&mut stages, &mut playing, &mut state, &mut manager))?;
        let ids: Vec<CorpusId> = state.corpus().ids().skip(kept).collect();
        kept += ids.len();
        for id in ids {
            let program = state.corpus().cloned_input_for_id(id)?.0;
            let path = options.out.join("corpus").join(name(&program) + ".c");
            if !path.exists() {
                fs::write(path, program.to_string())?;
            }
        }
        if reported.elapsed() > Duration::from_secs(10) {
            reported = Instant::now();
            report(&state, &playing)?;
        }
    }
    report(&state, &playing)?;
    Ok(!found)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(10),
        Err(error) => {
            eprintln!("fuzzer: {error}");
            ExitCode::from(2)
        }
    }
}
