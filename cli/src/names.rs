// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of PCI functions, from the database that `lspci` uses, where it is installed (on Debian:
//! the package `pci.ids`, elsewhere `hwdata`).
//!
//! The file has a line for each vendor, `1234  Name`, and below it one for each of its devices,
//! with a tab in front. Behind the vendors come classes, which begin with `C`.

use std::fs;
use std::path::Path;

/// Where the database is.
const PATHS: [&str; 2] = ["/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids"];

/// The name of a function: that of its vendor, and that of the device if it is known.
pub(crate) fn of(id: (u32, u32)) -> Option<String> {
    PATHS.iter().find_map(|path| in_file(Path::new(path), id))
}

fn in_file(path: &Path, id: (u32, u32)) -> Option<String> {
    // Names of old entries are not all UTF-8.
    let text = fs::read(path).ok()?;
    in_text(&String::from_utf8_lossy(&text), id)
}

fn in_text(text: &str, (vendor, device): (u32, u32)) -> Option<String> {
    let (vendor, device) = (format!("{vendor:04x}  "), format!("\t{device:04x}  "));
    let mut lines = text.lines();
    let vendor = lines.find_map(|line| line.strip_prefix(&vendor))?;
    let mut devices = lines.take_while(|line| line.starts_with(['\t', '#']) || line.is_empty());
    let device = devices.find_map(|line| line.strip_prefix(&device));
    Some(match device {
        Some(device) => format!("{vendor} {device}"),
        None => vendor.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# comment\n\n10ee  Xilinx Corporation\n\t7024  PCIe x4\n\
                        \t\t10ee 0007  a board\n1234  Technical Corp.\n\t1111  VGA\n# old\n\
                        \t11e8  QEMU Educational\n\nC 01  Mass storage\n\t1234  no device\n";

    #[test]
    fn functions_have_the_names_of_the_database() {
        let name = |vendor, device| in_text(TEXT, (vendor, device));
        assert_eq!(
            name(0x1234, 0x11e8).as_deref(),
            Some("Technical Corp. QEMU Educational")
        );
        assert_eq!(
            name(0x10ee, 0x7024).as_deref(),
            Some("Xilinx Corporation PCIe x4")
        );
        // The devices of one vendor are not those of another.
        assert_eq!(name(0x10ee, 0x11e8).as_deref(), Some("Xilinx Corporation"));
        assert_eq!(name(0x1234, 0x1234).as_deref(), Some("Technical Corp."));
        assert_eq!(name(0xffff, 1), None);
    }

    #[test]
    fn without_a_database_there_are_no_names() {
        assert_eq!(in_file(Path::new("/nonexistent"), (0x1234, 0x11e8)), None);
    }
}
