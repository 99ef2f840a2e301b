// SPDX-License-Identifier: MIT OR Apache-2.0
//! PCI functions and IOMMUs in sysfs, and what root can do with a function there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pinmap::PciAddress;

/// A sysfs: that of the system, or a made-up one in a test.
pub(crate) struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    pub(crate) fn system() -> Self {
        Self {
            root: "/sys".into(),
        }
    }

    /// The sysfs in another directory.
    pub(crate) fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Whether sysfs is there at all. Some containers have none.
    pub(crate) fn is_there(&self) -> bool {
        self.root.join("bus").is_dir()
    }

    /// Whether the driver is loaded, or built into the kernel.
    pub(crate) fn driver_loaded(&self) -> bool {
        self.root.join("bus/pci/drivers/pinmap").is_dir()
    }

    /// The names of the IOMMUs in use.
    pub(crate) fn iommus(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.root.join("class/iommu")) else {
            return Vec::new();
        };
        let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
        let mut names: Vec<_> = entries.filter_map(name).collect();
        names.sort_unstable();
        names
    }

    /// The PCI function, if there is one.
    pub(crate) fn function(&self, pci: PciAddress) -> Option<Function> {
        let dir = self.root.join("bus/pci/devices").join(pci.to_string());
        dir.is_dir().then(|| Function {
            bus: self.root.join("bus/pci"),
            dir,
            pci,
        })
    }

    /// Has the kernel look for functions on the bus of this one.
    pub(crate) fn rescan(&self, pci: PciAddress) -> io::Result<()> {
        fs::write(self.rescan_path(pci), "1")
    }

    /// The file that [`rescan`](Self::rescan) writes.
    pub(crate) fn rescan_path(&self, pci: PciAddress) -> PathBuf {
        let bus = format!("{:04x}:{:02x}", pci.domain, pci.bus);
        self.root.join("class/pci_bus").join(bus).join("rescan")
    }
}

/// A PCI function.
pub(crate) struct Function {
    bus: PathBuf,
    dir: PathBuf,
    pci: PciAddress,
}

impl Function {
    /// The address.
    pub(crate) fn pci(&self) -> PciAddress {
        self.pci
    }

    /// The driver that is bound to the function.
    pub(crate) fn driver(&self) -> Option<String> {
        link_name(&self.dir.join("driver"))
    }

    /// The name of the IOMMU of the function.
    pub(crate) fn iommu(&self) -> Option<String> {
        link_name(&self.dir.join("iommu"))
    }

    /// The number of the IOMMU group of the function.
    pub(crate) fn iommu_group(&self) -> Option<u32> {
        link_name(&self.dir.join("iommu_group"))?.parse().ok()
    }

    /// A numeric attribute, such as `vendor`.
    pub(crate) fn number(&self, attribute: &str) -> Option<u32> {
        let text = self.read(attribute)?;
        u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
    }

    /// The ids of vendor and device.
    pub(crate) fn ids(&self) -> Option<(u32, u32)> {
        self.number("vendor").zip(self.number("device"))
    }

    /// Whether the function is a bridge, by its class: to another bus, or to the host.
    pub(crate) fn is_bridge(&self) -> bool {
        self.number("class")
            .is_some_and(|class| class >> 16 == 0x06)
    }

    /// The only driver that may bind to the function, if there is such a rule.
    pub(crate) fn driver_override(&self) -> Option<String> {
        self.read("driver_override")
            .filter(|name| name != "(null)" && !name.is_empty())
    }

    /// Sets the rule which driver may bind, or removes it.
    pub(crate) fn set_driver_override(&self, driver: Option<&str>) -> io::Result<()> {
        let line = format!("{}\n", driver.unwrap_or(""));
        fs::write(self.dir.join("driver_override"), line)
    }

    /// Unbinds the function from its driver.
    pub(crate) fn unbind(&self) -> io::Result<()> {
        fs::write(self.dir.join("driver/unbind"), self.pci.to_string())
    }

    /// Offers the function to the drivers. Success does not mean that a driver took it.
    pub(crate) fn probe(&self) -> io::Result<()> {
        fs::write(self.bus.join("drivers_probe"), self.pci.to_string())
    }

    /// The name of the device that the driver pinmap has made for the function.
    pub(crate) fn device(&self) -> Option<String> {
        let mut entries = fs::read_dir(self.dir.join("misc")).ok()?;
        entries.find_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            name.starts_with("pinmap").then_some(name)
        })
    }

    /// How many times the device of the driver pinmap is open.
    pub(crate) fn contexts(&self) -> u64 {
        let device = self.device().unwrap_or_default();
        let contexts = self.read(&format!("misc/{device}/contexts"));
        contexts.and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Removes the function from the system, as if it had been pulled.
    pub(crate) fn remove(&self) -> io::Result<()> {
        fs::write(self.dir.join("remove"), "1")
    }

    fn read(&self, attribute: &str) -> Option<String> {
        Some(
            fs::read_to_string(self.dir.join(attribute))
                .ok()?
                .trim()
                .to_owned(),
        )
    }
}

/// The last part of what a link points to.
fn link_name(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A made-up sysfs with one function, removed when dropped.
    pub(crate) struct Fake(PathBuf);

    impl Fake {
        pub(crate) const PCI: PciAddress = PciAddress {
            domain: 0,
            bus: 0,
            device: 0x10,
            function: 0,
        };

        /// A function with this driver. `loaded` are other drivers.
        pub(crate) fn new(driver: Option<&str>, loaded: &[&str]) -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!(
                "pinmap-command-{}-{}",
                std::process::id(),
                NEXT.fetch_add(1, Ordering::Relaxed)
            );
            let fake = Self(std::env::temp_dir().join(name));
            let function = fake.0.join("bus/pci/devices/0000:00:10.0");
            fs::create_dir_all(&function).expect("a directory");
            for name in loaded.iter().copied().chain(driver) {
                fs::create_dir_all(fake.0.join("bus/pci/drivers").join(name)).expect("a directory");
            }
            if let Some(driver) = driver {
                let driver = fake.0.join("bus/pci/drivers").join(driver);
                symlink(driver, function.join("driver")).expect("a link");
            }
            fs::write(function.join("vendor"), "0x1234\n").expect("a file");
            fs::write(function.join("driver_override"), "(null)\n").expect("a file");
            fs::write(fake.0.join("bus/pci/drivers_probe"), "").expect("a file");
            fake
        }

        pub(crate) fn sysfs(&self) -> Sysfs {
            Sysfs::at(&self.0)
        }

        pub(crate) fn function(&self) -> Function {
            self.sysfs().function(Self::PCI).expect("the function")
        }

        pub(crate) fn write(&self, path: &str, content: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, content).expect("a file");
        }

        pub(crate) fn path(&self, path: &str) -> PathBuf {
            self.0.join(path)
        }

        /// The content of a file.
        pub(crate) fn read(&self, path: &str) -> String {
            fs::read_to_string(self.path(path)).expect("a file")
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_function_tells_what_it_is() {
        let fake = Fake::new(Some("vfio-pci"), &["pinmap"]);
        let function = fake.function();
        assert_eq!(function.driver().as_deref(), Some("vfio-pci"));
        assert_eq!(function.number("vendor"), Some(0x1234));
        assert_eq!(function.number("device"), None);
        assert_eq!(function.driver_override(), None);
        assert_eq!(
            (function.iommu(), function.iommu_group(), function.device()),
            (None, None, None)
        );
        assert!(fake.sysfs().driver_loaded());
    }

    #[test]
    fn a_function_is_told_what_to_do() {
        let fake = Fake::new(Some("vfio-pci"), &[]);
        let function = fake.function();
        function
            .set_driver_override(Some("pinmap"))
            .expect("written");
        assert_eq!(function.driver_override().as_deref(), Some("pinmap"));
        function.unbind().expect("written");
        function.probe().expect("written");
        assert_eq!(fake.read("bus/pci/drivers/vfio-pci/unbind"), "0000:00:10.0");
        assert_eq!(fake.read("bus/pci/drivers_probe"), "0000:00:10.0");
        function.set_driver_override(None).expect("written");
        assert_eq!(function.driver_override(), None);
    }

    #[test]
    fn nothing_is_found_where_there_is_nothing() {
        let nowhere = Sysfs::at("/nonexistent");
        assert!(!nowhere.driver_loaded());
        assert_eq!(nowhere.iommus(), [] as [String; 0]);
        assert!(nowhere.function(Fake::PCI).is_none());
    }
}
