// SPDX-License-Identifier: MIT OR Apache-2.0
//! The devices that sysfs shows, including those that this user may not open.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::sys::pci::PciAddress;

/// A device that the driver is bound to, found without opening it. Listed by
/// [`Device::list`](crate::Device::list).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DeviceNode {
    /// Path of the device node, `/dev/pinmapN`.
    pub path: PathBuf,
    /// Address of the PCI function.
    pub pci: PciAddress,
    /// PCI vendor and device id.
    pub id: (u16, u16),
}

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

    /// Whether the driver is loaded, or built into the kernel.
    pub(crate) fn driver_loaded(&self) -> bool {
        self.root.join("bus/pci/drivers/pinmap").is_dir()
    }

    /// All devices, ordered by number.
    pub(crate) fn devices(&self) -> io::Result<Vec<DeviceNode>> {
        let class = match fs::read_dir(self.root.join("class/misc")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            class => class?,
        };
        let mut found = Vec::new();
        for entry in class {
            let entry = entry?;
            if let Some(number) = number(&entry.file_name().to_string_lossy()) {
                // The device may be gone by now.
                found.extend(function_of(&entry.path()).map(|(pci, id)| (number, pci, id)));
            }
        }
        found.sort_unstable();
        Ok(found
            .into_iter()
            .map(|(number, pci, id)| DeviceNode {
                path: node(number),
                pci,
                id,
            })
            .collect())
    }

    /// The device node of a PCI function, or `None` if the driver is not bound to the function.
    pub(crate) fn node_of(&self, pci: PciAddress) -> io::Result<Option<PathBuf>> {
        let function = self.root.join("bus/pci/devices").join(pci.to_string());
        fs::metadata(&function)?;
        let children = match fs::read_dir(function.join("misc")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            children => children?,
        };
        for child in children {
            if let Some(number) = number(&child?.file_name().to_string_lossy()) {
                return Ok(Some(node(number)));
            }
        }
        Ok(None)
    }

    /// The directory of a PCI function.
    fn directory(&self, pci: PciAddress) -> Option<PathBuf> {
        fs::canonicalize(self.root.join("bus/pci/devices").join(pci.to_string())).ok()
    }

    /// Says, as a sentence, what is between the block device with this number ("MAJOR:MINOR") and a
    /// PCI function, through which one would reach the memory of the other.
    pub(crate) fn between(&self, number: &str, pci: PciAddress) -> Option<String> {
        let block = fs::canonicalize(self.root.join("dev/block").join(number)).ok()?;
        let function = self.directory(pci)?;
        let disk = block
            .ancestors()
            .find(|path| address_of(path).is_some())
            .filter(|disk| *disk != function);
        match disk {
            Some(disk) => self.bridge("disk", disk, pci),
            None => Some("the disk is not one of a PCI function that reads by itself".into()),
        }
    }

    /// Says the same of two PCI functions.
    pub(crate) fn between_devices(&self, one: PciAddress, other: PciAddress) -> Option<String> {
        self.bridge("device", &self.directory(one)?, other)
    }

    /// Says what is between a PCI function, by its directory, and another one.
    fn bridge(&self, what: &str, one: &Path, pci: PciAddress) -> Option<String> {
        let function = self.directory(pci)?;
        let bridge = one.ancestors().find(|path| function.starts_with(path))?;
        let one = address_of(one)?;
        Some(match address_of(bridge) {
            Some(address) => format!(
                "between the {what} {one} and the device {pci} is the bridge {address} ({})",
                ids(bridge)?
            ),
            // The directory of a host bridge is "pciDOMAIN:BUS", and it is a function itself.
            None => {
                let name = bridge.file_name()?.to_str()?.strip_prefix("pci");
                let host = name.map(|bus| bridge.join(format!("{bus}:00.0")));
                let ids = host.and_then(|host| ids(&host));
                format!(
                    "between the {what} {one} and the device {pci} is only the host bridge ({}), \
                     of which the kernel must know that it passes accesses between devices on",
                    ids.unwrap_or("unknown".into())
                )
            }
        })
    }
}

/// The number N in `pinmapN`.
fn number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("pinmap")?;
    digits.bytes().all(|b| b.is_ascii_digit()).then_some(())?;
    digits.parse().ok()
}

/// Path of the device node with a number.
fn node(number: u32) -> PathBuf {
    format!("/dev/pinmap{number}").into()
}

/// The PCI function of a device of the class misc, whose path is `.../BDF/misc/pinmapN`, and its
/// ids.
fn function_of(device: &Path) -> Option<(PciAddress, (u16, u16))> {
    let path = fs::canonicalize(device).ok()?;
    let function = path.parent()?.parent()?;
    Some((address_of(function)?, ids_of(function)?))
}

/// The PCI address that a directory is named after.
fn address_of(function: &Path) -> Option<PciAddress> {
    function.file_name()?.to_str()?.parse().ok()
}

fn ids_of(function: &Path) -> Option<(u16, u16)> {
    let id = |name| -> Option<u16> {
        let text = fs::read_to_string(function.join(name)).ok()?;
        u16::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    };
    Some((id("vendor")?, id("device")?))
}

/// The ids of a function, as `lspci` prints them.
fn ids(function: &Path) -> Option<String> {
    ids_of(function).map(|(vendor, device)| format!("{vendor:04x}:{device:04x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::hint::none_found;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A made-up sysfs, removed at the end.
    struct Fake(Sysfs);

    impl Fake {
        fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!(
                "pinmap-sysfs-{}-{}",
                std::process::id(),
                NEXT.fetch_add(1, Ordering::Relaxed)
            );
            let root = std::env::temp_dir().join(name);
            fs::create_dir_all(root.join("class/misc")).expect("a directory");
            fs::create_dir_all(root.join("bus/pci/devices")).expect("a directory");
            Self(Sysfs { root })
        }

        fn function(&self, pci: &str, misc: Option<&str>) {
            let root = &self.0.root;
            let function = root.join("devices/pci0000:00").join(pci);
            fs::create_dir_all(&function).expect("a directory");
            symlink(&function, root.join("bus/pci/devices").join(pci)).expect("a link");
            fs::write(function.join("vendor"), "0x1234\n").expect("a file");
            fs::write(function.join("device"), "0x11e8\n").expect("a file");
            if let Some(name) = misc {
                let device = function.join("misc").join(name);
                fs::create_dir_all(&device).expect("a directory");
                symlink(&device, root.join("class/misc").join(name)).expect("a link");
            }
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0.root);
        }
    }

    fn pci(text: &str) -> PciAddress {
        text.parse().expect("an address")
    }

    #[test]
    fn devices_are_listed_in_order() {
        let fake = Fake::new();
        fake.function("0000:00:10.0", Some("pinmap10"));
        fake.function("0000:00:11.0", Some("pinmap9"));
        fake.function("0000:00:12.0", Some("rtc"));
        fake.function("0000:00:13.0", None);
        let found = fake.0.devices().expect("a list");
        assert!(found.iter().all(|device| device.id == (0x1234, 0x11e8)));
        let found: Vec<_> = found.iter().map(|d| (d.path.to_str(), d.pci)).collect();
        let expected = [
            (Some("/dev/pinmap9"), pci("0000:00:11.0")),
            (Some("/dev/pinmap10"), pci("0000:00:10.0")),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_function_leads_to_its_node() {
        let fake = Fake::new();
        fake.function("0000:00:10.0", Some("pinmap3"));
        fake.function("0000:00:11.0", None);
        let node_of = |text| fake.0.node_of(pci(text));
        assert_eq!(
            node_of("0000:00:10.0").expect("a node"),
            Some("/dev/pinmap3".into())
        );
        assert_eq!(node_of("0000:00:11.0").expect("nothing"), None);
        let error = node_of("0000:00:12.0").expect_err("no such function");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_bridge_is_named() {
        let fake = Fake::new();
        let root = &fake.0.root;
        fake.function("0000:00:00.0", None);
        fake.function("0000:00:10.0", None);
        fake.function("0000:00:1a.0", None);
        for (number, disk) in [
            ("259:1", "0000:00:1a.0/0000:01:00.0/nvme/nvme0/nvme0n1"),
            ("259:2", "0000:00:10.0/0000:02:00.0/nvme/nvme1/nvme1n1/p1"),
        ] {
            let disk = root.join("devices/pci0000:00").join(disk);
            fs::create_dir_all(&disk).expect("a directory");
            fs::create_dir_all(root.join("dev/block")).expect("a directory");
            symlink(&disk, root.join("dev/block").join(number)).expect("a link");
        }
        let device = root.join("devices/pci0000:00/0000:00:10.0/0000:03:00.0");
        fs::create_dir_all(&device).expect("a directory");
        symlink(&device, root.join("bus/pci/devices/0000:03:00.0")).expect("a link");
        let said = |number| fake.0.between(number, pci("0000:03:00.0"));
        let wanted = "between the disk 0000:01:00.0 and the device 0000:03:00.0 is only the host \
                      bridge (1234:11e8), ";
        assert!(said("259:1").is_some_and(|said| said.starts_with(wanted)));
        let wanted = "between the disk 0000:02:00.0 and the device 0000:03:00.0 is the bridge \
                      0000:00:10.0 (1234:11e8)";
        assert_eq!(said("259:2").as_deref(), Some(wanted));
        assert_eq!(said("8:0"), None);
        let said = fake
            .0
            .between_devices(pci("0000:00:1a.0"), pci("0000:03:00.0"));
        let wanted = "between the device 0000:00:1a.0 and the device 0000:03:00.0 is only the host";
        assert!(said.is_some_and(|said| said.starts_with(wanted)));
    }

    #[test]
    fn no_device_differs_from_no_driver() {
        let sysfs = Fake::new();
        let found = || none_found(&sysfs.0, "the driver is bound to none", "see `pinmap info`");
        let (cause, hint) = found();
        assert!(cause.contains("not loaded") && hint.contains("`modprobe pinmap`"));
        fs::create_dir_all(sysfs.0.root.join("bus/pci/drivers/pinmap")).expect("a directory");
        let (cause, hint) = found();
        assert!(cause.contains("bound to none") && hint.contains("`pinmap doctor`"));
        assert!(!hint.contains("modprobe"), "{hint}");
    }

    #[test]
    fn nothing_is_found_where_there_is_nothing() {
        let nowhere = Sysfs {
            root: "/nonexistent".into(),
        };
        assert_eq!(nowhere.devices().expect("an empty list"), []);
        assert!(!nowhere.driver_loaded());
    }
}
