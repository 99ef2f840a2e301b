// SPDX-License-Identifier: MIT OR Apache-2.0
//! `pinmap cdi`: a specification of the devices for the container device interface, CDI
//! (<https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>).

use std::fs;
use std::io::Write;
use std::path::Path;

use pinmap::Device;
use serde::Serialize;

use crate::args::CdiOptions;
use crate::Result;

/// The beginning of names: `pinmap/device=all`.
const KIND: &str = "pinmap/device";

/// The content of the file. Runtimes refuse fields that they do not know.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Specification {
    /// The oldest version that has all that is used here, and another one before it.
    cdi_version: &'static str,
    kind: &'static str,
    devices: Vec<Named>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Named {
    name: String,
    container_edits: Edits,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Edits {
    device_nodes: Vec<Node>,
}

/// A node. Its numbers are left out, so that the runtime asks for them when it starts a container:
/// the driver's are others after it was loaded again.
#[derive(Serialize, Clone)]
struct Node {
    path: String,
    /// Not `m`: nobody needs to make other nodes of the device.
    permissions: &'static str,
}

impl Specification {
    /// Has an entry for each device, by its BDF, and one for all of them.
    fn new(devices: impl Iterator<Item = (String, String)>) -> Result<Self> {
        let entry = |name, device_nodes| Named {
            name,
            container_edits: Edits { device_nodes },
        };
        let (mut all, mut entries) = (Vec::new(), Vec::new());
        for (pci, path) in devices {
            let node = Node {
                path,
                permissions: "rw",
            };
            all.push(node.clone());
            entries.push(entry(pci, vec![node]));
        }
        if all.is_empty() {
            return Err("there is no device: `pinmap doctor` says what is missing".into());
        }
        entries.push(entry("all".to_owned(), all));
        Ok(Self {
            cdi_version: "0.6.0",
            kind: KIND,
            devices: entries,
        })
    }
}

/// Writes the specification to a file, or prints it.
pub(crate) fn run(options: &CdiOptions, out: &mut impl Write) -> Result<()> {
    let devices = Device::list()?.into_iter();
    let named = devices.map(|node| (node.pci.to_string(), node.path.display().to_string()));
    let text = serde_json::to_string_pretty(&Specification::new(named)?)? + "\n";
    match &options.output {
        Some(path) => write(path, &text),
        None => Ok(out.write_all(text.as_bytes())?),
    }
}

/// Writes a file that runtimes, which watch its directory, never see in part.
fn write(path: &Path, text: &str) -> Result<()> {
    // They pass over files of other names.
    if path.extension().is_none_or(|extension| extension != "json") {
        return Err(format!("{} does not end in .json", path.display()).into());
    }
    let partial = path.with_extension("partial");
    let written = path
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(&partial, text))
        .and_then(|()| fs::rename(&partial, path));
    written.map_err(|error| {
        // It may not have been made.
        let _ = fs::remove_file(&partial);
        format!("cannot write {}: {error}", path.display()).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{json, Value};

    fn specification(devices: &[(&str, &str)]) -> Result<Value> {
        let devices = devices.iter();
        let named = devices.map(|(pci, path)| ((*pci).to_owned(), (*path).to_owned()));
        Ok(serde_json::to_value(Specification::new(named)?)?)
    }

    #[test]
    fn each_device_and_all_of_them_are_named() {
        let devices = [
            ("0000:00:10.0", "/dev/pinmap0"),
            ("0001:02:1f.7", "/dev/pinmap12"),
        ];
        let first = json!({ "path": "/dev/pinmap0", "permissions": "rw" });
        let second = json!({ "path": "/dev/pinmap12", "permissions": "rw" });
        let expected = json!({
            "cdiVersion": "0.6.0",
            "kind": "pinmap/device",
            "devices": [
                { "name": "0000:00:10.0", "containerEdits": { "deviceNodes": [first] } },
                { "name": "0001:02:1f.7", "containerEdits": { "deviceNodes": [second] } },
                { "name": "all", "containerEdits": { "deviceNodes": [first, second] } },
            ],
        });
        assert_eq!(specification(&devices).expect("two devices"), expected);
    }

    #[test]
    fn no_device_is_an_error() {
        let error = specification(&[]).expect_err("no device").to_string();
        assert!(error.contains("pinmap doctor"), "{error}");
    }

    #[test]
    fn the_file_is_replaced_as_a_whole() {
        let directory = std::env::temp_dir().join(format!("pinmap-cdi-{}", std::process::id()));
        let path = directory.join("cdi/pinmap.json");
        for text in ["old\n", "new\n"] {
            write(&path, text).expect("written");
            assert_eq!(fs::read_to_string(&path).expect("read"), text);
        }
        let names = fs::read_dir(directory.join("cdi")).expect("a directory");
        assert_eq!(names.count(), 1);
        let error = write(&path.join("x.json"), "").expect_err("no directory");
        assert!(error.to_string().contains("cannot write"), "{error}");
        let error = write(&directory.join("pinmap"), "").expect_err("no suffix");
        assert!(error.to_string().contains(".json"), "{error}");
        fs::remove_dir_all(directory).expect("removed");
    }
}
