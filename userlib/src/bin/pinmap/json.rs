// SPDX-License-Identifier: MIT OR Apache-2.0
//! JSON, as much of it as is needed to write.

use std::fmt;

/// A value.
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(u64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(&'static str, Json)>),
}

impl Json {
    /// An address: as text, for many readers keep only 53 bits of a number.
    pub(crate) fn address(address: u64) -> Self {
        Self::Text(format!("{address:#x}"))
    }

    /// A list of what can be a value.
    pub(crate) fn list(items: impl Iterator<Item = impl Into<Self>>) -> Self {
        Self::List(items.map(Into::into).collect())
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, indent: usize) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(value) => write!(f, "{value}"),
            Self::Text(text) => quote(f, text),
            Self::List(items) => {
                let item = |f: &mut fmt::Formatter<'_>, item: &Self| item.write(f, indent + 2);
                block(f, indent, ['[', ']'], items, item)
            }
            Self::Object(fields) => block(f, indent, ['{', '}'], fields, |f, (name, value)| {
                quote(f, name)?;
                f.write_str(": ")?;
                value.write(f, indent + 2)
            }),
        }
    }
}

impl From<bool> for Json {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<u64> for Json {
    fn from(value: u64) -> Self {
        Self::Number(value)
    }
}

impl From<u32> for Json {
    fn from(value: u32) -> Self {
        Self::Number(value.into())
    }
}

impl From<String> for Json {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl<T: Into<Json>> From<Option<T>> for Json {
    /// Null for none.
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// Items between brackets, each on a line of its own.
fn block<T>(
    f: &mut fmt::Formatter<'_>,
    indent: usize,
    [open, close]: [char; 2],
    items: &[T],
    write: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    if items.is_empty() {
        return write!(f, "{open}{close}");
    }
    write!(f, "{open}")?;
    for (i, item) in items.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        write!(f, "{comma}\n{:1$}", "", indent + 2)?;
        write(f, item)?;
    }
    write!(f, "\n{:1$}{close}", "", indent)
}

fn quote(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            '\n' => f.write_str("\\n")?,
            c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
            c => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written() {
        let json = Json::Object(vec![
            (
                "a",
                Json::List(vec![Json::Number(u64::MAX), Json::Bool(true)]),
            ),
            ("b", Json::Object(vec![("c", Json::Null)])),
            ("d", Json::List(Vec::new())),
            ("e", Json::address(0xfee0_0000)),
        ]);
        let text = "{\n  \"a\": [\n    18446744073709551615,\n    true\n  ],\n  \"b\": {\n    \"c\": null\n  },\n  \"d\": [],\n  \"e\": \"0xfee00000\"\n}";
        assert_eq!(json.to_string(), text);
    }

    #[test]
    fn text_is_quoted() {
        let text = Json::Text("a\"b\\c\nd\u{1}é".to_owned());
        assert_eq!(text.to_string(), "\"a\\\"b\\\\c\\nd\\u0001é\"");
    }
}
