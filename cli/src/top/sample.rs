// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples: what sysfs and fdinfo say of devices and open files at one moment.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

/// Where the numbers are: those of the system, or made-up ones in a test.
pub(super) struct Roots {
    pub(super) sys: PathBuf,
    pub(super) proc: PathBuf,
}

/// A device, with bytes and counts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct DeviceSample {
    pub(super) device: String,
    pub(super) kind: String,
    pub(super) contexts: u64,
    pub(super) pinned: u64,
    pub(super) mapped: u64,
    /// The rest is of paged devices.
    pub(super) managed: Option<u64>,
    pub(super) queues: Option<u64>,
    pub(super) vram: Option<u64>,
    pub(super) vram_free: Option<u64>,
    pub(super) faults_served: Option<u64>,
    pub(super) faults_failed: Option<u64>,
    /// Since the sample before.
    pub(super) faults_per_second: Option<f64>,
}

/// An open file of the driver, with bytes and counts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ContextSample {
    /// A process that has it open.
    pub(super) pid: u32,
    pub(super) command: String,
    /// Address of the PCI function.
    pub(super) pci: String,
    /// Number of the context, unique for the function.
    pub(super) client: u64,
    pub(super) pinned: u64,
    pub(super) allocated: u64,
    pub(super) vram: u64,
    pub(super) shared: u64,
    pub(super) mapped: u64,
    pub(super) managed: u64,
    pub(super) faults_served: u64,
    pub(super) faults_failed: u64,
    /// Since the sample before.
    pub(super) faults_per_second: Option<f64>,
}

/// Everything at one moment.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Sample {
    #[serde(skip)]
    taken: Instant,
    pub(super) devices: Vec<DeviceSample>,
    /// Contexts of processes that this user may look at.
    pub(super) contexts: Vec<ContextSample>,
    /// Processes of which this user may not see the open files.
    pub(super) hidden_processes: usize,
}

impl Roots {
    pub(super) fn system() -> Self {
        Self {
            sys: "/sys".into(),
            proc: "/proc".into(),
        }
    }

    /// Takes a sample, with the rates since an earlier one.
    pub(super) fn sample(&self, before: Option<&Sample>) -> io::Result<Sample> {
        let taken = Instant::now();
        let mut devices = self.devices()?;
        let (mut contexts, hidden_processes) = self.contexts()?;
        if let Some(before) = before {
            let seconds = taken.duration_since(before.taken).as_secs_f64();
            let rate = |now: u64, then: u64| Some(now.saturating_sub(then) as f64 / seconds);
            for device in &mut devices {
                let then = before
                    .devices
                    .iter()
                    .find(|then| then.device == device.device);
                let counts = device
                    .faults_served
                    .zip(then.and_then(|then| then.faults_served));
                device.faults_per_second = counts.and_then(|(now, then)| rate(now, then));
            }
            for context in &mut contexts {
                let is_same = |then: &&ContextSample| {
                    (&then.pci, then.client) == (&context.pci, context.client)
                };
                let then = before.contexts.iter().find(is_same);
                context.faults_per_second =
                    then.and_then(|then| rate(context.faults_served, then.faults_served));
            }
        }
        Ok(Sample {
            taken,
            devices,
            contexts,
            hidden_processes,
        })
    }

    fn devices(&self) -> io::Result<Vec<DeviceSample>> {
        let class = match fs::read_dir(self.sys.join("class/misc")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            class => class?,
        };
        let mut found = BTreeMap::new();
        for entry in class {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let number = name
                .strip_prefix("pinmap")
                .and_then(|number| number.parse::<u32>().ok());
            let Some(number) = number else { continue };
            let path = entry.path();
            let text =
                |file: &str| Some(fs::read_to_string(path.join(file)).ok()?.trim().to_owned());
            let count = |file: &str| text(file)?.parse().ok();
            // A device that goes away meanwhile is none.
            let Some(kind) = text("kind") else { continue };
            let device = DeviceSample {
                device: name,
                kind,
                contexts: count("contexts").unwrap_or(0),
                pinned: count("pinned").unwrap_or(0),
                mapped: count("mapped").unwrap_or(0),
                managed: count("managed"),
                queues: count("queues"),
                vram: count("vram"),
                vram_free: count("vram_free"),
                faults_served: count("faults_served"),
                faults_failed: count("faults_failed"),
                faults_per_second: None,
            };
            found.insert(number, device);
        }
        Ok(found.into_values().collect())
    }

    /// The contexts, and the number of processes of which no files can be seen.
    fn contexts(&self) -> io::Result<(Vec<ContextSample>, usize)> {
        let mut found = BTreeMap::new();
        let mut hidden = 0;
        for entry in fs::read_dir(&self.proc)? {
            let entry = entry?;
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
                continue;
            };
            let files = match fs::read_dir(entry.path().join("fdinfo")) {
                Ok(files) => files,
                Err(error) => {
                    hidden += usize::from(error.kind() == io::ErrorKind::PermissionDenied);
                    continue;
                }
            };
            // A process or a file that goes away meanwhile is none.
            for file in files.flatten() {
                let Ok(text) = fs::read_to_string(file.path()) else {
                    continue;
                };
                if let Some(context) = context(&text, pid, &entry.path()) {
                    // One that several processes have counts once.
                    found
                        .entry((context.pci.clone(), context.client))
                        .or_insert(context);
                }
            }
        }
        Ok((found.into_values().collect(), hidden))
    }
}

/// The context that the text of an fdinfo describes, if it is one of the driver's.
fn context(text: &str, pid: u32, process: &Path) -> Option<ContextSample> {
    let value = |key: &str| {
        text.lines().find_map(|line| {
            let rest = line.strip_prefix("pinmap-")?.strip_prefix(key)?;
            Some(rest.strip_prefix(':')?.trim())
        })
    };
    let pci = value("pdev")?.to_owned();
    let number = |key: &str| value(key)?.split(' ').next()?.parse::<u64>().ok();
    let bytes = |key: &str| number(key).unwrap_or(0) * 1024;
    let command = fs::read_to_string(process.join("comm")).unwrap_or_default();
    Some(ContextSample {
        pid,
        command: command.trim().to_owned(),
        pci,
        client: number("client-id")?,
        pinned: bytes("pinned"),
        allocated: bytes("allocated"),
        vram: bytes("vram"),
        shared: bytes("shared"),
        mapped: bytes("mapped"),
        managed: bytes("managed"),
        faults_served: number("faults-served").unwrap_or(0),
        faults_failed: number("faults-failed").unwrap_or(0),
        faults_per_second: None,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A made-up system, removed at the end.
    pub(in crate::top) struct Fake(pub(in crate::top) Roots);

    impl Fake {
        pub(in crate::top) fn new(name: &str) -> Self {
            let name = format!("pinmap-top-{name}-{}", std::process::id());
            let root = std::env::temp_dir().join(name);
            let fake = Self(Roots {
                sys: root.join("sys"),
                proc: root.join("proc"),
            });
            for (file, text) in [
                ("kind", "paged"),
                ("contexts", "2"),
                ("pinned", "4096"),
                ("mapped", "8192"),
                ("vram", "1048576"),
                ("faults_served", "100"),
            ] {
                fake.write(&format!("sys/class/misc/pinmap3/{file}"), text);
            }
            fake.write("sys/class/misc/rtc/kind", "none");
            for pid in ["12", "13"] {
                fake.write(&format!("proc/{pid}/comm"), "prog\n");
                fake.write(
                    &format!("proc/{pid}/fdinfo/5"),
                    "pos:\t0\npinmap-pdev:\t0000:00:04.0\npinmap-client-id:\t7\n\
                     pinmap-pinned:\t4 KiB\npinmap-vram:\t1024 KiB\npinmap-faults-served:\t60\n",
                );
                fake.write(&format!("proc/{pid}/fdinfo/1"), "pos:\t0\n");
            }
            fake.write("proc/self/fdinfo/1", "pos:\t0\n");
            fake
        }

        pub(in crate::top) fn write(&self, path: &str, text: &str) {
            let root = self.0.sys.parent().expect("a directory");
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, text).expect("a file");
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0.sys.parent().expect("a directory"));
        }
    }

    #[test]
    fn devices_and_contexts_are_found_once() {
        let fake = Fake::new("once");
        let sample = fake.0.sample(None).expect("a sample");
        let [device] = &sample.devices[..] else {
            panic!("{sample:?}")
        };
        assert_eq!((&*device.device, &*device.kind), ("pinmap3", "paged"));
        assert_eq!(
            (device.pinned, device.vram, device.queues),
            (4096, Some(1 << 20), None)
        );
        let [context] = &sample.contexts[..] else {
            panic!("{sample:?}")
        };
        assert_eq!((&*context.command, context.client), ("prog", 7));
        assert_eq!(
            (context.pinned, context.vram, context.mapped),
            (4096, 1 << 20, 0)
        );
        assert_eq!(context.faults_per_second, None);
    }

    #[test]
    fn rates_are_since_the_sample_before() {
        let fake = Fake::new("rates");
        let before = fake.0.sample(None).expect("a sample");
        fake.write("sys/class/misc/pinmap3/faults_served", "150");
        let after = fake.0.sample(Some(&before)).expect("a sample");
        assert!(after.devices[0]
            .faults_per_second
            .is_some_and(|rate| rate > 0.0));
        assert_eq!(after.contexts[0].faults_per_second, Some(0.0));
    }

    #[test]
    fn without_the_driver_there_is_nothing() {
        let fake = Fake::new("nothing");
        let roots = Roots {
            sys: "/nonexistent".into(),
            proc: fake.0.proc.clone(),
        };
        assert!(roots.sample(None).expect("a sample").devices.is_empty());
    }
}
