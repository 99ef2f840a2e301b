// SPDX-License-Identifier: MIT OR Apache-2.0
//! One measurement of the bench.

use std::fmt;
use std::str::FromStr;

/// Record of one system in one case, as the bench prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) case: Case,
    pub(crate) system: String,
    pub(crate) median: u64,
    pub(crate) q1: u64,
    pub(crate) q3: u64,
    pub(crate) rounds: u64,
}

/// A case: `operation/size/kind/label`, or `managed/kind/size`, whose label is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) operation: String,
    pub(crate) size: String,
    pub(crate) kind: String,
    pub(crate) label: String,
}

impl Case {
    /// Returns the size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let digits = self.size.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = match &self.size[digits.len()..] {
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => 1,
        };
        digits.parse::<u64>().unwrap_or(0).saturating_mul(unit)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            operation,
            size,
            kind,
            label,
        } = self;
        if label.is_empty() {
            return write!(f, "{operation}/{kind}/{size}");
        }
        write!(f, "{operation}/{size}/{kind}/{label}")
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('/').collect();
        let [operation, size, kind, label] = match parts[..] {
            ["managed", kind, size] => ["managed", size, kind, ""],
            [operation, size, kind, label] => [operation, size, kind, label],
            _ => return Err(format!("'{text}' is not operation/size/kind/label")),
        };
        Ok(Self {
            operation: operation.into(),
            size: size.into(),
            kind: kind.into(),
            label: label.into(),
        })
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{{\"case\": \"{}\", \"system\": \"{}\", \"median_ns\": {}, \"q1_ns\": {}, \"q3_ns\": \
             {}, \"rounds\": {}}}",
            self.case, self.system, self.median, self.q1, self.q3, self.rounds
        )
    }
}

/// Returns the value of a field in an object without nesting or escapes. The bench prints no
/// others.
fn field<'a>(line: &'a str, name: &str) -> Result<&'a str, String> {
    let missing = || format!("there is no '{name}' in: {line}");
    let key = format!("\"{name}\":");
    let start = line.find(&key).ok_or_else(missing)? + key.len();
    let rest = line[start..].trim_start();
    let end = match rest.strip_prefix('"') {
        Some(text) => return text.split('"').next().ok_or_else(missing),
        None => rest.find([',', '}']).ok_or_else(missing)?,
    };
    Ok(rest[..end].trim())
}

impl FromStr for Record {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let number = |name| {
            field(line, name)?
                .parse()
                .map_err(|_| format!("'{name}' is not a number in: {line}"))
        };
        Ok(Self {
            case: field(line, "case")?.parse()?,
            system: field(line, "system")?.into(),
            median: number("median_ns")?,
            q1: number("q1_ns")?,
            q3: number("q3_ns")?,
            rounds: number("rounds")?,
        })
    }
}

/// Returns the median of a system in a case like this one.
pub(crate) fn median(records: &[Record], case: &Case, system: &str) -> Option<u64> {
    records
        .iter()
        .find(|record| record.case == *case && record.system == system)
        .map(|record| record.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read() {
        let line = "{\"case\": \"register/64MiB/thp/cm-on\", \"system\": \"vfio\", \"median_ns\": \
                    12, \"q1_ns\": 11, \"q3_ns\": 15, \"rounds\": 7}";
        let record: Record = line.parse().unwrap();
        assert_eq!(record.to_string(), line);
        assert_eq!(record.case.bytes(), 64 << 20);
        let line = line.replace("register/64MiB/thp/cm-on", "managed/to-host/64MiB");
        let record: Record = line.parse().unwrap();
        assert_eq!(record.to_string(), line);
        assert_eq!(
            (&*record.case.kind, record.case.bytes()),
            ("to-host", 64 << 20)
        );
        assert!("{\"case\": \"register/64MiB\"}".parse::<Record>().is_err());
    }
}
