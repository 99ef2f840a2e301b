// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files that describe a machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::utsname::uname;

use crate::sysfs::Sysfs;

/// A machine: this one, or a made-up one in a test.
pub(super) struct System {
    root: PathBuf,
}

impl System {
    pub(super) fn this() -> Self {
        Self { root: "/".into() }
    }

    #[cfg(test)]
    pub(super) fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The machine's sysfs.
    pub(super) fn sysfs(&self) -> Sysfs {
        Sysfs::at(self.path("sys"))
    }

    /// The path of a file, by its path without the first slash.
    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// The content of a file, or `None` if it cannot be read.
    pub(super) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim_end().to_owned())
    }

    /// The names in a directory, sorted.
    pub(super) fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else {
            return Vec::new();
        };
        let mut names: Vec<_> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    /// The kernel's release, such as `7.3.4-amd64`.
    pub(super) fn release(&self) -> Option<String> {
        self.read("proc/sys/kernel/osrelease").or_else(|| {
            // A container without /proc has the system call.
            let this = self.root == Path::new("/");
            let name = this.then(|| uname().ok()).flatten()?;
            name.release().to_str().map(str::to_owned)
        })
    }

    /// The kernel's options, from the first place that has them.
    pub(super) fn kernel_config(&self) -> Option<String> {
        let release = self.release().unwrap_or_default();
        let plain = [
            format!("boot/config-{release}"),
            format!("lib/modules/{release}/config"),
            format!("lib/modules/{release}/build/.config"),
        ];
        plain
            .iter()
            .find_map(|path| self.read(path))
            .or_else(|| self.unpacked("proc/config.gz"))
    }

    fn unpacked(&self, path: &str) -> Option<String> {
        let path = self.path(path);
        if !path.exists() {
            return None;
        }
        let output = Command::new("gzip")
            .arg("-dc")
            .arg(path)
            .stderr(Stdio::null())
            .output()
            .ok()?;
        (output.status.success()).then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Whether a word stands on the kernel's command line.
    pub(super) fn booted_with(&self, word: &str) -> bool {
        let line = self.read("proc/cmdline").unwrap_or_default();
        line.split_whitespace().any(|given| given == word)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A made-up machine, removed at the end.
    pub(in super::super) struct Fake(PathBuf);

    impl Fake {
        /// A machine with these files, by path and content.
        pub(in super::super) fn new(files: &[(&str, &str)]) -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("pinmap-doctor-{}-{number}", std::process::id());
            let fake = Self(std::env::temp_dir().join(name));
            fs::create_dir_all(&fake.0).expect("a directory");
            for (path, content) in files {
                fake.write(path, content);
            }
            fake
        }

        pub(in super::super) fn write(&self, path: &str, content: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, content).expect("a file");
        }

        pub(in super::super) fn link(&self, path: &str, to: &str) {
            let (path, to) = (self.0.join(path), self.0.join(to));
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::create_dir_all(&to).expect("a directory");
            symlink(to, path).expect("a link");
        }

        pub(in super::super) fn system(&self) -> System {
            System::at(&self.0)
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn this_kernel_has_a_release() {
        let told = uname().expect("a name").release().to_owned();
        assert_eq!(System::this().release(), told.into_string().ok());
        assert_eq!(System::at("/nonexistent").release(), None);
    }

    #[test]
    fn options_are_found_wherever_they_are() {
        const RELEASE: (&str, &str) = ("proc/sys/kernel/osrelease", "7.3.4\n");
        assert_eq!(Fake::new(&[RELEASE]).system().kernel_config(), None);
        for path in [
            "boot/config-7.3.4",
            "lib/modules/7.3.4/config",
            "lib/modules/7.3.4/build/.config",
        ] {
            let fake = Fake::new(&[RELEASE, (path, "CONFIG_RUST=y\n")]);
            assert_eq!(
                fake.system().kernel_config().as_deref(),
                Some("CONFIG_RUST=y")
            );
        }
        let other = Fake::new(&[RELEASE, ("boot/config-7.2.1", "CONFIG_RUST=y\n")]);
        assert_eq!(other.system().kernel_config(), None);
    }
}
