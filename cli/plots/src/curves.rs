// SPDX-License-Identifier: MIT OR Apache-2.0
//! Curves over two axes.

use std::f64::consts::TAU;

use plotters::prelude::{
    Color, EmptyElement, ErrorBar, LineSeries, PathElement, Polygon, RGBColor,
};

use crate::{colour, Area, Axis, Chart, Data, Frame, Result};

const HEIGHT: u32 = 360;

/// A plot of curves.
#[derive(Debug)]
pub struct Curves {
    /// Says what was measured.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// All curves, the first in the first colour.
    pub curves: Vec<Curve>,
}

/// A curve, named in the legend.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Name of the curve.
    pub name: String,
    /// The points, from left to right. A curve without any is left out, and its colour unused.
    pub points: Vec<Point>,
}

/// A point of a curve.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    /// Where on the horizontal axis.
    pub x: f64,
    /// Where on the vertical axis.
    pub y: f64,
    /// From where to where the values lie, if several were measured.
    pub spread: Option<(f64, f64)>,
}

impl Curves {
    /// Draws the plot.
    ///
    /// # Errors
    ///
    /// The errors of the library that draws.
    pub fn draw(&self) -> Result<String> {
        let frame = Frame {
            title: &self.title,
            x: self.x.clone(),
            y: self.y.clone(),
            height: HEIGHT,
            left: 70,
            legend: self.drawn().map(|(n, curve)| (n, &*curve.name)).collect(),
        };
        frame.draw(self)
    }

    /// The curves that have points, with their numbers.
    fn drawn(&self) -> impl Iterator<Item = (usize, &Curve)> {
        let all = self.curves.iter().enumerate();
        all.filter(|(_, curve)| !curve.points.is_empty())
    }
}

impl Data for Curves {
    fn draw_into<'a, 'b: 'a>(&self, chart: &mut Chart<'a, 'b>) -> Result<()> {
        for (number, curve) in self.drawn() {
            let ink = colour(number);
            let line = curve.points.iter().map(|point| (point.x, point.y));
            chart.draw_series(LineSeries::new(line, ink.stroke_width(2)))?;
            chart.draw_series(
                curve.points.iter().map(|point| {
                    EmptyElement::at((point.x, point.y)) + marker((0, 0), number, ink)
                }),
            )?;
            chart.draw_series(curve.points.iter().filter_map(|point| {
                let (low, high) = point.spread?;
                Some(ErrorBar::new_vertical(point.x, low, point.y, high, ink, 8))
            }))?;
        }
        Ok(())
    }

    fn draw_key(&self, area: &Area<'_>, (x, y): (i32, i32), series: usize) -> Result<()> {
        let ink = colour(series);
        area.draw(&PathElement::new(
            [(x, y), (x + 24, y)],
            ink.stroke_width(2),
        ))?;
        Ok(area.draw(&marker((x + 12, y), series, ink))?)
    }
}

/// A marker of a shape of the series' own: a regular polygon around a place.
fn marker((x, y): (i32, i32), number: usize, ink: RGBColor) -> Polygon<(i32, i32)> {
    let (corners, turned) = [(16, 0.0), (3, 0.5), (4, 0.5), (4, 0.0), (6, 0.0)][number % 5];
    let corner = |n: u32| {
        let angle = TAU * ((f64::from(n) + turned) / f64::from(corners) - 0.25);
        let at = |part: f64| (5.0 * part).round() as i32;
        (x + at(angle.cos()), y + at(angle.sin()))
    };
    Polygon::new((0..corners).map(corner).collect::<Vec<_>>(), ink)
}
