// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel: its version, its options, and the driver.

use super::system::System;
use super::{signature, Finding};

/// The kernel version for which the driver is made.
const VERSION: (u32, u32) = (7, 3);

/// The options that the driver needs to be built, or to accept any device.
const OPTIONS: [&str; 6] = [
    "CONFIG_MODULES",
    "CONFIG_RUST",
    "CONFIG_SPARSEMEM_VMEMMAP",
    "CONFIG_MMU_NOTIFIER",
    "CONFIG_IOMMU_API",
    "CONFIG_PCI_MSI",
];

/// The options for drivers of IOMMUs, of which one is needed.
const DRIVERS: [&str; 5] = [
    "CONFIG_INTEL_IOMMU",
    "CONFIG_AMD_IOMMU",
    "CONFIG_VIRTIO_IOMMU",
    "CONFIG_ARM_SMMU",
    "CONFIG_ARM_SMMU_V3",
];

/// Examines the kernel.
pub(super) fn examine(system: &System) -> Vec<Finding> {
    let loaded = system.sysfs().driver_loaded();
    let mut findings = vec![version(system, loaded)];
    findings.extend(options(system, loaded));
    findings.extend(managed(system));
    findings.extend(huge_pages(system));
    findings
}

fn version(system: &System, loaded: bool) -> Finding {
    const WHAT: &str = "kernel";
    let known = format!("Linux {}.{}", VERSION.0, VERSION.1);
    let Some(release) = system.release() else {
        return Finding::note(
            WHAT,
            "its version cannot be read",
            format!("it should be {known}"),
        );
    };
    let text = format!("Linux {release}");
    match numbers(&release) {
        _ if loaded => Finding::good(WHAT, text),
        Some(VERSION) => Finding::good(WHAT, text),
        Some(version) if version < VERSION => {
            Finding::wrong(WHAT, format!("{text} is too old"), format!("boot {known}"))
        }
        _ => Finding::note(
            WHAT,
            format!("{text} is not one that the driver was made for"),
            format!("if the driver does not compile, boot {known}"),
        ),
    }
}

/// The first two numbers of a release.
fn numbers(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn options(system: &System, loaded: bool) -> Vec<Finding> {
    const WHAT: &str = "kernel options";
    if loaded {
        // The driver was built for this kernel, so it has found what it needs.
        return Vec::new();
    }
    let Some(config) = system.kernel_config() else {
        let fix = format!("make sure that it has {}", OPTIONS.join(", "));
        let text = "neither /boot nor /proc/config.gz tells them";
        return vec![Finding::note(WHAT, text, fix)];
    };
    let missing = missing(&config);
    if missing.is_empty() {
        return vec![Finding::good(WHAT, "all that the driver needs")];
    }
    vec![Finding::wrong(
        WHAT,
        format!("the kernel was built without {}", missing.join(", ")),
        "boot a kernel that has them; there is no way around it",
    )]
}

/// Examines whether devices that can fault reach memory that nobody registered.
fn managed(system: &System) -> Option<Finding> {
    /// No option of its own: other drivers select it.
    const OPTION: &str = "CONFIG_HMM_MIRROR";
    const WHAT: &str = "managed memory";
    let config = system.kernel_config()?;
    let large = ["CONFIG_PAGE_SHIFT=14", "CONFIG_PAGE_SHIFT=16"];
    if config.lines().any(|line| large.contains(&line)) {
        return Some(Finding::note(
            WHAT,
            "pages are larger than 4 KiB, so the driver has no paged devices: all are flat",
            "boot the kernel with pages of 4 KiB (Debian: linux-image-arm64)",
        ));
    }
    Some(if has(&config, OPTION) {
        Finding::good(WHAT, "devices that can fault reach any memory of a program")
    } else {
        Finding::note(
            WHAT,
            format!(
                "the kernel was built without {OPTION}, so devices reach registered memory only"
            ),
            "boot a kernel that has the option: with amdgpu, nouveau or xe, as distributions' \
             kernels do, or with CONFIG_TEST_HMM",
        )
    })
}

/// Whether a configuration has an option.
fn has(config: &str, option: &str) -> bool {
    config.lines().any(|line| {
        let value = line.strip_prefix(option);
        value.is_some_and(|value| value == "=y" || value == "=m")
    })
}

/// The needed options that a configuration lacks.
fn missing(config: &str) -> Vec<String> {
    let single = OPTIONS.iter().filter(|option| !has(config, option));
    let mut missing: Vec<_> = single.map(|&option| option.to_owned()).collect();
    if !DRIVERS.iter().any(|option| has(config, option)) {
        missing.push(format!("a driver for the IOMMU ({})", DRIVERS.join(" or ")));
    }
    missing
}

/// Examines whether the driver is loaded, or can be.
pub(super) fn driver(system: &System) -> Finding {
    const WHAT: &str = "driver";
    if system.sysfs().driver_loaded() {
        return Finding::good(WHAT, "loaded");
    }
    let release = system.release().unwrap_or_default();
    let modules = system.read(format!("lib/modules/{release}/modules.dep"));
    let module = modules.as_deref().and_then(installed);
    if let Some(module) = module {
        let module = format!("lib/modules/{release}/{module}");
        return match signature::demanded(system) {
            Some(why) => signature::unloaded(system, &module, &why),
            None => Finding::wrong(
                WHAT,
                "the module is not loaded",
                "`modprobe pinmap`, as root",
            ),
        };
    }
    Finding::wrong(
        WHAT,
        "there is no module pinmap for this kernel",
        format!(
            "install the package pinmap-dkms, and the headers of Linux {release}; or in pinmap's \
             sources `make`, and then, as root, `make install && modprobe pinmap`, which also \
             makes the group and the udev rule"
        ),
    )
}

/// The driver's module in a list of modules (`modules.dep`), by its path in the directory of the
/// list.
fn installed(modules: &str) -> Option<&str> {
    let paths = modules.lines().filter_map(|line| line.split(':').next());
    paths.into_iter().find(|path| {
        let name = path.rsplit('/').next().unwrap_or(path);
        name == "pinmap.ko" || name.starts_with("pinmap.ko.")
    })
}

/// Examines transparent huge pages, which make registering faster.
fn huge_pages(system: &System) -> Option<Finding> {
    let setting = system.read("sys/kernel/mm/transparent_hugepage/enabled")?;
    setting.contains("[never]").then(|| {
        Finding::note(
            "huge pages",
            "the kernel does not use transparent huge pages, so large memory is registered page by \
             page",
            "`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`, as root",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::system::tests::Fake;
    use super::super::Level;
    use super::*;

    fn release(release: &str) -> Fake {
        Fake::new(&[("proc/sys/kernel/osrelease", release)])
    }

    #[test]
    fn versions_are_judged() {
        for (text, loaded, level) in [
            ("6.12.9-amd64", false, Level::Wrong),
            ("7.2.12", false, Level::Wrong),
            ("7.3.4-amd64", false, Level::Good),
            ("7.4.0", false, Level::Note),
            ("8.0", false, Level::Note),
            ("strange", false, Level::Note),
            // The driver is loaded, so the version is right.
            ("7.4.0", true, Level::Good),
        ] {
            let finding = version(&release(text).system(), loaded);
            assert_eq!(finding.level, level, "{finding:?}");
        }
        assert_eq!(
            version(&System::at("/nonexistent"), false).level,
            Level::Note
        );
    }

    #[test]
    fn options_that_nobody_tells_are_named() {
        let findings = options(&release("7.3.4").system(), false);
        assert_eq!(findings[0].level, Level::Note);
        let fix = findings[0].fix.as_deref().unwrap_or_default();
        assert!(OPTIONS.iter().all(|option| fix.contains(option)), "{fix}");
    }

    #[test]
    fn the_module_is_loaded_or_built() {
        let fake = release("7.3.4");
        let fix = |fake: &Fake| driver(&fake.system()).fix.unwrap_or_default();
        for part in [
            "pinmap-dkms",
            "7.3.4",
            "`make`",
            "`make install && modprobe",
        ] {
            assert!(fix(&fake).contains(part), "{}", fix(&fake));
        }
        fake.write("lib/modules/7.3.4/modules.dep", "kernel/fs/ext4/ext4.ko:\n");
        assert!(fix(&fake).contains("make install"), "{}", fix(&fake));
        fake.write("lib/modules/7.3.4/modules.dep", "updates/pinmap.ko:\n");
        assert_eq!(fix(&fake), "`modprobe pinmap`, as root");
        fake.write("sys/kernel/security/lockdown", "none [integrity]");
        assert!(fix(&fake).contains("mokutil"), "{}", fix(&fake));
        fake.write("sys/bus/pci/drivers/pinmap/bind", "");
        assert_eq!(driver(&fake.system()), Finding::good("driver", "loaded"));
    }

    #[test]
    fn kernels_without_mirrors_are_noted() {
        const CONFIG: &str = "boot/config-7.3.4";
        let found = |config| {
            let fake = release("7.3.4");
            fake.write(CONFIG, config);
            managed(&fake.system()).map(|found| found.level)
        };
        assert_eq!(found("CONFIG_HMM_MIRROR=y\n"), Some(Level::Good));
        assert_eq!(found("CONFIG_RUST=y\n"), Some(Level::Note));
        let large = "CONFIG_PAGE_SHIFT=14\nCONFIG_HMM_MIRROR=y\n";
        assert_eq!(found(large), Some(Level::Note));
        assert_eq!(managed(&release("7.3.4").system()), None);
    }

    #[test]
    fn huge_pages_that_are_off_are_noted() {
        const PATH: &str = "sys/kernel/mm/transparent_hugepage/enabled";
        let found = |text| huge_pages(&Fake::new(&[(PATH, text)]).system());
        assert!(found("always madvise [never]").is_some_and(|found| found.level == Level::Note));
        assert_eq!(found("always [madvise] never"), None);
        assert_eq!(found("[always] madvise never"), None);
        assert_eq!(huge_pages(&System::at("/nonexistent")), None);
    }

    #[test]
    fn versions_are_read() {
        assert_eq!(numbers("7.3.4+deb14-amd64"), Some((7, 3)));
        assert_eq!(numbers("7.2"), Some((7, 2)));
        assert_eq!(numbers("linux"), None);
    }

    #[test]
    fn what_is_off_is_missing() {
        let all = OPTIONS.map(|option| format!("{option}=y\n")).concat();
        assert_eq!(missing(&format!("{all}CONFIG_AMD_IOMMU=y\n")), [""; 0]);
        let without = all.replace("CONFIG_RUST=y", "# CONFIG_RUST is not set");
        let missing = missing(&without);
        assert_eq!(missing[0], "CONFIG_RUST");
        assert!(missing[1].contains("CONFIG_INTEL_IOMMU or"), "{missing:?}");
        // A longer name with the same beginning does not count.
        assert!(super::missing("CONFIG_RUST_IS_AVAILABLE=y").contains(&"CONFIG_RUST".to_owned()));
    }
}
