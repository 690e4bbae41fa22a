//! What `kivu build` says at its end: size, quality, speed before and after, memory, and what to do next.

use std::path::Path;

use serde::Serialize;

use crate::{
    build::{Built, cost::Comparison},
    cli::{bench::serve_once, serve::example},
    config::Config,
    error::Result,
    pipeline::Task,
    repository::{
        Bundle,
        manifest::{Manifest, Precision, Quality},
    },
};

/// What a build came to.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    name: &'a str,
    task: Task,
    architecture: &'a str,
    precision: Precision,
    bundle: &'a str,
    digest: &'a str,
    /// All files of the bundle.
    bytes: u64,
    quality: Option<Quality>,
    comparison: Option<Comparison>,
    serving: Option<Serving>,
    next: Vec<String>,
}

/// What a server of the bundle was seen to need.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Serving {
    resident_mb: f64,
    /// The median of a short text over HTTP.
    answer_ms: f64,
}

impl Serving {
    /// Serves the bundle for a moment; nothing where that cannot be done, which is no reason for a build to fail.
    pub(super) fn measure(path: &Path, bundle: &Bundle, config: &Config) -> Option<Self> {
        let manifest = bundle.manifest();
        let served = || -> Result<[f64; 2]> {
            serve_once(path, &format!("/models/{}", manifest.name), &example(manifest), config)
        };
        let [resident_mb, answer_ms] = served()
            .inspect_err(|error| tracing::warn!("the bundle was not tried: {}", error.chain()))
            .ok()?;
        Some(Self { resident_mb, answer_ms })
    }
}

impl<'a> Report<'a> {
    pub(super) fn new(built: &'a Built, path: &'a str, serving: Option<Serving>) -> Self {
        let Manifest { name, task, source, weights, files, .. } = built.bundle.manifest();
        Self {
            name,
            task: *task,
            architecture: &source.architecture,
            precision: weights.precision,
            bundle: path,
            digest: built.bundle.digest(),
            bytes: files.iter().map(|file| file.size).sum(),
            quality: weights.quality,
            comparison: built.comparison,
            serving,
            next: [format!("kivu serve {path}"), format!("kivu push {path} s3://BUCKET/PREFIX")].into(),
        }
    }

    /// The report as people read it.
    pub(super) fn lines(&self) -> Vec<String> {
        let Self { name, task, architecture, bundle, .. } = self;
        let mut lines = vec![
            format!("{name} ({task}, {architecture})"),
            format!("  bundle   {bundle}, {:.1} MB, {}", mb(self.bytes), &self.digest[..12]),
        ];
        if let Some(Comparison { fp32, built }) = self.comparison {
            let (before, after) = (mb(fp32.bytes), mb(built.bytes));
            let share = after / before * 100.0;
            lines
                .push(format!("  size     weights {before:.1} MB in fp32, {after:.1} MB now ({share:.0} %)"));
        }
        lines.push(format!("  quality  {}", quality(self.quality)));
        if let Some(Comparison { fp32, built }) = self.comparison {
            let (before, after) = (fp32.texts_per_second, built.texts_per_second);
            let times = after / before;
            lines.push(format!(
                "  speed    {} texts/s in fp32, {} now ({times:.1} ×), over the same texts",
                rate(before),
                rate(after)
            ));
        }
        if let Some(Serving { resident_mb, answer_ms }) = self.serving {
            lines.push(format!(
                "  memory   {resident_mb:.0} MB while it is served; a short text is answered in {answer_ms:.1} ms"
            ));
        }
        let words = ["next    ", "        "].into_iter().chain(std::iter::repeat("        "));
        lines.extend(self.next.iter().zip(words).map(|(command, word)| format!("  {word} {command}")));
        lines
    }
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn rate(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

fn quality(quality: Option<Quality>) -> String {
    match quality {
        Some(Quality::Embedding { texts, mean_cosine, worst_cosine }) => {
            format!("cosine to fp32 over {texts} texts: mean {mean_cosine:.4}, worst {worst_cosine:.4}")
        }
        Some(Quality::Classification { texts, agreement, mean_difference }) => format!(
            "against fp32 over {texts} texts: the same label for {:.1} %, scores differ by {mean_difference:.4}",
            agreement * 100.0
        ),
        Some(Quality::Translation {
            texts,
            similarity,
            identical,
            similarity_without_shortlist,
            token_agreement,
            ..
        }) => {
            let without = similarity_without_shortlist
                .map(|similarity| format!(" ({similarity:.4} without the shortlist)"))
                .unwrap_or_default();
            format!(
                "against fp32 over {texts} texts: similarity {similarity:.4}{without}, {:.0} % the same, {:.1} % of \
                 tokens",
                identical * 100.0,
                token_agreement * 100.0
            )
        }
        None => "not measured: there is no other precision to compare with".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::cost::Cost;

    #[test]
    fn the_report_tells_size_quality_speed_memory_and_what_to_do_next() {
        let cost = |bytes, texts_per_second| Cost { bytes, texts_per_second };
        let report = Report {
            name: "minilm",
            task: Task::FeatureExtraction,
            architecture: "BertModel",
            precision: Precision::Int8,
            bundle: "my-model",
            digest: "0123456789abcdef",
            bytes: 24_000_000,
            quality: Some(Quality::Embedding { texts: 300, mean_cosine: 0.9939, worst_cosine: 0.9831 }),
            comparison: Some(Comparison { fp32: cost(90_000_000, 100.0), built: cost(22_500_000, 450.0) }),
            serving: Some(Serving { resident_mb: 87.2, answer_ms: 1.26 }),
            next: vec!["kivu serve my-model".into(), "kivu push my-model s3://BUCKET/PREFIX".into()],
        };
        insta::assert_snapshot!(report.lines().join("\n"), @r"
        minilm (feature-extraction, BertModel)
          bundle   my-model, 24.0 MB, 0123456789ab
          size     weights 90.0 MB in fp32, 22.5 MB now (25 %)
          quality  cosine to fp32 over 300 texts: mean 0.9939, worst 0.9831
          speed    100 texts/s in fp32, 450 now (4.5 ×), over the same texts
          memory   87 MB while it is served; a short text is answered in 1.3 ms
          next     kivu serve my-model
                   kivu push my-model s3://BUCKET/PREFIX
        ");
        let short = Report { comparison: None, serving: None, quality: None, next: Vec::new(), ..report };
        insta::assert_snapshot!(short.lines().join("\n"), @r"
        minilm (feature-extraction, BertModel)
          bundle   my-model, 24.0 MB, 0123456789ab
          quality  not measured: there is no other precision to compare with
        ");
    }
}
