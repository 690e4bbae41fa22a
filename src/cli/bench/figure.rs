//! What is measured: two figures of one run, what they are to each other, and the file that keeps them.

use std::{fs, path::Path};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The names of the figures that are drawn.
pub(super) const START: &str = "start to first answer | library, session, run";
pub(super) const THROUGHPUT: &str = "POST /embed, 32 texts, 4 clients | best raw";
pub(super) const SCHEDULE: &str = "best raw schedule | raw batches of 32, unsorted";
pub(super) const LATENCY: &str = "POST /embed, one short text, p50 | raw session";
pub(super) const TENSORS: &str = "KServe infer, binary tensors, p50 | raw session";

/// Two measurements of one run, and what they are to each other.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Figure {
    pub(super) name: String,
    /// What was measured of Kivu.
    pub(super) kivu: f64,
    /// What it is measured against.
    pub(super) against: f64,
    unit: String,
    /// `kivu` relative to `against`: their quotient, or their difference where the target is one.
    result: f64,
    target: Target,
    /// Values that belong to it, by name: the parts of a sum, or what else is known of both sides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) parts: Vec<(String, f64)>,
}

/// What a figure should come to.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// The difference should be at most this.
    DifferenceAtMost(f64),
}

impl Figure {
    pub(super) fn new(name: &str, unit: &str, [kivu, against]: [f64; 2], target: Target) -> Self {
        let result = match target {
            Target::DifferenceAtMost(_) => kivu - against,
            _ => kivu / against,
        };
        Self {
            name: name.to_owned(),
            kivu,
            against,
            unit: unit.to_owned(),
            result,
            target,
            parts: Vec::new(),
        }
    }

    /// The same with values that belong to it.
    pub(super) fn made_of<const N: usize>(self, parts: [(&str, f64); N]) -> Self {
        let parts = parts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { parts, ..self }
    }

    fn is_reached(&self) -> bool {
        match self.target {
            Target::AtLeast(least) => self.result >= least,
            Target::AtMost(most) | Target::DifferenceAtMost(most) => self.result <= most,
        }
    }

    pub(super) fn line(&self) -> String {
        let target = match self.target {
            Target::AtLeast(least) => format!("≥ {least}"),
            Target::AtMost(most) => format!("≤ {most}"),
            Target::DifferenceAtMost(most) => format!("≤ {most} {} more", self.unit),
        };
        let Self { name, kivu, against, unit, result, .. } = self;
        let reached = if self.is_reached() { "reached" } else { "missed" };
        format!("{name:46} {kivu:9.3} {against:9.3} {unit:7} {result:8.3}  {target:15} {reached}")
    }
}

/// Keeps figures in a file, as JSON.
pub(super) fn write(figures: &[Figure], path: &Path) -> Result<()> {
    let json = serde_json::to_vec_pretty(figures)
        .map_err(|error| Error::model_because("the figures cannot be written", error))?;
    fs::write(path, json).map_err(Error::io(format!("cannot write `{}`", path.display())))
}

/// The figures that a file keeps.
pub(super) fn read(path: &Path) -> Result<Vec<Figure>> {
    let json = fs::read(path).map_err(Error::io(format!("cannot read `{}`", path.display())))?;
    serde_json::from_slice(&json).map_err(|error| {
        Error::model_because(format!("expected figures of `kivu bench` in `{}`", path.display()), error)
    })
}
