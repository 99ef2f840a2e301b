// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `pinmap` and the example `edu`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::process::Command;

use nix::pty::openpty;
use nix::sys::resource::{setrlimit, Resource};
use pinmap::{Access, Buffer};
use serde_json::Value;

use crate::gpu::gpu;
use crate::harness::{skip, Outcome};
use crate::lent::faulting;
use crate::setup::{become_user, device, devices, is_slow, pattern, PAGE};
use crate::stale::{while_unbound, with_new_node};

/// The exit status, stdout and stderr of a command.
type Output = (Option<i32>, String, String);

pub(crate) fn run(line: &str) -> Result<Output, Box<dyn std::error::Error>> {
    let words: Vec<_> = line.split(' ').collect();
    let output = Command::new(words[0]).args(&words[1..]).output()?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Ok((
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    ))
}

pub(crate) fn command_info() -> Outcome {
    let device = device()?;
    let (node, pci) = (device.path().display().to_string(), device.info()?.pci);
    let (status, out, err) = run("pinmap info")?;
    assert_eq!((status, &*err), (Some(0), ""));
    for part in [
        "driver            loaded",
        &node,
        &pci.to_string(),
        "flat, free",
        "  in use          by no program",
        "(MSI)",
        "BAR 0",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (status, out, _) = run(&format!("pinmap info --json {pci}"))?;
    assert_eq!(status, Some(0));
    for part in [
        &format!("\"node\": \"{node}\""),
        "\"driver_loaded\": true",
        "\"kind\": \"flat\"",
        "\"totals\": {",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (status, out, err) = run("pinmap info /dev/pinmap999")?;
    assert_eq!((status, &*out), (Some(1), ""));
    assert!(
        err.starts_with("pinmap: cannot open /dev/pinmap999: "),
        "{err}"
    );
    assert!(err.contains("pinmap bind"), "{err}");
    Ok(())
}

pub(crate) fn command_cdi() -> Outcome {
    let device = device()?;
    let (node, pci) = (device.path().display().to_string(), device.info()?.pci);
    let (status, printed, err) = run("pinmap cdi")?;
    assert_eq!((status, &*err), (Some(0), ""));
    for part in [
        "\"kind\": \"pinmap/device\"".to_owned(),
        format!("\"name\": \"{pci}\""),
        "\"name\": \"all\"".to_owned(),
        format!("\"path\": \"{node}\""),
    ] {
        assert!(printed.contains(&part), "{part}: {printed}");
    }
    let directory = std::env::temp_dir().join("cdi-of-a-test");
    let file = directory.join("pinmap.json");
    let line = format!("pinmap cdi --output {}", file.display());
    assert_eq!(run(&line)?, (Some(0), String::new(), String::new()));
    assert_eq!(std::fs::read_to_string(&file)?, printed);
    std::fs::remove_dir_all(directory)?;
    let (status, _, err) = run("pinmap cdi --output /proc/pinmap.json")?;
    assert_eq!(status, Some(1));
    assert!(err.contains("cannot write /proc/pinmap.json: "), "{err}");
    Ok(())
}

pub(crate) fn command_info_without_permission() -> Outcome {
    let node = device()?.path().display().to_string();
    become_user(None)?;
    let (status, out, _) = run("pinmap info")?;
    assert_eq!(status, Some(0));
    assert!(
        out.contains("1234:11e8") && out.contains("group `pinmap`"),
        "{out}"
    );
    let (status, _, err) = run("pinmap copy-test")?;
    assert_eq!(status, Some(1));
    assert!(err.contains("group `pinmap`"), "{err}");
    // Of all nodes, the one of the device that the test is for.
    assert!(err.contains(&node), "{node}: {err}");
    let (status, _, err) = run("pinmap info --need 1T")?;
    assert_eq!(status, Some(1));
    assert!(err.contains("ulimit -l 1073741824"), "{err}");
    Ok(())
}

/// `info` tells what registering would take, by PREFLIGHT, also while somebody else has the device.
pub(crate) fn command_info_asks_the_driver() -> Outcome {
    let device = device()?;
    let node = device.path().display().to_string();
    let most = device.info()?.max_registrations;
    let _owned = Buffer::<u8>::new(PAGE)?.register(&device, Access::Read)?;
    let (status, out, err) = run(&format!("pinmap info --need 5000 {node}"))?;
    assert_eq!((status, &*err), (Some(0), ""), "{out}");
    let says = format!(
        "5000 bytes more can be registered: 8 KiB locked, without a limit, 1 \
        of {most} registrations"
    );
    assert!(out.contains(&says), "{out}");
    // More than the machine has, without touching it, and where there is no limit.
    let (status, out, err) = run(&format!("pinmap info --json --need 1T {node}"))?;
    assert_eq!(status, Some(1), "{out}");
    assert!(
        err.contains("1 TiB cannot be registered: this machine has "),
        "{err}"
    );
    for part in ["\"memlock_needed\": 1099511627776", "\"enough\": false"] {
        assert!(out.contains(part), "{out}");
    }
    // More than fits an address space.
    let (status, _, err) = run(&format!("pinmap info --need 100T {node}"))?;
    assert_eq!(status, Some(1), "{err}");
    assert!(
        err.contains("100 TiB cannot be registered: this machine has "),
        "{err}"
    );

    setrlimit(Resource::RLIMIT_MEMLOCK, 1 << 20, 1 << 20)?;
    become_user(Some(device.path()))?;
    let (status, out, err) = run(&format!("pinmap info --need 1M {node}"))?;
    assert_eq!((status, &*err), (Some(0), ""), "{out}");
    assert!(out.contains(": 1 MiB of 1 MiB locked, 1 of"), "{out}");
    // The command tells how to get more anyway.
    assert!(
        out.contains("1 MiB allowed (RLIMIT_MEMLOCK), 0 bytes used")
            && out.contains("ulimit -l 65536"),
        "{out}"
    );
    let (status, out, err) = run(&format!("pinmap info --need 1048577 {node}"))?;
    assert_eq!(status, Some(1), "{out}");
    for part in [
        "would make 1052672 bytes locked",
        "RLIMIT_MEMLOCK allows 1048576",
        "`ulimit -l 1028`",
        "LimitMEMLOCK=1052672",
    ] {
        assert!(err.contains(part), "{part}: {err}");
    }
    let (status, out, _) = run(&format!("pinmap info --json --need 2M {node}"))?;
    assert_eq!(status, Some(1));
    for part in [
        "\"enough\": false",
        "\"preflight\": {",
        "LimitMEMLOCK=2097152",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    Ok(())
}

/// The fields that docs/using.md tells are there; ids and addresses are strings, sizes numbers.
pub(crate) fn json_has_the_fields_of_the_manual() -> Outcome {
    device()?;
    let json = |line: &str| -> Result<Value, Box<dyn std::error::Error>> {
        let (_, out, err) = run(line)?;
        serde_json::from_str(&out).map_err(|error| format!("{line}: {error}: {out}{err}").into())
    };
    let info = json("pinmap info --json")?;
    assert!(
        info["driver_loaded"].is_boolean() && info["iommus"].is_array(),
        "{info}"
    );
    assert!(
        info["memlock"].is_object() && info["devices"].is_array(),
        "{info}"
    );
    let first = &info["devices"][0];
    assert!(
        first["vendor"].is_string() && first["aperture"]["first"].is_string(),
        "{first}"
    );
    assert!(first["totals"]["pinned"]["bytes"].is_u64(), "{first}");
    let doctor = json("pinmap doctor --json")?;
    assert!(doctor["usable"].is_boolean(), "{doctor}");
    for finding in doctor["findings"].as_array().ok_or("no findings")? {
        let fields = finding.as_object().ok_or("no object")?.keys();
        let fields: BTreeSet<_> = fields.map(String::as_str).collect();
        assert_eq!(fields, ["fix", "level", "text", "what"].into(), "{finding}");
        let level = finding["level"].as_str().ok_or("no level")?;
        assert!(["good", "note", "wrong"].contains(&level), "{finding}");
    }
    let copied = json("pinmap copy-test --json --size 5000")?;
    for field in ["bytes", "pieces", "seconds"] {
        assert!(copied[field].is_number(), "{field}: {copied}");
    }
    for place in ["source", "target"] {
        assert!(
            copied[place]["device_addr"].is_string(),
            "{place}: {copied}"
        );
    }
    assert!(
        copied["device"].is_string() && copied["pages"]["unpinned"].is_u64(),
        "{copied}"
    );
    let top = json("pinmap top --json --count 1")?;
    for field in ["devices", "contexts", "hidden_processes"] {
        assert!(!top[field].is_null(), "{field}: {top}");
    }
    Ok(())
}

/// Runs a command with a terminal, of which `NO_COLOR` may say that it has none. Returns what it
/// prints.
fn on_terminal(line: &str, no_color: bool) -> Result<String, Box<dyn std::error::Error>> {
    let terminal = openpty(None, None)?;
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().ok_or("a command")?);
    command
        .args(words)
        .env("TERM", "xterm")
        .stdout(terminal.slave);
    if no_color {
        command.env("NO_COLOR", "1");
    }
    let mut child = command.spawn()?;
    drop(command);
    let mut out = Vec::new();
    // It ends with EIO, when nobody has the other side.
    let _ = File::from(terminal.master).read_to_end(&mut out);
    child.wait()?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

pub(crate) fn colours_are_for_terminals() -> Outcome {
    device()?;
    for (line, no_color, has_colours) in [
        ("pinmap doctor", false, true),
        ("pinmap doctor", true, false),
        ("pinmap --color never doctor", false, false),
        ("pinmap --color always doctor", true, true),
    ] {
        let out = on_terminal(line, no_color)?;
        assert!(out.contains("driver"), "{line}: {out:?}");
        assert_eq!(out.contains('\x1b'), has_colours, "{line}: {out:?}");
    }
    Ok(())
}

pub(crate) fn command_copy_test() -> Outcome {
    device()?;
    let (status, out, err) = run("pinmap copy-test --size 6000 --identity")?;
    assert_eq!((status, &*err), (Some(0), ""), "{out}");
    assert_eq!(out.matches("equal: yes").count(), 2, "{out}");
    for part in [
        "bytes checked: 6000, all right",
        "4 acquired, 4 released, balanced",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (status, out, err) = run("pinmap copy-test --size 1 --address-bits 28")?;
    assert_eq!((status, &*err), (Some(0), ""), "{out}");
    assert_eq!(out.matches("equal: no").count(), 2, "{out}");
    let (status, out, err) = run("pinmap copy-test --json --size 5000")?;
    // Neither progress nor anything else is told where there is no terminal.
    assert_eq!((status, &*err), (Some(0), ""), "{out}");
    for part in [
        "\"bytes\": 5000",
        "\"factorial_of_10\": 3628800",
        "\"pinned\": 4",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    Ok(())
}

pub(crate) fn command_top() -> Outcome {
    let gpu = gpu()?;
    let _host = gpu.alloc::<u8>(3 << 20)?;
    let _local = gpu.alloc_vram::<u8>(5 << 20)?;
    let (status, out, err) = run("pinmap top --json --count 2 --interval 0.1")?;
    assert_eq!((status, &*err), (Some(0), ""), "{out}");
    let own = format!("\"pid\":{},", std::process::id());
    let samples: Vec<_> = out.lines().collect();
    assert_eq!(samples.len(), 2, "{out}");
    for sample in &samples {
        for part in [
            &own,
            "\"allocated\":3145728",
            "\"vram\":5242880",
            "\"kind\":\"paged\"",
        ] {
            assert!(sample.contains(part), "{part}: {sample}");
        }
    }
    // Rates are there from the second sample on.
    assert!(samples[0].contains("\"faults_per_second\":null"), "{out}");
    assert!(samples[1].contains("\"faults_per_second\":0.0"), "{out}");
    let (status, out, err) = run("pinmap top --once")?;
    assert_eq!((status, &*err), (Some(0), ""), "{out}");
    assert!(!out.contains('\x1b'), "{out:?}");
    let line = out.lines().find(|line| line.contains("crate-test"));
    let line = line.ok_or_else(|| format!("this process is not there: {out}"))?;
    assert!(line.contains("3.0M") && line.contains("5.0M"), "{line}");
    Ok(())
}

pub(crate) fn command_bind_and_unbind() -> Outcome {
    let Some(device) = devices()?.pop() else {
        return skip("there is no edu bound to pinmap");
    };
    let pci = device.info()?.pci;
    let (status, out, _) = run(&format!("pinmap bind {pci}"))?;
    assert_eq!(status, Some(0));
    assert!(out.contains("(as before)"), "{out}");

    let rule = PathBuf::from(format!("/sys/bus/pci/devices/{pci}/driver_override"));
    while_unbound(&device, || {
        assert_eq!(std::fs::read_to_string(&rule)?.trim(), "(null)");
        assert!(pinmap::Device::list()?.iter().all(|node| node.pci != pci));
        let error = pinmap::Device::open_pci(pci).expect_err("unbound");
        assert!(
            error.to_string().contains("the driver is not bound to it"),
            "{error}"
        );
        let (status, _, err) = run(&format!("pinmap unbind {pci}"))?;
        assert_eq!(status, Some(1));
        assert!(err.contains("not bound to pinmap"), "{err}");
        Ok(())
    })?;
    assert_eq!(std::fs::read_to_string(&rule)?.trim(), "pinmap");

    if let Some(refused) = function_in_company()? {
        let (status, _, err) = run(&format!("pinmap bind {refused}"))?;
        assert_eq!(status, Some(1));
        assert!(
            err.contains("the kernel says: refused: its IOMMU group has other"),
            "{err}"
        );
        let rule = format!("/sys/bus/pci/devices/{refused}/driver_override");
        assert_eq!(std::fs::read_to_string(rule)?.trim(), "(null)");
    }

    become_user(None)?;
    let (status, _, err) = run("pinmap unbind 0000:00:10.0")?;
    assert_eq!(status, Some(1));
    assert!(err.contains("only root can unbind"), "{err}");
    Ok(())
}

pub(crate) fn command_replug() -> Outcome {
    let Some(device) = devices()?.pop() else {
        return skip("there is no edu bound to pinmap");
    };
    let pci = device.info()?.pci;
    let (status, _, err) = run(&format!("pinmap replug {pci}"))?;
    assert_eq!(status, Some(1));
    assert!(err.contains("in use: it is open 1 time"), "{err}");
    assert!(!device.info()?.gone);

    with_new_node(&device, || {
        let (status, out, err) = run(&format!("pinmap replug --force {pci}"))?;
        assert_eq!((status, &*err), (Some(0), ""));
        assert!(out.contains(&format!("{pci} is /dev/pinmap")), "{out}");
        assert!(device.info()?.gone);
        // The program runs while the function is gone, and whatever it says, the function is back.
        let function = format!("/sys/bus/pci/devices/{pci}");
        let (status, _, err) = run(&format!("pinmap replug {pci} -- test ! -e {function}"))?;
        assert_eq!((status, &*err), (Some(0), ""));
        let (status, _, err) = run(&format!("pinmap replug {pci} -- test -e {function}"))?;
        assert_eq!(status, Some(1));
        assert!(err.contains("test failed (exit status: 1)"), "{err}");
        let (status, _, err) = run(&format!("pinmap copy-test --size 4K --device {pci}"))?;
        assert_eq!((status, &*err), (Some(0), ""));
        Ok(())
    })?;

    become_user(None)?;
    let (status, _, err) = run(&format!("pinmap replug {pci}"))?;
    assert_eq!(status, Some(1));
    assert!(err.contains("only root can replug"), "{err}");
    Ok(())
}

/// A function without a driver that shares its IOMMU group with others: the driver refuses it.
pub(crate) fn function_in_company() -> Result<Option<String>, Box<dyn std::error::Error>> {
    for entry in std::fs::read_dir("/sys/bus/pci/devices")? {
        let entry = entry?;
        let members = std::fs::read_dir(entry.path().join("iommu_group/devices"));
        let members = members.map_or(0, |members| members.count());
        if members > 1 && !entry.path().join("driver").exists() {
            return Ok(entry.file_name().into_string().ok());
        }
    }
    Ok(None)
}

pub(crate) fn command_refuses_nonsense() -> Outcome {
    for (line, says) in [
        ("pinmap", "Usage: pinmap"),
        ("pinmap inof", "a similar subcommand exists: 'info'"),
        ("pinmap info --frob", "unexpected argument '--frob'"),
        ("pinmap bind 1", "not a PCI address"),
        ("pinmap copy-test --size 0", "at least 1"),
    ] {
        let (status, out, err) = run(line)?;
        assert_eq!((status, &*out), (Some(2), ""), "{line}");
        assert!(err.contains(says), "{line}: {err}");
        assert!(
            !err.contains('\x1b'),
            "colours where there is no terminal: {err:?}"
        );
    }
    let (status, out, err) = run("pinmap help doctor")?;
    assert_eq!((status, &*err), (Some(0), ""));
    assert!(out.contains("Exit status: 0, all is well"), "{out}");
    let (status, out, err) = run("pinmap completions bash")?;
    assert_eq!((status, &*err), (Some(0), ""));
    assert!(out.contains("_pinmap()"), "{out}");
    let directory = std::env::temp_dir();
    let (status, out, err) = run(&format!("pinmap man {}", directory.display()))?;
    assert_eq!((status, &*err), (Some(0), ""));
    for page in out.lines() {
        std::fs::remove_file(page)?;
    }
    assert!(out.contains("pinmap-copy-test.1"), "{out}");
    let (status, out, err) = run("pinmap --help")?;
    assert_eq!((status, &*err), (Some(0), ""));
    assert!(out.contains("Exit status"), "{out}");
    let (status, _, err) = run("pinmap bind ffff:00:00.0")?;
    assert_eq!(status, Some(1));
    assert!(err.contains("no PCI function"), "{err}");
    Ok(())
}

pub(crate) fn example_edu() -> Outcome {
    device()?;
    let (status, out, err) = run("edu")?;
    assert_eq!((status, &*err), (Some(0), ""), "{out}");
    for part in ["10! = 3628800", "4096 bytes there and back: all right"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    Ok(())
}

/// Runs an example, and asserts that it succeeds and prints these texts.
fn example(line: &str, parts: &[&str]) -> Outcome {
    let (status, out, err) = run(line)?;
    assert_eq!((status, &*err), (Some(0), ""), "{line}: {out}");
    for part in parts {
        assert!(out.contains(part), "{part}: {out}");
    }
    Ok(())
}

pub(crate) fn examples_of_queues() -> Outcome {
    let managed = gpu()?.device().info()?.managed;
    example(
        "zero_copy",
        &[
            "allocated, at",
            "registered, at",
            if managed { "managed, at" } else { "" },
            "[1.0, 2.0, 3.0,",
            "128 ints copied",
            "[0, 1, 2,",
        ],
    )?;
    example(
        "two_contexts",
        &["nothing is mapped there", "A: nothing has changed"],
    )?;
    let managed = if managed { "nobody registered" } else { "" };
    example("page_walk", &["the device's MMU", "the IOMMU", managed])
}

pub(crate) fn examples_of_streams() -> Outcome {
    gpu()?;
    example("overlap 4", &["two streams", "of the serial time"])?;
    example(
        "event_loop",
        &["200 streams", "one thread", "all results right"],
    )
}

pub(crate) fn example_pipeline() -> Outcome {
    gpu()?;
    // Some chunks and a bit. Without a file the example moves more than the device's memory holds.
    let path = "/tmp/pipeline";
    let chunks = if is_slow() { 9 } else { 40 };
    std::fs::write(path, pattern(3, (chunks << 20) + 12_345))?;
    example("pipeline /tmp/pipeline", &["100 %", "the two are equal"])?;
    Ok(std::fs::remove_file(path)?)
}

pub(crate) fn examples_of_managed_memory() -> Outcome {
    faulting()?;
    let small = if is_slow() { 4 } else { 32 };
    let size = format!(
        "{} MiB in two arrays, on a device with {small} MiB",
        3 * small
    );
    example(
        &format!("oversubscribe 3 {small}"),
        &[&size, "by faults", "prefetched", "numbers are right"],
    )?;
    example(
        "turns 6",
        &[
            "advice: none",
            "advice: prefer the host",
            "all numbers are right",
        ],
    )?;
    example("flag 8", &["8 rounds", "[8, 8]", "all numbers are right"])
}

/// Each checks its results itself.
pub(crate) fn examples_of_kernels() -> Outcome {
    let info = faulting()?.device().info()?;
    if !info.programs {
        return skip("the device executes no programs");
    }
    let sizes: [(&str, usize, &[&str]); 6] = [
        ("add", 4, &["4096 numbers"]),
        ("order", 6, &["piece 0 begins", "piece 5 ends"]),
        (
            "search",
            if is_slow() { 2 } else { 8 },
            &["levels", "MiB evicted"],
        ),
        ("join", 2, &["2048 rows with 8192"]),
        ("serve", 1, &["1024 of 1024 answers right"]),
        ("sort", 4, &["4096 numbers"]),
    ];
    for (name, size, parts) in sizes {
        let line = format!("kernels {name} {size}");
        example(&line, &[parts, &["all results are right"]].concat())?;
    }
    Ok(())
}

pub(crate) fn example_stream_costs() -> Outcome {
    if is_slow() {
        return skip("it moves gigabytes, and what it would measure here means nothing");
    }
    let limited = gpu()?.info()?.link.bandwidth.is_some();
    let names = [
        ("stream-submit/0KiB/packet", "ring"),
        ("stream-submit/0KiB/packet", "ring-and-end"),
        ("stream-submit/0KiB/packet", "stream"),
        ("stream-submit-in-a-row/0KiB/packet", "ring"),
        ("stream-submit-in-a-row/0KiB/packet", "ring-and-end"),
        ("stream-submit-in-a-row/0KiB/packet", "stream"),
        ("stream-submit-at-once/0KiB/packet", "ring"),
        ("stream-submit-at-once/0KiB/packet", "ring-and-end"),
        ("stream-submit-at-once/0KiB/packet", "stream"),
        ("stream-wait/0KiB/packet", "ring"),
        ("stream-wait/0KiB/packet", "pending"),
        ("stream-wait/0KiB/packet", "synchronize"),
        ("stream-event/0KiB/packet", "ring"),
        ("stream-event/0KiB/packet", "record"),
        ("stream-event/0KiB/packet", "submit-a-wait"),
        ("stream-event-wait/0KiB/packet", "another-stream"),
        ("stream-call/0KiB/packet", "eventfd"),
        ("stream-call/0KiB/packet", "there-and-back"),
        ("stream-call/0KiB/packet", "behind-a-packet"),
        ("stream-pipeline/", "serial"),
        ("stream-pipeline/", "one-stream"),
        ("stream-pipeline/", "two-streams"),
        ("stream-pipeline/", "three-streams"),
    ];
    let names = &names[..if limited {
        names.len()
    } else {
        names.len() - 4
    }];
    let path = "/tmp/stream_costs";
    example(
        &format!("stream_costs --json {path}"),
        &["x first", "another-stream"],
    )?;
    let out = std::fs::read_to_string(path)?;
    std::fs::remove_file(path)?;
    assert_eq!(out.lines().count(), names.len(), "{out}");
    for (record, (case, system)) in out.lines().zip(names) {
        assert!(
            record.starts_with(&format!("{{\"case\": \"{case}"))
                && record.contains(&format!("/testgpu\", \"system\": \"{system}\"")),
            "{record}"
        );
        let number = |name: &str| -> Result<u64, Box<dyn std::error::Error>> {
            let rest = record.split(&format!("\"{name}\": ")).nth(1);
            let text = rest.and_then(|text| text.split([',', '}']).next());
            Ok(text.ok_or("a number is missing")?.parse()?)
        };
        let [lower, median, upper] = ["q1_ns", "median_ns", "q3_ns"].map(number);
        let (lower, median, upper) = (lower?, median?, upper?);
        assert!(0 < lower && lower <= median && median <= upper, "{record}");
        assert!(number("rounds")? >= 5, "{record}");
    }
    let (status, _, err) = run("stream_costs --frob")?;
    assert!(status != Some(0) && err.contains("usage"), "{err}");
    Ok(())
}
