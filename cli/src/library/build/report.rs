//! The `kivu build` report: size, quality, speed before and after, memory, and the next commands.

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;

use crate::{
    bench::{Longest, Serving, serve_once},
    quality,
};
use kivu::{
    config::Config,
    pipeline::{
        Task,
        embedding::{EmbeddingSettings, VectorKind},
    },
    repository::{
        Bundle,
        manifest::{Manifest, Precision, Quality, VectorQuality},
    },
};
use kivu_compiler::{
    Built,
    quality::{PairQuality, cost::Comparison},
};

#[derive(Debug, Serialize)]
pub struct Report<'a> {
    name: &'a str,
    task: Task,
    architecture: &'a str,
    precision: Precision,
    bundle: String,
    digest: &'a str,
    /// The bundle's total file size.
    bytes: u64,
    /// An embedding model's vector kinds, with their dimensions.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    outputs: BTreeMap<VectorKind, usize>,
    quality: Option<Quality>,
    /// Quality for the other vector kinds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    other_vectors: BTreeMap<VectorKind, Quality>,
    /// Why the precision is not the default, if the build chose it.
    note: Option<&'a str>,
    /// Settings in the model's files that were ignored on request.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
    vectors: Option<VectorQuality>,
    /// Results on the user's pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pairs: Option<PairQuality>,
    comparison: Option<Comparison>,
    serving: Option<Serving>,
    /// Tasks as plausible as `task`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    other_tasks: Vec<Task>,
    next: Vec<String>,
}

impl<'a> Report<'a> {
    /// Briefly serves the bundle to measure it. If that fails, the report lacks these measurements.
    pub fn new(built: &'a Built, path: &Path, config: &Config) -> Self {
        let serving = serve_once(path, built.bundle.manifest(), config)
            .inspect_err(|error| tracing::warn!("cannot measure the bundle: {}", error.chain()));
        Self {
            note: built.note.as_deref(),
            pairs: built.pairs,
            comparison: built.comparison,
            serving: serving.ok(),
            other_tasks: built.other_tasks.clone(),
            ..Self::known(&built.bundle, path)
        }
    }

    /// What a bundle that was built earlier records.
    pub fn known(bundle: &'a Bundle, path: &Path) -> Self {
        let manifest = bundle.manifest();
        let Manifest {
            name,
            task,
            source,
            weights,
            files,
            ..
        } = manifest;
        Self {
            name,
            task: *task,
            architecture: &source.architecture,
            precision: weights.precision,
            bundle: path.display().to_string(),
            digest: bundle.digest(),
            bytes: files.iter().map(|file| file.size).sum(),
            outputs: manifest
                .settings
                .embedding()
                .into_iter()
                .flat_map(EmbeddingSettings::outputs)
                .collect(),
            quality: weights.quality,
            other_vectors: weights.other_vectors.clone(),
            note: None,
            warnings: &manifest.warnings,
            vectors: manifest.vectors,
            pairs: None,
            comparison: None,
            serving: None,
            other_tasks: Vec::new(),
            next: next(path),
        }
    }

    /// Shows `name` in the next commands, if `kivu serve NAME` and `kivu push NAME` find the bundle by it.
    pub fn served_as(mut self, name: Option<&Path>) -> Self {
        if let Some(name) = name {
            self.next = next(name);
        }
        self
    }

    /// The report as text.
    pub fn lines(&self) -> Vec<String> {
        let Self {
            name,
            task,
            architecture,
            bundle,
            ..
        } = self;
        let mut lines = vec![
            format!("{name} ({task}, {architecture})"),
            format!(
                "  bundle   {bundle}, {:.1} MB, {}",
                mb(self.bytes),
                &self.digest[..12]
            ),
        ];
        if !self.other_tasks.is_empty() {
            let others: Vec<String> = self
                .other_tasks
                .iter()
                .map(|task| format!("--task {task}"))
                .collect();
            lines.push(format!("  task     also possible: {}", others.join(", ")));
        }
        if let Some(Comparison { fp32, built }) = self.comparison {
            let (before, after) = (mb(fp32.bytes), mb(built.bytes));
            let share = after / before * 100.0;
            lines.push(format!(
                "  size     weights {after:.1} MB, {share:.0} % of {before:.1} MB in fp32"
            ));
        }
        if self.outputs.keys().any(|kind| *kind != VectorKind::Dense) {
            let outputs: Vec<String> = self
                .outputs
                .iter()
                .map(|(kind, dimensions)| format!("{kind} ({dimensions})"))
                .collect();
            lines.push(format!("  outputs  {}", outputs.join(", ")));
        }
        lines.push(format!("  quality  {}", quality::text(self.quality)));
        for (kind, quality) in &self.other_vectors {
            lines.push(format!(
                "           {kind}: {}",
                quality::text(Some(*quality))
            ));
        }
        lines.extend(
            self.pairs
                .map(|pairs| format!("  pairs    {}", quality::pairs_text(&pairs))),
        );
        lines.extend(self.note.map(|note| format!("  note     {note}")));
        lines.extend(
            self.warnings
                .iter()
                .map(|warning| format!("  warning  {warning}")),
        );
        if let Some(VectorQuality {
            texts,
            int8,
            binary,
        }) = self.vectors
        {
            let binary = binary.map_or(String::new(), |binary| {
                format!(", binary {:.0} %", binary * 100.0)
            });
            let int8 = int8 * 100.0;
            lines.push(format!(
                "  vectors  recall@10 over {texts} texts: int8 {int8:.0} %{binary}"
            ));
        }
        if let Some(Comparison { fp32, built }) = self.comparison {
            let (before, after) = (fp32.texts_per_second, built.texts_per_second);
            let (ratio, before, after) = (after / before, rate(before), rate(after));
            lines.push(format!(
                "  speed    {after} texts/s, {ratio:.1} × fp32 ({before} texts/s)"
            ));
        }
        if let Some(Serving {
            resident_mb,
            answer_ms,
            longest,
        }) = self.serving
        {
            let longest = longest.map_or(String::new(), |Longest { tokens, peak_mb }| {
                format!("; {peak_mb:.0} MB with a text of {tokens} tokens")
            });
            lines.push(format!(
                "  serving  {resident_mb:.0} MB resident, {answer_ms:.1} ms for a short text{longest}"
            ));
        }
        let labels = std::iter::once("next").chain(std::iter::repeat(""));
        lines.extend(
            self.next
                .iter()
                .zip(labels)
                .map(|(command, label)| format!("  {label:8} {command}")),
        );
        lines
    }
}

/// Next commands for the bundle with this name or path.
fn next(named: &Path) -> Vec<String> {
    let named = named.display();
    vec![
        format!("kivu serve {named}"),
        format!("kivu push {named} s3://BUCKET/PREFIX"),
    ]
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn rate(rate: f64) -> String {
    if rate < 10.0 {
        format!("{rate:.1}")
    } else {
        format!("{rate:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kivu::repository::manifest::Neighbours;
    use kivu_compiler::quality::{PairFigures, cost::Cost};

    #[test]
    fn the_report_has_size_quality_speed_memory_and_the_next_commands() {
        let neighbours = Some(Neighbours {
            ten_nearest: 0.9512,
            nearest: 0.98,
        });
        let cost = |bytes, texts_per_second| Cost {
            bytes,
            texts_per_second,
        };
        let report = Report {
            name: "minilm",
            task: Task::FeatureExtraction,
            architecture: "BertModel",
            precision: Precision::Int8,
            bundle: "my-model".into(),
            digest: "0123456789abcdef",
            bytes: 24_000_000,
            outputs: [(VectorKind::Dense, 384)].into(),
            other_vectors: BTreeMap::new(),
            quality: Some(Quality::Embedding {
                texts: 300,
                mean_cosine: 0.9939,
                worst_cosine: 0.9831,
                neighbours,
                terms: None,
                score_difference: None,
            }),
            note: Some("chosen since int8 is below the floor"),
            warnings: &["`factor` 2.0 in `config.json` was ignored".to_owned()],
            vectors: Some(VectorQuality {
                texts: 300,
                int8: 0.97,
                binary: Some(0.8234),
            }),
            pairs: Some(PairQuality {
                kind: "pairs with scores",
                pairs: 1379,
                model: PairFigures::Scores {
                    spearman: Some(0.82031),
                },
                other: Some(PairFigures::Scores {
                    spearman: Some(0.82034),
                }),
            }),
            comparison: Some(Comparison {
                fp32: cost(90_000_000, 100.0),
                built: cost(22_500_000, 450.0),
            }),
            serving: Some(Serving {
                resident_mb: 87.2,
                answer_ms: 1.26,
                longest: Some(Longest {
                    tokens: 256,
                    peak_mb: 101.6,
                }),
            }),
            other_tasks: Vec::new(),
            next: vec![
                "kivu serve my-model".into(),
                "kivu push my-model s3://BUCKET/PREFIX".into(),
            ],
        };
        insta::assert_snapshot!(report.lines().join("\n"), @r"
        minilm (feature-extraction, BertModel)
          bundle   my-model, 24.0 MB, 0123456789ab
          size     weights 22.5 MB, 25 % of 90.0 MB in fp32
          quality  cosine to fp32 over 300 texts: mean 0.9939, worst 0.9831; recall@10 95.1 %, recall@1 98.0 %
          pairs    1379 pairs with scores: Spearman 0.8203 against 0.8203
          note     chosen since int8 is below the floor
          warning  `factor` 2.0 in `config.json` was ignored
          vectors  recall@10 over 300 texts: int8 97 %, binary 82 %
          speed    450 texts/s, 4.5 × fp32 (100 texts/s)
          serving  87 MB resident, 1.3 ms for a short text; 102 MB with a text of 256 tokens
          next     kivu serve my-model
                   kivu push my-model s3://BUCKET/PREFIX
        ");
        let short = Report {
            comparison: None,
            serving: None,
            quality: None,
            note: None,
            warnings: &[],
            vectors: None,
            pairs: None,
            next: Vec::new(),
            ..report
        };
        insta::assert_snapshot!(short.lines().join("\n"), @r"
        minilm (feature-extraction, BertModel)
          bundle   my-model, 24.0 MB, 0123456789ab
          quality  not measured: there is no other precision to compare with
        ");
    }
}
