// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plots of the command `pinmap` and of the bench, as SVG: curves over two axes, and rows of
//! bars.
//!
//! The colours are those of Okabe and Ito, which colour-blind people can tell apart. Curves also
//! have markers of different shapes.
#![forbid(unsafe_code)]

mod axis;
mod bars;
mod curves;

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::{
    Cartesian2d, ChartBuilder, ChartContext, DrawingArea, IntoDrawingArea, RGBColor, SVGBackend,
    Text, BLACK, WHITE,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{IntoFont, TextStyle};

pub use axis::Axis;
pub use bars::{Bar, Bars};
pub use curves::{Curve, Curves, Point};

/// A result whose error is told in one sentence.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

const COLOURS: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x59, 0x59, 0x59),
    RGBColor(0xe6, 0x9f, 0x00),
];
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
const LIGHT_GRID: RGBColor = RGBColor(0xf2, 0xf2, 0xf2);
const FONT: &str = "sans-serif";
/// Width of a plot, without the legend.
const WIDTH: u32 = 680;
/// Height of a line of the legend.
const LINE: u32 = 22;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

/// Data that can be drawn into a chart.
trait Data {
    fn draw_into<'a, 'b: 'a>(&self, chart: &mut Chart<'a, 'b>) -> Result<()>;

    /// Draws what stands for a series in the legend, 24 wide, from `at` to the right.
    fn draw_key(&self, area: &Area<'_>, at: (i32, i32), series: usize) -> Result<()>;
}

/// The colour of a series.
fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

/// About how wide a text is.
fn text_width(text: &str) -> u32 {
    text.chars().count() as u32 * 7
}

/// The style of a text to the right of something.
fn beside() -> TextStyle<'static> {
    let style = (FONT, 13).into_font().color(&BLACK);
    style.pos(Pos::new(HPos::Left, VPos::Center))
}

/// Frame around the data of a plot: title, axes and legend.
struct Frame<'a> {
    title: &'a str,
    x: Axis,
    y: Axis,
    /// Height of the area of the data.
    height: u32,
    /// Width of the labels of the y axis.
    left: u32,
    /// The series that are drawn, with their names.
    legend: Vec<(usize, &'a str)>,
}

impl Frame<'_> {
    /// Draws the frame, then the data, then the legend to the right of it.
    fn draw(self, data: &impl Data) -> Result<String> {
        let longest = self.legend.iter().map(|(_, name)| text_width(name)).max();
        let (width, right) = (self.left + WIDTH, longest.unwrap_or(0) + 50);
        let height = self.height.max(self.legend.len() as u32 * LINE) + 100;
        let (x_title, y_title) = (self.x.title.clone(), self.y.title.clone());
        let (x_label, y_label) = (self.x.label(), self.y.label());
        let y_marks = self.y.names.is_none();
        let mut svg = String::new();
        let root = SVGBackend::with_string(&mut svg, (width + right, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let (left, right) = root.split_horizontally(width);
        let mut chart = ChartBuilder::on(&left)
            .caption(self.title, (FONT, 18))
            .margin(10)
            .x_label_area_size(45)
            .y_label_area_size(self.left)
            .build_cartesian_2d(self.x, self.y)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(x_title)
            .y_desc(y_title)
            .x_labels(11)
            .x_label_formatter(&*x_label)
            .y_label_formatter(&*y_label)
            .label_style((FONT, 13))
            .axis_desc_style((FONT, 14))
            .bold_line_style(GRID)
            .light_line_style(LIGHT_GRID);
        if !y_marks {
            mesh.disable_y_mesh();
        }
        mesh.draw()?;
        data.draw_into(&mut chart)?;
        for (line, (series, name)) in (0..).zip(&self.legend) {
            let y = 50 + line * LINE as i32;
            data.draw_key(&right, (0, y), *series)?;
            right.draw(&Text::new(*name, (30, y), beside()))?;
        }
        root.present()?;
        drop((chart, left, right, root));
        Ok(svg)
    }
}

#[cfg(test)]
mod tests {
    use roxmltree::Document;

    use super::*;

    fn texts(svg: &Document<'_>) -> Vec<String> {
        let texts = svg.descendants().filter(|node| node.has_tag_name("text"));
        texts
            .filter_map(|node| Some(node.text()?.trim().to_owned()))
            .collect()
    }

    #[test]
    fn curves_have_points_spreads_a_legend_and_units() {
        let curve = |name: &str, factor: f64| Curve {
            name: name.to_owned(),
            points: [4.0, 4096.0, 1048576.0]
                .map(|x| Point {
                    x,
                    y: x * factor,
                    spread: (factor > 1.0).then_some((x, x * factor * 2.0)),
                })
                .to_vec(),
        };
        let curves = vec![
            curve("one <& two>", 1.0),
            curve("none", 0.0),
            curve("three", 3.0),
        ];
        let mut plot = Curves {
            title: "a title".to_owned(),
            x: Axis::bytes("size", [4.0, 1048576.0]),
            y: Axis::nanoseconds("time", [4.0, 3e6]),
            curves,
        };
        plot.curves[1].points.clear();
        let svg = plot.draw().expect("drawn");
        let svg = Document::parse(&svg).expect("XML");
        let texts = texts(&svg);
        for text in [
            "a title",
            "size",
            "time",
            "one <& two>",
            "three",
            "1 KiB",
            "1 µs",
        ] {
            assert!(texts.iter().any(|other| other == text), "{text}: {texts:?}");
        }
        assert!(!texts.iter().any(|text| text == "none"), "{texts:?}");
        let of = |tag: &str, attribute, ink| {
            let all = svg.descendants().filter(|node| node.has_tag_name(tag));
            all.filter(|node| node.attribute(attribute) == Some(ink))
                .count()
        };
        // A colour is the same whether another curve is there or not. Each is also in the legend.
        assert_eq!(of("polygon", "fill", "#0072B2"), 3 + 1);
        assert_eq!(of("polygon", "fill", "#009E73"), 3 + 1);
        assert_eq!(of("polyline", "stroke", "#009E73"), 1 + 1);
        assert!(of("line", "stroke", "#009E73") >= 3, "whiskers");
    }

    #[test]
    fn bars_have_rows_kinds_and_lengths() {
        let bar = |row, kind, from, to, text: &str| Bar {
            row,
            kind,
            from,
            to,
            text: text.to_owned(),
        };
        let plot = Bars {
            title: "a title".to_owned(),
            x: Axis::linear("ms", [8.0]),
            rows: vec!["first".to_owned(), "second".to_owned()],
            kinds: ["in", "unused", "out"].map(str::to_owned).to_vec(),
            bars: vec![
                bar(0, 0, 0.0, 2.0, ""),
                bar(0, 0, 8.0, 2.0, ""),
                bar(1, 2, 0.0, 8.0, "8x"),
            ],
            line: Some(1.0),
        };
        let svg = plot.draw().expect("drawn");
        let svg = Document::parse(&svg).expect("XML");
        let texts = texts(&svg);
        for text in ["a title", "ms", "first", "second", "in", "out", "8x"] {
            assert!(texts.iter().any(|other| other == text), "{text}: {texts:?}");
        }
        assert!(!texts.iter().any(|text| text == "unused"), "{texts:?}");
        let bars = |ink| -> Vec<(i32, i32)> {
            let all = svg.descendants().filter(|node| node.has_tag_name("rect"));
            let number = |text: Option<&str>| text.and_then(|text| text.parse().ok());
            all.filter(|node| node.attribute("fill") == Some(ink))
                .filter_map(|node| {
                    Some((
                        number(node.attribute("y"))?,
                        number(node.attribute("width"))?,
                    ))
                })
                .collect()
        };
        let (first, second) = (bars("#0072B2"), bars("#009E73"));
        assert_eq!((first.len(), second.len()), (2 + 1, 1 + 1));
        assert!(
            first[0].0 < second[0].0,
            "the first row is above the second"
        );
        assert!(
            (first[1].1 - 3 * first[0].1).abs() <= 3,
            "6 ms are three times 2 ms: {first:?}"
        );
    }
}
