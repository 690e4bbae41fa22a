//! Figures as pictures: SVG that is read on light and on dark paper.

use std::{fmt::Write, fs, path::Path};

use super::figure::{Figure, LATENCY, SCHEDULE, START, TENSORS, THROUGHPUT};
use crate::error::{Error, Result};

const WIDTH: f64 = 720.0;
/// Where bars begin, behind their names, and how long the longest is.
const START_OF_BARS: f64 = 270.0;
const LONGEST_BAR: f64 = 330.0;
const BAR: f64 = 22.0;
const ROW: f64 = 34.0;

const STYLE: &str = "\
text{font:14px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:#16262a}\
.title{font-weight:600;font-size:16px}.soft{fill:#586b70;font-size:12.5px}.axis{stroke:#c3d2d4}\
.paper{fill:#f3f6f6}.a{fill:#0b727c}.b{fill:#a9b6b9}.c{fill:#d08a2e}.d{fill:#7a6aa8}\
@media(prefers-color-scheme:dark){text{fill:#e4eeef}.soft{fill:#9db0b4}.axis{stroke:#2c3d41}.paper{fill:#0f181a}\
.a{fill:#5cc3cb}.b{fill:#5d6f74}.c{fill:#e0a95a}.d{fill:#a596d6}}";

/// Draws what there is to draw of `figures` into a folder.
pub(super) fn draw(figures: &[Figure], folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(Error::io(format!("cannot create `{}`", folder.display())))?;
    let pictures = [
        ("speed.svg", speed(figures)),
        ("cold-start.svg", start(figures)),
        ("quality.svg", quality(figures)),
    ];
    for (name, picture) in pictures {
        let Some(picture) = picture else { continue };
        let path = folder.join(name);
        fs::write(&path, picture.finish())
            .map_err(Error::io(format!("cannot write `{}`", path.display())))?;
    }
    Ok(())
}

fn find<'a>(figures: &'a [Figure], name: &str) -> Option<&'a Figure> {
    figures.iter().find(|figure| figure.name == name)
}

/// Throughput and latency beside those of the bare runtime.
fn speed(figures: &[Figure]) -> Option<Picture> {
    let (served, schedule) = (find(figures, THROUGHPUT)?, find(figures, SCHEDULE)?);
    let (latency, tensors) = (find(figures, LATENCY)?, find(figures, TENSORS)?);
    let mut picture = Picture::new("Speed beside the bare runtime");
    picture.title("Texts a second, texts of mixed length; more is better");
    picture.bars(
        &[
            ("the runtime, 32 texts at a time", "b", schedule.against),
            ("the runtime, its best schedule", "b", served.against),
            ("Kivu over HTTP, from texts", "a", served.kivu),
        ],
        0,
    );
    picture.title("Milliseconds for one short text, median; less is better");
    picture.bars(
        &[
            ("the runtime's session alone", "b", latency.against),
            ("Kivu, POST /embed", "a", latency.kivu),
            ("the session, measured again", "b", tensors.against),
            ("Kivu, KServe v2, tensors as bytes", "a", tensors.kivu),
        ],
        2,
    );
    Some(picture)
}

/// A cold start, as a stack of what no program gets around and of the rest.
fn start(figures: &[Figure]) -> Option<Picture> {
    let start = find(figures, START)?;
    if start.parts.is_empty() {
        return None;
    }
    let mut parts: Vec<(&str, f64)> =
        start.parts.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let mut picture = Picture::new("A cold start and its parts");
    picture.title("Milliseconds from the start of the process to the first answer, medians");
    picture.stack("what no program gets around", &parts, start.kivu);
    parts.push(("all the rest: process, tokenizer, HTTP", start.kivu - start.against));
    picture.stack("Kivu", &parts, start.kivu);
    picture.legend(&parts);
    Some(picture)
}

/// The nearness to fp32 of each precision, over its size.
fn quality(figures: &[Figure]) -> Option<Picture> {
    let mut points: Vec<(&str, f64, f64)> = Vec::new();
    for figure in figures.iter().filter(|figure| figure.name.starts_with("size in ")) {
        let sizes = [figure.kivu, figure.against];
        for ((name, cosine), size) in figure.parts.iter().zip(sizes) {
            if !points.iter().any(|(known, ..)| known == name) {
                points.push((name, size, *cosine));
            }
        }
    }
    if points.len() < 2 {
        return None;
    }
    points.sort_by(|left, right| left.1.total_cmp(&right.1));
    let mut picture = Picture::new("Quality against size for each precision");
    picture.title("Mean cosine to fp32 over sample texts, and megabytes of the bundle");
    picture.points(&points);
    Some(picture)
}

/// A picture that grows downwards.
struct Picture {
    title: &'static str,
    body: String,
    y: f64,
}

impl Picture {
    fn new(title: &'static str) -> Self {
        Self { title, body: String::new(), y: 16.0 }
    }

    fn title(&mut self, text: &str) {
        self.y += 18.0;
        self.text(24.0, self.y, "title", text);
        self.y += 16.0;
    }

    /// A bar for each value, its length its share of the largest.
    fn bars(&mut self, bars: &[(&str, &str, f64)], decimals: usize) {
        let most = bars.iter().map(|bar| bar.2).fold(f64::MIN_POSITIVE, f64::max);
        for (name, class, value) in bars {
            let length = value / most * LONGEST_BAR;
            self.text(24.0, self.y + 16.0, "", name);
            self.rect(START_OF_BARS, length, class);
            self.text(START_OF_BARS + length + 8.0, self.y + 16.0, "", &format!("{value:.decimals$}"));
            self.y += ROW;
        }
        self.y += 8.0;
    }

    /// Parts in one bar, as long as their share of `whole`.
    fn stack(&mut self, name: &str, parts: &[(&str, f64)], whole: f64) {
        self.text(24.0, self.y + 16.0, "", name);
        let mut x = START_OF_BARS;
        for ((_, value), class) in parts.iter().zip(CLASSES) {
            let length = value.max(0.0) / whole * LONGEST_BAR;
            self.rect(x, length, class);
            x += length;
        }
        let sum: f64 = parts.iter().map(|part| part.1).sum();
        self.text(x + 8.0, self.y + 16.0, "", &format!("{sum:.1}"));
        self.y += ROW;
    }

    fn legend(&mut self, parts: &[(&str, f64)]) {
        self.y += 6.0;
        for ((name, value), class) in parts.iter().zip(CLASSES) {
            self.rect_of(START_OF_BARS, 12.0, 12.0, class);
            self.text(START_OF_BARS + 20.0, self.y + 11.0, "soft", &format!("{name}: {value:.1} ms"));
            self.y += 20.0;
        }
    }

    /// Points of a name, a size and a cosine.
    fn points(&mut self, points: &[(&str, f64, f64)]) {
        const HEIGHT: f64 = 170.0;
        let (left, right) = (90.0, WIDTH - 190.0);
        let largest = points.iter().map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max);
        let worst = points.iter().map(|point| point.2).fold(1.0, f64::min);
        // Whole steps of a hundredth: the axis does not begin at nothing, and says so.
        let lowest = (worst * 100.0 - 0.5).floor() / 100.0;
        let top = self.y + 10.0;
        let bottom = top + HEIGHT;
        for step in 0..=2 {
            let cosine = lowest + (1.0 - lowest) * f64::from(step) / 2.0;
            let y = bottom - HEIGHT * f64::from(step) / 2.0;
            // Writing to a string cannot fail, here and below.
            let _ = write!(self.body, r#"<path class="axis" d="M{left:.0} {y:.1}H{right:.0}"/>"#);
            self.text(40.0, y + 5.0, "soft", &format!("{cosine:.3}"));
        }
        for (name, size, cosine) in points {
            let x = left + size / largest * (right - left - 20.0);
            let y = bottom - (cosine - lowest) / (1.0 - lowest) * HEIGHT;
            let _ = write!(self.body, r#"<circle class="a" cx="{x:.1}" cy="{y:.1}" r="6"/>"#);
            self.text(x + 12.0, y + 18.0, "", &format!("{name}: {cosine:.4}, {size:.1} MB"));
        }
        self.text(left, bottom + 24.0, "soft", "0 MB");
        self.text(right - 60.0, bottom + 24.0, "soft", &format!("{largest:.0} MB"));
        self.y = bottom + 30.0;
    }

    fn rect(&mut self, x: f64, length: f64, class: &str) {
        self.rect_of(x, length, BAR, class);
    }

    fn rect_of(&mut self, x: f64, length: f64, height: f64, class: &str) {
        let y = self.y;
        let _ = write!(
            self.body,
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{length:.1}" height="{height:.0}" rx="3"/>"#
        );
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = write!(self.body, r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{text}</text>"#);
    }

    fn finish(self) -> String {
        let (height, title, body) = (self.y + 14.0, self.title, self.body);
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0} {height:.0}" width="{WIDTH:.0}" height="{height:.0}" role="img" aria-labelledby="t"><title id="t">{title}</title><style>{STYLE}</style><rect class="paper" width="{WIDTH:.0}" height="{height:.0}" rx="14"/>{body}</svg>
"#
        )
    }
}

/// The colours of parts, in their order.
const CLASSES: [&str; 4] = ["b", "c", "d", "a"];

#[cfg(test)]
mod tests {
    use super::{super::figure::Target, *};

    fn figure(name: &str, kivu: f64, against: f64) -> Figure {
        Figure::new(name, "", [kivu, against], Target::AtMost(1.0))
    }

    #[test]
    fn bars_are_as_long_as_what_they_stand_for() {
        let figures = [
            figure(THROUGHPUT, 600.0, 1200.0),
            figure(SCHEDULE, 1200.0, 300.0),
            figure(LATENCY, 1.25, 1.0),
            figure(TENSORS, 1.0, 0.5),
        ];
        let drawn = speed(&figures).unwrap().finish();
        for width in [LONGEST_BAR, LONGEST_BAR / 2.0, LONGEST_BAR / 4.0, LONGEST_BAR * 0.8, LONGEST_BAR * 0.4]
        {
            assert!(drawn.contains(&format!("width=\"{width:.1}\"")), "{width}: {drawn}");
        }
        assert!(drawn.contains(">1.25<") && drawn.contains("prefers-color-scheme:dark"));
    }

    #[test]
    fn the_parts_of_a_start_come_to_the_whole() {
        let parts = [("library", 5.0), ("session", 10.0), ("first run", 5.0)];
        let drawn = start(&[figure(START, 30.0, 20.0).made_of(parts)]).unwrap().finish();
        assert!(drawn.contains(">20.0<") && drawn.contains(">30.0<"), "{drawn}");
        assert!(start(&[figure(START, 30.0, 20.0)]).is_none(), "without its parts it is not drawn");
    }

    #[test]
    fn each_precision_is_one_point() {
        let sizes = |other: &str, size, cosine| {
            figure(&format!("size in int8 | in {other}"), 24.0, size)
                .made_of([("int8", 0.9939), (other, cosine)])
        };
        let drawn = quality(&[sizes("int8-blocks", 27.0, 0.999), sizes("fp32", 90.0, 1.0)]).unwrap().finish();
        assert_eq!(drawn.matches("<circle").count(), 3);
        assert!(quality(&[]).is_none());
    }
}
