// SPDX-License-Identifier: MIT OR Apache-2.0
//! `pinmap explain`: where a page of managed memory is, who has it mapped, and why.
//!
//! The driver lists managed memory in debugfs, one file for each function, in runs of pages that
//! are alike. What the CPU may do at the address is in `/proc/PID/maps`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use pinmap::inspect::Rule;
use serde::Serialize;

use crate::args::ExplainOptions;
use crate::{size, Result};

mod range;

use range::{Range, RangeJson};

/// Where the driver's directories are.
const DEBUGFS: &str = "/sys/kernel/debug/pinmap";

/// A run of pages that are alike: one line of the list.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    device: String,
    context: u64,
    pid: u32,
    start: u64,
    length: u64,
    place: Place,
    access: String,
    advice: Vec<String>,
    rule: String,
}

/// Where pages are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Absent,
    Host,
    Device,
}

/// Rights and name of the memory at the address, from `/proc/PID/maps`.
#[derive(Debug, PartialEq, Eq)]
struct Area {
    rights: String,
    name: String,
}

/// The output with `--json`. Addresses are strings, because many readers keep only 53 bits.
#[derive(Serialize)]
struct ExplainJson<'a> {
    device: &'a str,
    context: u64,
    pid: u32,
    addr: String,
    run: RunJson,
    place: &'a str,
    device_access: Option<&'a str>,
    cpu_access: Option<&'a str>,
    area: Option<&'a str>,
    advice: &'a [String],
    rule: &'a str,
    why: Option<String>,
    range: Option<RangeJson<'a>>,
}

#[derive(Serialize)]
struct RunJson {
    start: String,
    length: u64,
}

/// Writes where a page is, for each context that manages it.
pub(crate) fn run(options: &ExplainOptions, out: &mut impl Write) -> Result<()> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", options.pid));
    if maps
        .as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    {
        return Err(format!("there is no process {}", options.pid).into());
    }
    let area = maps.ok().map(|maps| area(&maps, options.addr));
    let list = read(Path::new(DEBUGFS), "managed")?;
    let ranges = read(Path::new(DEBUGFS), "ranges")?;
    explain(&list, &ranges, area, options, out)
}

/// Reads the lists of this name of all functions.
fn read(debugfs: &Path, name: &str) -> Result<String> {
    let fail = |path: &Path, error: io::Error| {
        let how = match error.kind() {
            io::ErrorKind::PermissionDenied => "be root",
            _ => "load the driver, and mount debugfs (`mount -t debugfs none /sys/kernel/debug`)",
        };
        format!("cannot read {}: {error}; {how}", path.display())
    };
    let entries = fs::read_dir(debugfs).map_err(|error| fail(debugfs, error))?;
    let path = |entry: io::Result<fs::DirEntry>| Some(entry.ok()?.path().join(name));
    let mut files: Vec<PathBuf> = entries.filter_map(path).collect();
    files.sort_unstable();
    let mut all = String::new();
    for file in files {
        match fs::read_to_string(&file) {
            Ok(text) => all.push_str(&text),
            // A flat device has no such list, and a device may go away.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(fail(&file, error).into()),
        }
    }
    Ok(all)
}

/// A number as the driver writes it.
fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

/// Reads a line of the list. `None`: it has another form.
fn parse(line: &str) -> Option<Run> {
    let mut words = line.split_ascii_whitespace();
    let mut next = || words.next();
    let run = Run {
        device: next()?.to_owned(),
        context: number(next()?)?,
        pid: next()?.parse().ok()?,
        start: number(next()?)?,
        length: number(next()?)?,
        place: match next()? {
            "absent" => Place::Absent,
            "host" => Place::Host,
            "device" => Place::Device,
            _ => return None,
        },
        access: next()
            .filter(|word| ["-", "r", "w", "rw"].contains(word))?
            .to_owned(),
        advice: match next()? {
            "-" => Vec::new(),
            names => names.split(',').map(str::to_owned).collect(),
        },
        rule: next()?.to_owned(),
    };
    run.start.checked_add(run.length)?;
    Some(run)
}

/// The area of the program's memory at an address. `None`: nothing is mapped there.
fn area(maps: &str, addr: u64) -> Option<Area> {
    maps.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (first, end) = words.next()?.split_once('-')?;
        let hex = |word| u64::from_str_radix(word, 16).ok();
        if !(hex(first)?..hex(end)?).contains(&addr) {
            return None;
        }
        let rights = words.next()?.to_owned();
        // Offset, device and inode come before the name.
        let name: Vec<_> = words.skip(3).collect();
        Some(Area {
            rights,
            name: name.join(" "),
        })
    })
}

/// Writes what the lists say of an address. `area`: what is mapped there, if that is known.
fn explain(
    list: &str,
    ranges: &str,
    area: Option<Option<Area>>,
    options: &ExplainOptions,
    out: &mut impl Write,
) -> Result<()> {
    let lines = list
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut own = Vec::new();
    for line in lines {
        let run = parse(line).ok_or_else(|| {
            format!("the driver's list of managed memory has a line of another form: {line}")
        })?;
        if run.pid == options.pid {
            own.push(run);
        }
    }
    if own.is_empty() {
        let pid = options.pid;
        return Err(format!("process {pid} has no managed memory on any device").into());
    }
    let here = |run: &&Run| (run.start..run.start + run.length).contains(&options.addr);
    let runs: Vec<_> = own.iter().filter(here).collect();
    if runs.is_empty() {
        let nothing = matches!(area, Some(None));
        let why = match nothing {
            true => "nothing is mapped there",
            false => "it is nowhere yet (not touched, or swapped out), or not managed",
        };
        let (pid, addr, count) = (options.pid, options.addr, own.len());
        return Err(format!(
            "the driver has nothing to tell of {addr:#x} in process {pid}: {why}; it tells of \
             {count} other runs of pages"
        )
        .into());
    }
    let area = area.flatten();
    let ranges: Vec<_> = ranges.lines().filter_map(range::parse).collect();
    let range = |run| Range::find(&ranges, run, options.addr);
    if options.json {
        let json: Vec<_> = runs
            .iter()
            .map(|run| json(run, range(run), area.as_ref(), options))
            .collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&json)?)?;
        return Ok(());
    }
    for run in runs {
        text(run, range(run), area.as_ref(), options, out)?;
    }
    Ok(())
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Host => "host",
            Self::Device => "device",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Absent => "nowhere: not touched yet, swapped out, or on another device",
            Self::Host => "in the host's memory",
            Self::Device => "in the device's memory; that the CPU touches it brings it home",
        }
    }
}

/// Describes what the device can do.
fn device_rights(access: &str) -> &'static str {
    match access {
        "rw" => "has it mapped, and reads and writes it without a fault",
        "r" => "has it mapped, and reads it without a fault; a write is one",
        "w" => "has it mapped, and writes it without a fault; a read is one",
        _ => "does not have it mapped: its next access is a fault",
    }
}

/// Describes what the CPU can do.
fn cpu_rights(place: Place, area: Option<&Area>) -> String {
    let Some(Area { rights, name }) = area else {
        return "not known".to_owned();
    };
    let may = match (rights.contains('r'), rights.contains('w')) {
        (true, true) => "may read and write it",
        (true, false) => "may read it",
        (false, true) => "may write it",
        (false, false) => "may not access it",
    };
    let has = match place {
        Place::Host => "can have it mapped",
        Place::Absent | Place::Device => "does not have it mapped",
    };
    let name = match name.is_empty() {
        true => String::new(),
        false => format!(" {name}"),
    };
    format!("{may}, and {has} ({rights}{name})")
}

/// An advice in words.
fn advice_words(name: &str) -> &str {
    match name {
        "prefer-host" => "prefer the host",
        "prefer-device" => "prefer the device",
        "accessed-by" => "accessed by the device",
        "read-mostly" => "read mostly",
        other => other,
    }
}

fn text(
    run: &Run,
    range: Option<&Range>,
    area: Option<&Area>,
    options: &ExplainOptions,
    out: &mut impl Write,
) -> io::Result<()> {
    let Run {
        device, context, ..
    } = run;
    let (addr, pid) = (options.addr, options.pid);
    writeln!(
        out,
        "{addr:#x} in process {pid}, for context {context} of {device}"
    )?;
    writeln!(out, "  place   {}", run.place.words())?;
    writeln!(out, "  device  {}", device_rights(&run.access))?;
    writeln!(out, "  CPU     {}", cpu_rights(run.place, area))?;
    let advice: Vec<_> = run.advice.iter().map(|name| advice_words(name)).collect();
    let advice = match advice.is_empty() {
        true => "none".to_owned(),
        false => advice.join(", "),
    };
    writeln!(out, "  advice  {advice}")?;
    let why = why(&run.rule).unwrap_or_else(|| "a rule that is newer than this program".into());
    writeln!(out, "  rule    {}: {why}", run.rule)?;
    let (length, start) = (size::format(run.length), run.start);
    writeln!(out, "  alike   {length} from {start:#x} on")?;
    if let Some(range) = range {
        writeln!(out, "  range   {}", range.words())?;
    }
    Ok(())
}

/// A rule in words.
fn why(rule: &str) -> Option<String> {
    rule.parse::<Rule>().ok().map(|rule| rule.to_string())
}

fn json<'a>(
    run: &'a Run,
    range: Option<&'a Range>,
    area: Option<&'a Area>,
    options: &ExplainOptions,
) -> ExplainJson<'a> {
    ExplainJson {
        device: &run.device,
        context: run.context,
        pid: run.pid,
        addr: format!("{:#x}", options.addr),
        run: RunJson {
            start: format!("{:#x}", run.start),
            length: run.length,
        },
        place: run.place.name(),
        device_access: Some(&*run.access).filter(|&access| access != "-"),
        cpu_access: area.map(|area| &*area.rights),
        area: area.map(|area| &*area.name).filter(|name| !name.is_empty()),
        advice: &run.advice,
        rule: &run.rule,
        why: why(&run.rule),
        range: range.map(range::json),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
# device context pid start length place access advice rule
0000:00:10.0 3 1234 0x7f0000000000 2097152 device rw - touched
0000:00:10.0 3 1234 0x7f0000200000 4096 host r prefer-host,read-mostly advised
0000:00:10.0 3 1234 0x7f0000201000 8192 absent - - none
0000:00:10.0 4 77 0x7f0000000000 4096 host - - home
# device context pid start length place access advice rule
0000:00:11.0 1 1234 0x7f0000200000 4096 host - accessed-by,frob newer
";

    const RANGES: &str = "\
# device context pid handle kind start length faults in home evicted refused last-addr last-access \
last-reason
0000:00:10.0 3 1234 1 range 0x0 140737488351232 7 4096 0 0 0 - - -
0000:00:10.0 3 1234 2 window 0x7f0000200000 2097152 12 8192 4096 0 2 0x7f0000203000 write permission
0000:00:10.0 4 77 2 window 0x7f0000000000 2097152 1 0 0 0 1 0x7f0000000000 read hole
";

    const MAPS: &str = "\
7f0000000000-7f0000300000 rw-p 00000000 00:00 0
7f0000300000-7f0000301000 r--s 00000000 00:01 5                          /memfd:a b (deleted)
";

    fn options(pid: u32, addr: u64, json: bool) -> ExplainOptions {
        ExplainOptions { pid, addr, json }
    }

    fn told(pid: u32, addr: u64, json: bool) -> Result<String> {
        let mut out = Vec::new();
        let options = options(pid, addr, json);
        explain(LIST, RANGES, Some(area(MAPS, addr)), &options, &mut out)?;
        Ok(String::from_utf8(out)?)
    }

    fn has(text: &str, parts: &[&str]) {
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_page_on_the_device_is_explained() {
        let text = told(1234, 0x7f00_0010_0008, false).expect("told");
        has(
            &text,
            &[
                "0x7f0000100008 in process 1234, for context 3 of 0000:00:10.0",
                "in the device's memory",
                "reads and writes it without a fault",
                "may read and write it, and does not have it mapped (rw-p)",
                "advice  none",
                "touched: the device has touched it, and nothing spoke against",
                "2 MiB from 0x7f0000000000 on",
                "range   all addresses: 7 faults of the device served, 4 KiB moved there",
            ],
        );
    }

    #[test]
    fn every_device_that_manages_a_page_is_told() {
        let text = told(1234, 0x7f00_0020_0fff, false).expect("told");
        has(
            &text,
            &[
                "context 3 of 0000:00:10.0",
                "reads it without a fault; a write is one",
                "can have it mapped",
                "prefer the host, read mostly",
                "it stays on the host by advice",
                "context 1 of 0000:00:11.0",
                "does not have it mapped: its next access",
                "accessed by the device, frob",
                "newer: a rule that is newer",
            ],
        );
        assert!(!text.contains("context 4"), "{text}");
        let window =
            "window of 2 MiB from 0x7f0000200000 on: 12 faults of the device served, 8 KiB \
                      moved there, 4 KiB home, 0 bytes evicted; 2 refused, the last: a write at \
                      0x7f0000203000 (permission)";
        assert_eq!(text.matches(window).count(), 1, "{text}");
        assert!(!text.contains("hole"), "{text}");
        let text = told(1234, 0x7f00_0020_2000, false).expect("told");
        has(&text, &["nowhere", "neither the device nor a call"]);
    }

    #[test]
    fn json_has_the_same() {
        let text = told(1234, 0x7f00_0020_0000, true).expect("told");
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(json.as_array().map(Vec::len), Some(2));
        assert_eq!(json[0]["place"], "host");
        assert_eq!(json[0]["addr"], "0x7f0000200000");
        assert_eq!(json[0]["run"]["length"], 4096);
        assert_eq!(json[0]["device_access"], "r");
        assert_eq!(json[0]["cpu_access"], "rw-p");
        assert_eq!(json[0]["advice"][1], "read-mostly");
        assert_eq!(json[0]["why"], "it stays on the host by advice");
        assert!(json[1]["device_access"].is_null() && json[1]["why"].is_null());
        assert_eq!(json[1]["rule"], "newer");
        let range = &json[0]["range"];
        assert_eq!(
            (&range["window"], &range["faults"]),
            (&true.into(), &12.into())
        );
        assert_eq!(range["last_refused"]["addr"], "0x7f0000203000");
        assert_eq!(range["last_refused"]["reason"], "permission");
        assert!(json[1]["range"].is_null());
    }

    #[test]
    fn what_is_not_managed_is_told() {
        let error = |pid, addr| told(pid, addr, false).expect_err("refused").to_string();
        has(&error(5, 0), &["process 5 has no managed memory"]);
        has(
            &error(1234, 0x1000),
            &["0x1000", "nothing is mapped there", "4 other runs"],
        );
        has(
            &error(1234, 0x7f00_0029_0000),
            &["nowhere yet", "or not managed"],
        );
    }

    #[test]
    fn lines_of_another_form_are_told() {
        for line in [
            "0000:00:10.0 3 1234 0x1000 4096 device rw -",
            "0000:00:10.0 3 1234 0x1000 4096 moon rw - touched",
            "0000:00:10.0 3 1234 0x1000 4096 host x - touched",
            "0000:00:10.0 3 1234 0xffffffffffffffff 4096 host r - touched",
            "0000:00:10.0 3 1234 x 4096 host r - touched",
        ] {
            let options = options(1234, 0x1000, false);
            let error = explain(line, "", None, &options, &mut Vec::new()).expect_err(line);
            has(&error.to_string(), &["another form", line]);
        }
    }

    #[test]
    fn areas_are_found() {
        let file = area(MAPS, 0x7f00_0030_0fff).expect("an area");
        assert_eq!(
            (&*file.rights, &*file.name),
            ("r--s", "/memfd:a b (deleted)")
        );
        assert_eq!(area(MAPS, 0x7f00_0030_1000), None);
        assert_eq!(cpu_rights(Place::Host, None), "not known");
        has(
            &cpu_rights(Place::Host, Some(&file)),
            &["may read it", "(r--s /memfd"],
        );
    }

    #[test]
    fn lists_of_all_functions_are_read() {
        let dir = std::env::temp_dir().join(format!("pinmap-explain-{}", std::process::id()));
        for (function, text) in [("0000:00:10.0", "# a\none\n"), ("0000:00:11.0", "two\n")] {
            fs::create_dir_all(dir.join(function)).expect("a directory");
            fs::write(dir.join(function).join("managed"), text).expect("a list");
        }
        // A flat device.
        fs::create_dir_all(dir.join("0000:00:12.0")).expect("a directory");
        assert_eq!(read(&dir, "managed").expect("lists"), "# a\none\ntwo\n");
        assert_eq!(read(&dir, "ranges").expect("no lists"), "");
        fs::remove_dir_all(&dir).expect("gone");
        let error = read(&dir, "managed").expect_err("nothing").to_string();
        has(&error, &["mount debugfs"]);
    }
}
