// SPDX-License-Identifier: MIT OR Apache-2.0
//! `pinmap doctor` on a machine with real trouble.

use std::error::Error;
use std::os::unix::fs::{chown, MetadataExt};
use std::os::unix::process::CommandExt;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::path::Path;
use std::process::Command;

use nix::sys::resource::{setrlimit, Resource};
use pinmap::{Access, Buffer, Device, PciAddress};

use crate::command::{function_in_company, run};
use crate::harness::{skip, Outcome};
use crate::setup::{become_user, device, PAGE};
use crate::stale::while_unbound;

/// Asserts that the doctor reports this problem and no other.
fn wrong(line: &str, what: &[&str], parts: &[&str]) -> Outcome {
    let (status, out, err) = run(line)?;
    check_wrong(status, &out, &err, what, parts);
    Ok(())
}

fn check_wrong(status: Option<i32>, out: &str, err: &str, what: &[&str], parts: &[&str]) {
    assert_eq!(status, Some(1), "{out}{err}");
    let found: Vec<_> = out
        .lines()
        .filter_map(|line| line.strip_prefix("WRONG  ")?.split(": ").next())
        .collect();
    assert_eq!(found, what, "{out}");
    for part in parts {
        assert!(out.contains(part), "{part}: {out}");
    }
    // The doctor says what to do about every problem.
    assert!(out.matches("=> ").count() >= what.len(), "{out}");
    assert!(
        err.starts_with("pinmap: pinmap cannot be used yet: ") && err.lines().count() == 1,
        "{err}"
    );
}

pub(crate) fn doctor_all_is_well() -> Outcome {
    let device = device()?;
    let node = device.path().display().to_string();
    let (status, out, err) = run("pinmap doctor")?;
    assert_eq!((status, &*err), (Some(0), ""), "{out}");
    for part in [
        "ok     kernel: Linux 7.",
        "ok     IOMMU: ",
        "ok     driver: loaded",
        "ok     functions: the driver has 0000:",
        "ok     locked memory: no limit",
        &format!("{node} registers memory"),
        "\npinmap can be used\n",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(
        !out.contains('\x1b'),
        "colours where there is no terminal: {out:?}"
    );
    let (_, coloured, _) = run("pinmap --color always doctor")?;
    assert!(coloured.contains("\x1b[32mok"), "{coloured:?}");
    let (status, json, err) = run("pinmap doctor --json")?;
    assert_eq!((status, &*err), (Some(0), ""), "{json}");
    for part in [
        "\"usable\": true",
        "\"level\": \"good\"",
        "\"what\": \"driver\"",
    ] {
        assert!(json.contains(part), "{part}: {json}");
    }
    let pci = device.info()?.pci;
    let (status, out, _) = run(&format!("pinmap doctor {pci}"))?;
    assert_eq!(status, Some(0), "{out}");
    assert_eq!(out.matches("registers memory").count(), 1, "{out}");

    // An ordinary user has a limit, and may use it while somebody else owns the device.
    let _owned = Buffer::<u8>::new(PAGE)?.register(&device, Access::Read)?;
    setrlimit(Resource::RLIMIT_MEMLOCK, 8 << 20, 8 << 20)?;
    become_user(Some(device.path()))?;
    let (status, out, err) = run("pinmap doctor")?;
    assert_eq!((status, &*err), (Some(0), ""), "{out}");
    assert!(out.contains("note   locked memory: 8 MiB allowed"), "{out}");
    let (status, out, _) = run("pinmap doctor --need 1M")?;
    assert_eq!(status, Some(0), "{out}");
    assert!(out.contains("ok     locked memory: 8 MiB allowed"), "{out}");
    Ok(())
}

pub(crate) fn doctor_low_limit() -> Outcome {
    let node = device()?.path().to_owned();
    setrlimit(Resource::RLIMIT_MEMLOCK, 1 << 16, 1 << 16)?;
    become_user(Some(&node))?;
    wrong(
        "pinmap doctor",
        &["locked memory"],
        &[
            "64 KiB allowed (RLIMIT_MEMLOCK), 0 bytes used; 1 MiB more are needed",
            "`ulimit -l 1024`",
            "LimitMEMLOCK=1048576",
            "registers memory",
        ],
    )?;
    wrong(
        "pinmap doctor --need 1G",
        &["locked memory"],
        &["ulimit -l 1048576"],
    )?;
    // A limit of less than a page: registering fails, too.
    setrlimit(Resource::RLIMIT_MEMLOCK, 0, 0)?;
    let (_, out, _) = run("pinmap doctor")?;
    assert!(
        out.contains("WRONG  locked memory: 0 bytes allowed"),
        "{out}"
    );
    assert!(out.contains("WRONG  device: cannot register"), "{out}");
    Ok(())
}

pub(crate) fn doctor_without_permission() -> Outcome {
    let node = device()?.path().display().to_string();
    let bound = Device::list()?.len();
    become_user(None)?;
    wrong(
        "pinmap doctor",
        &vec!["permission"; bound],
        &[
            &format!("user may not open {node}, which is for the group pinmap"),
            "`usermod -a -G pinmap user`",
        ],
    )
}

/// The user was made a member of the group just now, and has a session from before.
pub(crate) fn doctor_of_an_old_session() -> Outcome {
    const GROUPS: &str = "/etc/group";
    let pci = device()?.info()?.pci;
    let before = std::fs::read_to_string(GROUPS)?;
    let line = before
        .lines()
        .find(|line| line.starts_with("pinmap:"))
        .ok_or("there is no group pinmap")?;
    std::fs::write(GROUPS, before.replace(line, &format!("{line}user")))?;
    let output = doctor_of_user(pci);
    std::fs::write(GROUPS, &before)?;
    let (status, out, err) = output?;
    check_wrong(
        status,
        &out,
        &err,
        &["permission"],
        &[
            "user is a member of the group pinmap, but this session is older",
            "log out and in again",
        ],
    );
    Ok(())
}

/// Runs the doctor as the tests' user: exit status, stdout, stderr.
fn doctor_of_user(pci: PciAddress) -> Result<(Option<i32>, String, String), Box<dyn Error>> {
    let output = Command::new("pinmap")
        .args(["doctor", &pci.to_string()])
        .uid(1000)
        .gid(1000)
        .output()?;
    let (out, err) = (
        String::from_utf8(output.stdout)?,
        String::from_utf8(output.stderr)?,
    );
    Ok((output.status.code(), out, err))
}

pub(crate) fn doctor_without_udev_rule() -> Outcome {
    let device = device()?;
    let (node, pci) = (device.path(), device.info()?.pci);
    let group = node.metadata()?.gid();
    chown(node, None, Some(0))?;
    let output = doctor_of_user(pci);
    chown(node, None, Some(group))?;
    let (status, out, err) = output?;
    check_wrong(
        status,
        &out,
        &err,
        &["permission"],
        &["belongs to root alone", "udev/60-pinmap.rules"],
    );
    Ok(())
}

pub(crate) fn doctor_of_a_function() -> Outcome {
    let device = device()?;
    let pci = device.info()?.pci;
    while_unbound(&device, || {
        wrong(
            &format!("pinmap doctor {pci}"),
            &["function"],
            &[
                &format!("no driver has {pci}"),
                &format!("`pinmap bind {pci}`, as root"),
            ],
        )
    })?;
    wrong(
        "pinmap doctor ffff:00:00.0",
        &["function"],
        &["there is no PCI function ffff:00:00.0"],
    )
}

pub(crate) fn doctor_of_a_shared_group() -> Outcome {
    let Some(pci) = function_in_company()? else {
        return skip("no function shares its IOMMU group");
    };
    let members = Path::new("/sys/bus/pci/devices")
        .join(&pci)
        .join("iommu_group/devices");
    let mut others = Vec::new();
    for entry in std::fs::read_dir(members)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != pci {
            others.push(name);
        }
    }
    let mut parts = vec!["shares group", "ACS"];
    parts.extend(others.iter().map(|name| &**name));
    wrong(
        &format!("pinmap doctor {pci}"),
        &["IOMMU group", "function"],
        &parts,
    )
}

/// Runs something while no device is bound.
fn while_nothing_is_bound(
    work: impl FnOnce() -> Outcome,
    unload: bool,
) -> Result<(), Box<dyn Error>> {
    let bound = Device::list()?;
    for node in &bound {
        run(&format!("pinmap unbind {}", node.pci))?;
    }
    let parameters = std::env::var("PINMAP_PARAMETERS").unwrap_or_default();
    let unloaded = !unload || run("rmmod pinmap")?.0 == Some(0);
    let result = catch_unwind(AssertUnwindSafe(|| {
        if unloaded {
            work()
        } else {
            skip("the module cannot be unloaded")
        }
    }));
    if unload && unloaded {
        let (status, _, err) = run(format!("modprobe pinmap {parameters}").trim())?;
        assert_eq!(status, Some(0), "{err}");
    }
    for node in &bound {
        let (status, _, err) = run(&format!("pinmap bind {}", node.pci))?;
        assert_eq!(status, Some(0), "{err}");
    }
    for node in Device::list()? {
        // As a udev rule would.
        run(&format!("chgrp pinmap {}", node.path.display()))?;
    }
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

pub(crate) fn doctor_without_devices() -> Outcome {
    device()?;
    while_nothing_is_bound(
        || {
            wrong(
                "pinmap doctor",
                &["functions"],
                &["the driver has no PCI function", "`pinmap bind BDF`"],
            )
        },
        false,
    )
}

pub(crate) fn doctor_without_module() -> Outcome {
    device()?;
    let work = || {
        wrong(
            "pinmap doctor",
            &["driver", "functions"],
            &[
                "the module is not loaded",
                "`modprobe pinmap`, as root",
                "ok     kernel options: all that the driver needs",
            ],
        )?;
        // A kernel for which the module was not built.
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
        let modules = format!("/lib/modules/{}/modules.dep", release.trim());
        let known = std::fs::read(&modules)?;
        std::fs::write(&modules, "")?;
        let result = wrong(
            "pinmap doctor",
            &["driver", "functions"],
            &[
                "there is no module pinmap for this kernel",
                "make install && modprobe pinmap",
            ],
        );
        std::fs::write(&modules, known)?;
        result
    };
    while_nothing_is_bound(work, true)
}

/// A kernel that was built without what is needed, as its configuration says.
pub(crate) fn doctor_of_a_kernel_without_options() -> Outcome {
    device()?;
    let config = |text: &str| -> Outcome {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
        std::fs::create_dir_all("/boot")?;
        Ok(std::fs::write(
            format!("/boot/config-{}", release.trim()),
            text,
        )?)
    };
    let work = || {
        config("CONFIG_MODULES=y\nCONFIG_IOMMU_API=y\n# CONFIG_RUST is not set\n")?;
        let result = wrong(
            "pinmap doctor",
            &["kernel options", "driver", "functions"],
            &[
                "built without CONFIG_RUST, CONFIG_SPARSEMEM_VMEMMAP",
                "a driver for the IOMMU",
            ],
        );
        std::fs::remove_dir_all("/boot")?;
        result
    };
    while_nothing_is_bound(work, true)
}

/// For a machine without an IOMMU, where nothing else can be tested.
pub(crate) fn noiommu_doctor() -> Outcome {
    if std::fs::read_dir("/sys/class/iommu").is_ok_and(|dir| dir.count() != 0) {
        return skip("there is an IOMMU");
    }
    wrong(
        "pinmap doctor",
        &["IOMMU", "functions"],
        &["without it a device could reach all memory", "VT-d", "QEMU"],
    )?;
    wrong(
        "pinmap doctor 0000:00:10.0",
        &["IOMMU", "IOMMU group", "function"],
        &["no IOMMU translates its DMA"],
    )
}
