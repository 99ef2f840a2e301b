// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists the public items of a crate: without features, and how features change them.
//! `scripts/api` runs it.

use std::collections::HashSet;
use std::error::Error;

/// What the compiler implements by itself, and no program can name.
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

/// Those of `items` that are not among `others`.
fn besides(items: &[String], others: &[String]) -> String {
    let others: HashSet<_> = others.iter().collect();
    let items = items.iter().filter(|item| !others.contains(item));
    items.cloned().collect::<Vec<_>>().join("\n")
}

/// The public items that rustdoc has written to a file, one a line.
fn items(path: &str) -> Result<Vec<String>, Box<dyn Error>> {
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
