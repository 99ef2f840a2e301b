// SPDX-License-Identifier: MIT OR Apache-2.0
//! An axis: linear or logarithmic, with a title that names what it shows and in which unit.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;

/// An axis of a plot.
#[derive(Debug, Clone)]
pub struct Axis {
    pub(crate) title: String,
    range: Range<f64>,
    scale: Scale,
    label: fn(f64) -> String,
    /// Names of the rows of bars: each row is as high as 1.
    pub(crate) names: Option<Vec<String>>,
}

#[derive(Debug, Clone)]
enum Scale {
    Linear,
    Logarithmic { ticks: Vec<f64>, between: Vec<f64> },
}

impl Axis {
    /// Makes a linear axis from 0 that holds all values. Its title should name the unit.
    pub fn linear(title: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Self {
        let most = values.into_iter().fold(0.0, f64::max);
        let most = if most > 0.0 { most * 1.08 } else { 1.0 };
        Self::new(title, 0.0..most, Scale::Linear, |value| format!("{value}"))
    }

    /// Makes a logarithmic axis of numbers of bytes.
    pub fn bytes(title: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Self {
        let (least, most) = bounds(values);
        let doublings = (most / least).log2();
        // At most nine ticks, with 1, 2, 4, 8… doublings between them.
        let step = (doublings / 8.0).max(1.0).log2().ceil().exp2();
        let count = (doublings / step).floor() as i32;
        let ticks = (0..=count).map(|n| least * (step * f64::from(n)).exp2());
        let ticks = ticks.collect();
        let between = Vec::new();
        let scale = Scale::Logarithmic { ticks, between };
        Self::new(title, least / 1.4..most * 1.4, scale, bytes)
    }

    /// Makes a logarithmic axis of times in nanoseconds, with a label for each power of ten.
    pub fn nanoseconds(title: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Self {
        let (least, most) = bounds(values);
        let low = least.log10().floor() as i32;
        let high = (most.log10().ceil() as i32).max(low + 1);
        let between = (low..high).flat_map(|power| (2..10).map(move |n| at(power, n)));
        let scale = Scale::Logarithmic {
            ticks: (low..=high).map(|power| at(power, 1)).collect(),
            between: between.collect(),
        };
        Self::new(title, at(low, 1)..at(high, 1), scale, time)
    }

    /// Makes a logarithmic axis of ratios, in the midst of which is 1.
    pub fn ratios(title: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Self {
        let (least, most) = bounds(values.into_iter().chain([0.5, 2.0]));
        let powers = least.log10().floor() as i32..=most.log10().ceil() as i32;
        let steps: &[u32] = if most / least > 1e3 { &[1] } else { &[1, 2, 5] };
        let all = powers.flat_map(|power| steps.iter().map(move |&n| at(power, n)));
        // Room for a text beside the longest bar.
        let room = (most / least).powf(0.07);
        let range = least / room..most * room;
        let scale = Scale::Logarithmic {
            ticks: all.filter(|tick| range.contains(tick)).collect(),
            between: Vec::new(),
        };
        Self::new(title, range, scale, |value| format!("{value}"))
    }

    /// Makes an axis with a name for each row, the first one at the top.
    pub(crate) fn rows(names: Vec<String>) -> Self {
        let mut axis = Self::new("", 0.0..names.len().max(1) as f64, Scale::Linear, |_| {
            String::new()
        });
        axis.names = Some(names);
        axis
    }

    fn new(
        title: impl Into<String>,
        range: Range<f64>,
        scale: Scale,
        label: fn(f64) -> String,
    ) -> Self {
        Self {
            title: title.into(),
            range,
            scale,
            label,
            names: None,
        }
    }

    /// Returns what labels a value.
    pub(crate) fn label(&self) -> Box<dyn Fn(&f64) -> String> {
        let label = self.label;
        match self.names.clone() {
            None => Box::new(move |value| label(*value)),
            Some(names) => Box::new(move |value| {
                let from_below = value.floor() as usize + 1;
                let name = names
                    .len()
                    .checked_sub(from_below)
                    .map(|n| names[n].clone());
                name.unwrap_or_default()
            }),
        }
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let Range { start, end } = self.range;
        match self.scale {
            Scale::Linear => RangedCoordf64::from(start..end).map(value, limit),
            Scale::Logarithmic { .. } => {
                RangedCoordf64::from(start.ln()..end.ln()).map(&value.max(start).ln(), limit)
            }
        }
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if let Some(names) = &self.names {
            return (0..names.len()).map(|n| n as f64 + 0.5).collect();
        }
        match &self.scale {
            Scale::Linear if hint.weight().allow_light_points() => Vec::new(),
            Scale::Linear => RangedCoordf64::from(self.range.clone()).key_points(hint),
            Scale::Logarithmic { between, .. } if hint.weight().allow_light_points() => {
                between.clone()
            }
            Scale::Logarithmic { ticks, .. } => ticks.clone(),
        }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// The least and the largest of some values, which must be positive.
fn bounds(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let both = values.into_iter().map(|value| (value, value));
    let all = both.reduce(|all, value| (all.0.min(value.0), all.1.max(value.1)));
    all.unwrap_or((1.0, 1.0))
}

/// Returns `digit` times a power of ten, exactly, so that its label is short.
fn at(power: i32, digit: u32) -> f64 {
    let factor = 10f64.powi(power.abs());
    match power {
        0.. => f64::from(digit) * factor,
        _ => f64::from(digit) / factor,
    }
}

fn bytes(value: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB"];
    let unit = ((value.log2() / 10.0).floor().max(0.0) as usize).min(units.len() - 1);
    format!("{} {}", value / 1024f64.powi(unit as i32), units[unit])
}

fn time(ns: f64) -> String {
    let units = [("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0)];
    let fits = units.iter().find(|(_, unit)| ns >= *unit);
    let (name, unit) = fits.unwrap_or(&("ns", 1.0));
    format!("{} {name}", ns / unit)
}

#[cfg(test)]
mod tests {
    use plotters::coord::ranged1d::{BoldPoints, LightPoints};

    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        let label = axis.label();
        axis.key_points(BoldPoints(11)).iter().map(label).collect()
    }

    #[test]
    fn ticks_have_round_numbers_and_units() {
        let sizes = Axis::bytes("", [4.0, f64::from(64 << 20)]);
        assert_eq!(
            labels(&sizes),
            ["4 B", "64 B", "1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB"]
        );
        let times = Axis::nanoseconds("", [150.0, 2.1e6]);
        assert_eq!(
            labels(&times),
            ["100 ns", "1 µs", "10 µs", "100 µs", "1 ms", "10 ms"]
        );
        assert_eq!(times.key_points(LightPoints::new(0, 99)).len(), 5 * 8);
        let ratios = Axis::ratios("", [0.55, 12.0]);
        assert_eq!(labels(&ratios), ["0.5", "1", "2", "5", "10"]);
        assert_eq!(
            labels(&Axis::ratios("", [4000.0])),
            ["1", "10", "100", "1000"]
        );
        assert_eq!(
            labels(&Axis::linear("", [9.7])).first().map(|l| &**l),
            Some("0")
        );
    }

    #[test]
    fn equal_steps_of_a_logarithmic_axis_are_equal_factors() {
        let axis = Axis::nanoseconds("", [1e3, 1e6]);
        let at = [1e3, 1e4, 1e5, 1e6].map(|value| axis.map(&value, (0, 300)));
        assert_eq!(at, [0, 100, 200, 300]);
        assert_eq!(axis.map(&0.0, (0, 300)), 0);
    }

    #[test]
    fn the_first_row_is_at_the_top() {
        let rows = Axis::rows(vec!["one".to_owned(), "two".to_owned()]);
        assert_eq!(labels(&rows), ["two", "one"]);
        assert!(rows.map(&1.5, (100, 0)) < rows.map(&0.5, (100, 0)));
    }
}
