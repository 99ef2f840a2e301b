// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of bars: one for each row, or several one after the other.

use plotters::prelude::{Color, EmptyElement, PathElement, Rectangle, Text, BLACK};

use crate::{beside, colour, text_width, Area, Axis, Chart, Data, Frame, Result};

const ROW: u32 = 24;

/// A plot of rows of bars.
#[derive(Debug)]
pub struct Bars {
    /// Says what was measured.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// Names of the rows, from the top.
    pub rows: Vec<String>,
    /// Names of the kinds of bars. Each has its colour, and those that have bars are in the legend.
    pub kinds: Vec<String>,
    /// All bars.
    pub bars: Vec<Bar>,
    /// Where to draw a line through all rows, to compare with.
    pub line: Option<f64>,
}

/// A bar.
#[derive(Debug, Clone)]
pub struct Bar {
    /// Index of the row.
    pub row: usize,
    /// Index of the kind.
    pub kind: usize,
    /// One end, on the horizontal axis.
    pub from: f64,
    /// The other end. It may be less than the first one.
    pub to: f64,
    /// Text to the right of the bar.
    pub text: String,
}

impl Bars {
    /// Draws the plot.
    ///
    /// # Errors
    ///
    /// The errors of the library that draws.
    pub fn draw(&self) -> Result<String> {
        let longest = self.rows.iter().map(|name| text_width(name)).max();
        let frame = Frame {
            title: &self.title,
            x: self.x.clone(),
            y: Axis::rows(self.rows.clone()),
            height: self.rows.len() as u32 * ROW,
            left: longest.unwrap_or(0) + 15,
            legend: self.kinds().map(|(n, name)| (n, &**name)).collect(),
        };
        frame.draw(self)
    }

    /// The kinds that have bars, with their numbers.
    fn kinds(&self) -> impl Iterator<Item = (usize, &String)> {
        let all = self.kinds.iter().enumerate();
        all.filter(|(kind, _)| self.bars.iter().any(|bar| bar.kind == *kind))
    }
}

impl Data for Bars {
    fn draw_into<'a, 'b: 'a>(&self, chart: &mut Chart<'a, 'b>) -> Result<()> {
        let count = self.rows.len() as f64;
        let middle = |bar: &Bar| count - bar.row as f64 - 0.5;
        chart.draw_series(self.bars.iter().map(|bar| {
            let (left, right) = (bar.from.min(bar.to), bar.from.max(bar.to));
            let y = middle(bar);
            Rectangle::new(
                [(left, y + 0.36), (right, y - 0.36)],
                colour(bar.kind).filled(),
            )
        }))?;
        chart.draw_series(
            self.bars
                .iter()
                .filter(|bar| !bar.text.is_empty())
                .map(|bar| {
                    let text = Text::new(bar.text.clone(), (4, 0), beside());
                    EmptyElement::at((bar.from.max(bar.to), middle(bar))) + text
                }),
        )?;
        let ends = |x: f64| [(x, 0.0), (x, count)];
        let line = self.line.map(|x| PathElement::new(ends(x), BLACK));
        chart.draw_series(line)?;
        Ok(())
    }

    fn draw_key(&self, area: &Area<'_>, (x, y): (i32, i32), series: usize) -> Result<()> {
        let corners = [(x, y - 7), (x + 24, y + 7)];
        Ok(area.draw(&Rectangle::new(corners, colour(series).filled()))?)
    }
}
