// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists the public items of a crate: without features, and how features change them.
//! `scripts/api` runs it.

use std::collections::{HashMap, HashSet};
use std::error::Error;

/// Traits that the compiler implements by itself, and no program can name.
const UNNAMED: [&str; 2] = ["core::marker::Freeze", "core::marker::StructuralPartialEq"];

fn main() -> Result<(), Box<dyn Error>> {
    let paths: Vec<_> = std::env::args().skip(1).collect();
    let [without, with] = &paths[..] else {
        return Err("usage: pinmap-api JSON-WITHOUT-FEATURES JSON-WITH-ALL-FEATURES".into());
    };
    let (without, with) = (items(without)?, items(with)?);
    println!("# Without features\n{}", without.join("\n"));
    println!("\n# Added by all features\n{}", besides(&with, &without));
    println!("\n# Replaced by them\n{}", besides(&without, &with));
    Ok(())
}

/// Joins the `items` that are not among `others`.
fn besides(items: &[String], others: &[String]) -> String {
    let others: HashSet<_> = others.iter().collect();
    let items = items.iter().filter(|item| !others.contains(item));
    items.cloned().collect::<Vec<_>>().join("\n")
}

/// Lists the public items that rustdoc has written to a file, one a line.
///
/// The traits of the standard library that a type has are on one line, those that the compiler
/// implements with those that the crate does, as long as they have the same bounds. Their methods
/// are left out: the traits say which these are. What has two names is described once.
fn items(path: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let mut items: Vec<String> = Vec::new();
    // Where in `items` the line of a type is, and its traits.
    let mut lines: HashMap<_, (usize, Vec<String>)> = HashMap::new();
    let mut methods = None;
    for item in read(path)? {
        if let Some((bounds, name, of)) = standard_trait(&item) {
            methods = of.split(" where ").next().map(|of| format!(" fn {of}::"));
            let key = (bounds.to_string(), of.to_string());
            let (_, names) = lines.entry(key).or_insert_with(|| {
                items.push(String::new());
                (items.len() - 1, Vec::new())
            });
            names.push(name);
        } else if item.starts_with("impl") {
            methods = None;
            items.push(item);
        } else if !methods.as_ref().is_some_and(|start| item.contains(start)) {
            items.push(item);
        }
    }
    for ((bounds, of), (place, mut names)) in lines {
        names.sort();
        names.dedup();
        items[place] = format!("{bounds} {} for {of}", names.join(", "));
    }
    let mut seen = HashSet::new();
    items.retain(|item| seen.insert(item.clone()));
    Ok(items)
}

/// Splits `impl<BOUNDS> TRAIT for TYPE` at the spaces, if the trait is the standard library's.
fn standard_trait(item: &str) -> Option<(&str, String, &str)> {
    let (start, of) = item.split_once(" for ")?;
    // The first space outside of brackets; `->` closes none.
    let mut depth = 0;
    let mut last = ' ';
    let end = start.find(|letter| {
        depth += i32::from(letter == '<') - i32::from(letter == '>' && last != '-');
        last = letter;
        letter == ' ' && depth == 0
    })?;
    let (bounds, name) = (&start[..end], &start[end + 1..]);
    let (not, path) = name
        .strip_prefix('!')
        .map_or(("", name), |path| ("!", path));
    let (path, arguments) = path.split_at(path.find('<').unwrap_or(path.len()));
    let short = match path.split("::").next()? {
        // No two traits of `core` that a type has are called the same.
        "core" => path.rsplit("::").next()?,
        "std" | "alloc" => path,
        _ => return None,
    };
    Some((bounds, format!("{not}{short}{arguments}"), of))
}

/// Reads the public items that rustdoc has written to a file.
fn read(path: &str) -> Result<Vec<String>, Box<dyn Error>> {
    // Blanket implementations say nothing about the crate's own types.
    let api = public_api::Builder::from_rustdoc_json(path)
        .omit_blanket_impls(true)
        .build()?;
    if let Some(id) = api.missing_item_ids().next() {
        return Err(format!("{path}: item {id} is named, and not there").into());
    }
    let items = api.items().map(ToString::to_string);
    Ok(items
        .filter(|item| !UNNAMED.iter().any(|name| item.contains(name)))
        .collect())
}
