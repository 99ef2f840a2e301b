// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words of a command line: options, their values, and the others.

use crate::args::Error;
use crate::size;

/// What follows the command's name.
pub(crate) struct Words {
    rest: std::vec::IntoIter<String>,
    positional: Vec<String>,
    /// The value of the last option, in `--option=value`.
    inline: Option<String>,
}

impl Words {
    pub(crate) fn new(words: std::vec::IntoIter<String>) -> Self {
        Self {
            rest: words,
            positional: Vec::new(),
            inline: None,
        }
    }

    /// The next option; what is none is put aside.
    pub(crate) fn option(&mut self) -> Result<Option<String>, Error> {
        if let Some(value) = &self.inline {
            return Err(Error(format!("`={value}` is too much")));
        }
        while let Some(word) = self.rest.next() {
            if word == "--" {
                self.positional.extend(&mut self.rest);
            } else if let Some((option, value)) =
                word.split_once('=').filter(|_| word.starts_with("--"))
            {
                self.inline = Some(value.to_owned());
                return Ok(Some(option.to_owned()));
            } else if word.starts_with('-') && word.len() > 1 {
                return Ok(Some(word));
            } else {
                self.positional.push(word);
            }
        }
        Ok(None)
    }

    /// The value of an option.
    pub(crate) fn value(&mut self, option: &str) -> Result<String, Error> {
        let value = self.inline.take().or_else(|| self.rest.next());
        value.ok_or_else(|| Error(format!("{option} needs a value")))
    }

    /// The value of an option, as a number of bytes.
    pub(crate) fn bytes(&mut self, option: &str) -> Result<u64, Error> {
        let value = self.value(option)?;
        let wrong = || {
            Error(format!(
                "{option} must be a number of bytes, such as 16384, 16K or 1G"
            ))
        };
        size::parse(&value).ok_or_else(wrong)
    }

    /// What is no option, once all options were asked for.
    pub(crate) fn at_most_one(&mut self, what: &str) -> Result<Option<String>, Error> {
        if self.positional.len() > 1 {
            return Err(Error(format!("there can be only one {what}")));
        }
        Ok(self.positional.pop())
    }

    /// Nothing may follow.
    pub(crate) fn none<T>(&mut self, value: T) -> Result<T, Error> {
        match self
            .positional
            .first()
            .cloned()
            .or_else(|| self.rest.next())
        {
            Some(word) => Err(Error(format!("`{word}` is too much"))),
            None => Ok(value),
        }
    }
}
