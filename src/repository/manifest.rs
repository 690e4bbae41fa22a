//! A bundle's manifest, `manifest.toml`.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt, iter,
    path::{Component, Path},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de};

use kivu_base::{Error, Result};
use kivu_core::{
    backend::{Engine, Signature},
    pipeline::{
        Task,
        embedding::{EmbeddingSettings, VectorKind},
        seq2seq::Seq2SeqSettings,
    },
};

use super::task_settings::TaskSettings;

/// First line's prefix, a comment; the BLAKE3 of all other lines follows.
const SEAL: &str = "# BLAKE3 of the lines below: ";

/// The largest token limit that a manifest may have.
const MAX_TOKENS: usize = 1 << 21;

/// Manifest contents. The SHA-256 of its text identifies the bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Format version, [`Manifest::FORMAT`].
    pub format: u32,
    /// Default model name.
    pub name: String,
    /// Model aliases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Model task.
    pub task: Task,
    /// Graph file name.
    pub graph: String,
    /// The engine that the graph is written for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub engine: Engine,
    /// Model origin.
    pub source: Origin,
    /// Weight precision and quality loss.
    pub weights: Weights,
    /// Quality of an embedding model's int8 and binary vectors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vectors: Option<VectorQuality>,
    /// Settings for the task.
    pub settings: TaskSettings,
    /// Tensor names in the KServe API.
    #[serde(default, skip_serializing_if = "TensorNames::is_default")]
    pub tensors: TensorNames,
    /// Keys in the model's files that the build ignored on request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<String>,
    /// Sentences about their values, which may change results, and about a model card that cannot be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Graph inputs and outputs.
    pub signature: Signature,
    /// All other bundle files.
    pub files: Vec<File>,
}

/// Checks the name of a model that is built: it is a segment of the paths of routes, a folder's name, and a word in lists of
/// models, keys and prompts.
pub fn check_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    if name.starts_with(|c: char| c.is_alphanumeric() || c == '_') && name.chars().all(is_plain) {
        return Ok(());
    }
    Err(Error::config(format!(
        "expected a model name of letters, digits, `-`, `_` and `.` that begins with a letter, a digit or `_`, but found \
         `{}`",
        name.escape_debug()
    )))
}

fn is_default(engine: &Engine) -> bool {
    *engine == Engine::default()
}

/// Model origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// The architecture according to its `config.json`.
    pub architecture: String,
    /// The package, folder or repository, such as `ORG/NAME@COMMIT`.
    pub from: String,
    /// SHA-256 of the original weights.
    pub sha256: String,
}

/// Weight precision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weights {
    /// Number format of the stored weights.
    pub precision: Precision,
    /// Quantization scheme, and why it was chosen if it is not the default.
    pub plan: String,
    /// The quality compared with fp32, measured by the build; `None` for fp32, and for weights that were quantized
    /// before the build.
    pub quality: Option<Quality>,
    /// Quality per additional vector kind, for an embedding model with several kinds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub other_vectors: BTreeMap<VectorKind, Quality>,
}

/// Number format of stored weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// 8-bit integers with one scale per output channel: the fastest.
    #[default]
    Int8,
    /// 8-bit integers with one scale per block, mostly of 64 weights: nearly fp32, but slower.
    Int8Blocks,
    /// 32-bit floating point.
    Fp32,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A quantized model's quality compared with fp32, over real texts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Quality {
    /// Embeddings. For multi-vectors, cosines are computed between single vectors, and the nearest texts are the best
    /// scored with a text as the query.
    Embedding {
        /// Measured texts.
        texts: usize,
        /// Mean cosine between fp32 and quantized embeddings.
        mean_cosine: f32,
        /// The lowest cosine.
        worst_cosine: f32,
        /// Nearest neighbours compared with fp32; `None` in older versions' bundles.
        #[serde(skip_serializing_if = "Option::is_none")]
        neighbours: Option<Neighbours>,
        /// Sparse vectors only: mean overlap of the ten tokens with the largest weights, 0 to 1.
        #[serde(skip_serializing_if = "Option::is_none")]
        terms: Option<f32>,
        /// Multi-vectors only: mean absolute score difference over all text pairs; scores are at most 1.
        #[serde(skip_serializing_if = "Option::is_none")]
        score_difference: Option<f32>,
    },
    /// Token label scores.
    TokenClassification {
        /// Measured texts.
        texts: usize,
        /// Measured tokens, without special tokens.
        tokens: usize,
        /// Share of tokens with the same best label.
        agreement: f32,
        /// Share of both forms' entities that the other form finds, too; absent in bundles of former versions.
        #[serde(skip_serializing_if = "Option::is_none")]
        entity_agreement: Option<f32>,
        /// Mean absolute score difference, over all tokens and labels.
        mean_difference: f32,
        /// The largest difference.
        worst_difference: f32,
    },
    /// Word span scores, for a fixed set of sample labels.
    ZeroShotEntities {
        /// Measured texts.
        texts: usize,
        /// Measured spans.
        spans: usize,
        /// Share of entities that both models find: twice the common ones, divided by the sum of both counts.
        agreement: f32,
        /// Mean absolute score difference, over all spans and labels.
        mean_difference: f32,
        /// The largest difference.
        worst_difference: f32,
    },
    /// Scores for a single label, which rank texts.
    Ranking {
        /// Measured texts.
        texts: usize,
        /// Share of text pairs that both models rank in the same order.
        rank_agreement: f32,
        /// Mean absolute score difference.
        mean_difference: f32,
    },
    /// Label scores.
    Classification {
        /// Measured texts.
        texts: usize,
        /// Share of texts with the same best label.
        agreement: f32,
        /// Mean absolute score difference, over all labels.
        mean_difference: f32,
    },
    /// Generated texts, including translations.
    Seq2Seq {
        /// Measured texts.
        texts: usize,
        /// chrF2 against fp32, 0 to 100; `None` in older versions' bundles.
        #[serde(skip_serializing_if = "Option::is_none")]
        chrf: Option<f32>,
        /// Text similarity: twice the common words, in order, divided by the sum of both word counts.
        similarity: f32,
        /// Share of identical texts.
        identical: f32,
        /// The similarity without the shortlist, for models that have one.
        #[serde(skip_serializing_if = "Option::is_none")]
        similarity_without_shortlist: Option<f32>,
        /// Share of tokens in the fp32 text for which both models have the same most likely token.
        token_agreement: f32,
        /// Mean absolute log-probability difference over these tokens.
        token_difference: f32,
    },
}

/// Recall of each text's fp32 nearest neighbours, by cosine among all measured texts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Neighbours {
    /// Mean recall@10.
    pub ten_nearest: f32,
    /// Recall@1.
    pub nearest: f32,
}

/// Recall@10 for sample texts if vectors are stored as integers or bits, without reranking the results.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VectorQuality {
    /// Measured texts.
    pub texts: usize,
    /// For `int8` and `uint8`, by cosine similarity.
    pub int8: f32,
    /// For `binary` and `ubinary`, by Hamming distance; absent if 8 does not divide the dimensions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binary: Option<f32>,
}

/// A model's tensor names in the KServe API, which a recipe can adapt to existing clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TensorNames {
    /// The input with texts.
    pub text: String,
    /// The input with token ids.
    pub ids: String,
    /// The input with the attention mask.
    pub mask: String,
    /// Input with the labels for zero-shot classification.
    pub labels: String,
    /// Input with the query for ranking.
    pub query: String,
    /// The output, by default named after its contents.
    pub output: Option<String>,
}

impl Default for TensorNames {
    fn default() -> Self {
        Self {
            text: "TEXT".into(),
            ids: "input_ids".into(),
            mask: "attention_mask".into(),
            labels: "LABELS".into(),
            query: "QUERY".into(),
            output: None,
        }
    }
}

impl TensorNames {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A bundle file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The path in the bundle.
    pub name: String,
    /// In bytes.
    pub size: u64,
    /// In hexadecimal, for other tools.
    pub sha256: String,
    /// In hexadecimal. Verified when the bundle is loaded, in a third of the time that SHA-256 takes.
    pub blake3: String,
}

impl Manifest {
    /// Written format version. Format 1 is read, too.
    pub const FORMAT: u32 = 2;

    /// Parses a manifest. Refuses settings for another task, names that lead out of a folder, file names outside the bundle, more
    /// than [`MAX_TOKENS`], and a text that does not match the BLAKE3 in its first line. Manifests from versions before 0.3
    /// have no such line.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some((expected, rest)) = text
            .strip_prefix(SEAL)
            .and_then(|text| text.split_once('\n'))
        {
            let found = blake3::hash(rest.as_bytes()).to_hex();
            if found.as_str() != expected {
                return Err(Error::model(format!(
                    "expected the BLAKE3 {expected} of all lines after the first one of the \
                     manifest, but found {found}"
                ))
                .with_hint("the bundle is damaged or was edited: build or fetch it again"));
            }
        }
        let failed = |error| Error::model_because("the manifest cannot be read", error);
        let Version { format } = toml::from_str(text).map_err(failed)?;
        let text = match format {
            1 => Cow::Owned(from_format_1(text).map_err(failed)?),
            Self::FORMAT => Cow::Borrowed(text),
            _ => {
                return Err(Error::model(format!(
                    "expected a manifest of format 1 or {}, but found {format}",
                    Self::FORMAT
                ))
                .with_hint("build the bundle again"));
            }
        };
        let manifest: Self = toml::from_str(&text).map_err(failed)?;
        if !manifest.settings.fit(manifest.task) {
            return Err(manifest.lacks_settings());
        }
        manifest.check_names()?;
        let found = manifest.settings.max_tokens();
        if found > MAX_TOKENS {
            return Err(Error::model(format!(
                "expected `max_tokens` of at most {MAX_TOKENS}, but found {found}"
            )));
        }
        let labels = manifest.settings.label_encoder();
        let labels = labels
            .into_iter()
            .flat_map(|labels| [&labels.graph, &labels.tokenizer]);
        for name in manifest
            .files
            .iter()
            .map(|file| &file.name)
            .chain([&manifest.graph])
            .chain(labels)
        {
            if !is_inside(name) {
                return Err(Error::model(format!(
                    "expected file names inside the bundle, but found `{name}`"
                )));
            }
        }
        Ok(manifest)
    }

    /// Refuses a name that leads out of folders or paths, and names of several lines: the author of a bundle chooses them.
    fn check_names(&self) -> Result<()> {
        let mut names = iter::once(&self.name).chain(&self.aliases);
        let mut parts = self.name.split('/');
        let leads_out = parts.any(|part| matches!(part, "" | "." | ".."));
        let found = names.find(|name| leads_out || name.contains(char::is_control));
        match found {
            None => Ok(()),
            Some(name) => Err(Error::model(format!(
                "expected a name that is no path and has no control characters, but found `{}`",
                name.escape_debug()
            ))
            .with_hint("build the bundle again, with another name")),
        }
    }

    /// Manifest text.
    pub fn to_text(&self) -> Result<String> {
        let text = toml::to_string(self)
            .map_err(|error| Error::model_because("the manifest cannot be written", error))?;
        Ok(format!(
            "{SEAL}{}\n{text}",
            blake3::hash(text.as_bytes()).to_hex()
        ))
    }

    /// An encoder's maximum input tokens; `None` for models that generate texts.
    pub fn max_tokens(&self) -> Option<usize> {
        (self.settings.seq2seq().is_none()).then(|| self.settings.max_tokens())
    }

    /// For the task `feature-extraction`.
    pub fn embedding(&self) -> Option<&EmbeddingSettings> {
        (self.settings.embedding()).filter(|_| self.task == Task::FeatureExtraction)
    }

    /// The model's own labels, for texts or tokens, if they are its result.
    pub fn labels(&self) -> Option<&[String]> {
        let are_result = matches!(
            self.task,
            Task::TextClassification | Task::TokenClassification
        );
        self.settings.labels().filter(|_| are_result)
    }

    /// For the task `translation`.
    pub fn translation(&self) -> Option<&Seq2SeqSettings> {
        (self.settings.seq2seq()).filter(|_| self.task == Task::Translation)
    }

    /// How a model ranks or does zero-shot classification: `embedding` or `model`, as recipes name it.
    pub fn strategy(&self) -> Option<&'static str> {
        match (self.task, &self.settings) {
            (Task::TextRanking | Task::ZeroShotClassification, TaskSettings::Embedding(_)) => {
                Some("embedding")
            }
            (Task::TextRanking | Task::ZeroShotClassification, _) => Some("model"),
            _ => None,
        }
    }

    /// The error for settings that do not fit the task.
    pub fn lacks_settings(&self) -> Error {
        Error::model(format!(
            "the manifest of `{}` has no settings for its task `{}`",
            self.name, self.task
        ))
    }

    /// Looks up a file's entry.
    pub fn file(&self, name: &str) -> Option<&File> {
        self.files.iter().find(|file| file.name == name)
    }
}

/// The key that all formats have.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

/// Converts format 1, whose settings are a section at the top. The text is parsed again: a table's values would need all
/// parsers of settings a second time, and make the WebAssembly module 4 % larger.
fn from_format_1(text: &str) -> std::result::Result<String, toml::de::Error> {
    const SECTIONS: [&str; 7] = [
        "embedding",
        "classification",
        "token_classification",
        "label_scores",
        "zero_shot_entities",
        "seq2seq",
        "translation",
    ];
    let mut table: toml::Table = toml::from_str(text)?;
    if table.contains_key("settings") {
        return Err(de::Error::custom(
            "unknown field `settings` in a manifest of format 1",
        ));
    }
    let section = SECTIONS
        .iter()
        .find_map(|name| Some((*name, table.remove(*name)?)));
    if let Some((name, section)) = section {
        // The older name.
        let kind = if name == "translation" {
            "seq2seq"
        } else {
            name
        };
        let settings = toml::Table::from_iter([(kind.to_owned(), section)]);
        table.insert("settings".to_owned(), settings.into());
    }
    table.insert("format".to_owned(), Manifest::FORMAT.into());
    // A second section is an unknown field.
    toml::to_string(&table).map_err(de::Error::custom)
}

fn is_inside(name: &str) -> bool {
    let mut components = Path::new(name).components().peekable();
    components.peek().is_some()
        && components.all(|component| matches!(component, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_outside_of_the_bundle_are_detected() {
        assert!(is_inside("model.onnx"));
        assert!(is_inside("1/model.onnx"));
        for name in ["", "../model.onnx", "/etc/passwd", "a/../../b", "."] {
            assert!(!is_inside(name), "{name}");
        }
    }
    /// Manifests in format 1 with the names of their settings, there and in format 2.
    const OLDER: [(&str, [&str; 2]); 9] = [
        (
            include_str!("../../tests/fixtures/manifests/feature-extraction.toml"),
            ["embedding"; 2],
        ),
        (
            include_str!("../../tests/fixtures/manifests/text-ranking.toml"),
            ["embedding"; 2],
        ),
        (
            include_str!("../../tests/fixtures/manifests/text-classification.toml"),
            ["classification"; 2],
        ),
        (
            include_str!("../../tests/fixtures/manifests/token-classification.toml"),
            ["token_classification"; 2],
        ),
        (
            include_str!("../../tests/fixtures/manifests/zero-shot-entities.toml"),
            ["zero_shot_entities"; 2],
        ),
        (
            include_str!("../../tests/fixtures/manifests/zero-shot-classification.toml"),
            ["label_scores"; 2],
        ),
        (
            include_str!("../../tests/fixtures/manifests/translation.toml"),
            ["translation", "seq2seq"],
        ),
        (
            include_str!("../../tests/fixtures/manifests/summarization.toml"),
            ["seq2seq"; 2],
        ),
        (
            include_str!("../../tests/fixtures/manifests/text2text-generation.toml"),
            ["seq2seq"; 2],
        ),
    ];

    /// The same manifest in format 2.
    fn renewed(text: &str, [from, to]: [&str; 2]) -> String {
        text.replace("format = 1", "format = 2")
            .replace(&format!("[{from}"), &format!("[settings.{to}"))
    }

    #[test]
    fn format_1_is_read_as_format_2() {
        for (text, names) in OLDER {
            let found = Manifest::parse(text).unwrap();
            assert_eq!(found, Manifest::parse(&renewed(text, names)).unwrap());
            let written = found.to_text().unwrap();
            assert!(
                written.contains(&format!("\n[settings.{}]\n", names[1])),
                "{written}"
            );
            assert_eq!(found, Manifest::parse(&written).unwrap());
        }
    }

    #[test]
    fn unknown_keys_and_settings_for_another_task_are_refused() {
        let refused = |text: &str| Manifest::parse(text).unwrap_err().chain().to_string();
        for (text, names) in OLDER {
            let renewed = renewed(text, names);
            let renewed = renewed.as_str();
            for text in [text, renewed] {
                for (old, new) in [
                    ("graph = ", "odd = 1\ngraph = "),
                    ("max_tokens = ", "odd = 1\nmax_tokens = "),
                ] {
                    let found = refused(&text.replacen(old, new, 1));
                    assert!(found.contains("unknown field `odd`"), "{found}");
                }
            }
            // Each format has its own names.
            for (format, text) in [(2, text), (1, renewed)] {
                let other = format!("format = {}", 3 - format);
                let found = refused(&text.replace(&other, &format!("format = {format}")));
                assert!(found.contains("unknown field"), "{found}");
            }
        }
        let (text, _) = OLDER[0];
        insta::assert_snapshot!(refused(&text.replace("format = 1", "format = 3\nodd = 1")), @"expected a manifest of format 1 or 2, but found 3; build the bundle again");
        insta::assert_snapshot!(refused(&text.replace("feature-extraction\"", "translation\"")), @"the manifest of `translation` has no settings for its task `translation`");
        let two = text.replace(
            "[embedding]",
            "[classification]\nlabels = []\n\n[embedding]",
        );
        let found = refused(&two);
        assert!(found.contains("unknown field `classification`"), "{found}");
    }

    #[test]
    fn names_and_limits_of_hostile_manifests_are_refused() {
        let parse = |old: &str, new: &str| Manifest::parse(&OLDER[0].0.replacen(old, new, 1));
        let name = "name = \"feature-extraction\"";
        let aliased = |alias: &str| format!("{name}\naliases = [\"org/model:1\", \"{alias}\"]");
        assert!(parse(name, &aliased("minilm")).is_ok());
        for found in ["../../x", "/x", "a/../b", "..", "", "a\\nb", "\\u001b[2J"] {
            let error = parse(name, &format!("name = \"{found}\""))
                .unwrap_err()
                .chain();
            assert!(
                error.starts_with("expected a name that is no path"),
                "{error}"
            );
        }
        assert!(parse(name, "name = \"org/model\"").is_ok());
        let error = parse(name, &aliased("a\\r\\nb")).unwrap_err().chain();
        insta::assert_snapshot!(error, @r"expected a name that is no path and has no control characters, but found `a\r\nb`; build the bundle again, with another name");
        let error = parse("max_tokens = ", "max_tokens = 99999999")
            .unwrap_err()
            .chain();
        assert!(
            error.starts_with("expected `max_tokens` of at most 2097152"),
            "{error}"
        );
    }

    #[test]
    fn a_manifest_is_protected_by_its_first_line() {
        let text = "format = 1\nname = \"tiny\"\n";
        let sealed =
            |text: &str| format!("{SEAL}{}\n{text}", blake3::hash(text.as_bytes()).to_hex());
        let refused = |text: &str| Manifest::parse(text).unwrap_err().to_string();
        assert!(
            !refused(&sealed(text)).contains("BLAKE3"),
            "only the other fields are missing"
        );
        for damaged in [
            sealed(text).replace("tiny", "tinz"),
            sealed(text) + "\n",
            sealed(text).replacen(": ", ": 0", 1),
        ] {
            assert!(
                refused(&damaged).contains("the bundle is damaged or was edited"),
                "{damaged}"
            );
        }
    }
}
