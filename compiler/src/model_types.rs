//! Encoder families: what their files leave to the classes in `transformers`, as `family` in `keys/keys.toml`.
//!
//! A family's layers are read by its reader in `encoder/families`.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

/// Properties that a `model_type` determines, whatever else is in the files.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Family {
    pub sizes: Sizes,
    pub positions: FirstPosition,
    pub tokenizer: TokenizerFiles,
    /// The tokenizer's class if no file names one, without `Fast`; empty if the model's class has none.
    pub tokenizer_class: String,
    /// Whether only the classes of version 5 of `transformers`, which makes other classes' tokenizers from their vocabularies,
    /// have its tokenizer.
    pub has_own_tokenizer: bool,
    /// Whether the tokenizer is that of version 5 of `transformers`, in which `tokenizer.json` decides on a space before a text.
    pub is_newer: bool,
    /// Whether the tokenizer returns token types if no file names its class.
    pub returns_types: bool,
    /// Number of token types if no file says.
    pub types: usize,
    /// The class with a masked language model's head, for sparse vectors.
    pub masked_class: Option<String>,
    /// Whether it computes longer texts than its files declare.
    pub is_unlimited: bool,
    /// Code outside of `transformers` that Kivu implements.
    pub code: Option<Code>,
    /// Another family with the same `model_type`, told apart by other fields.
    pub jina: Option<Jina>,
}

impl Default for Family {
    fn default() -> Self {
        Self {
            sizes: Sizes::default(),
            positions: FirstPosition::Zero,
            tokenizer: TokenizerFiles::Any,
            tokenizer_class: String::new(),
            has_own_tokenizer: false,
            is_newer: false,
            returns_types: true,
            types: 0,
            masked_class: None,
            is_unlimited: false,
            code: None,
            jina: None,
        }
    }
}

/// Families of Jina's own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Jina {
    /// jina-embeddings-v2.
    V2,
    /// jina-embeddings-v3 in its authors' form.
    V3,
}

/// Names of the fields with the sizes of layers. Some classes have two names for a field.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sizes {
    pub hidden: Vec<String>,
    pub layers: Vec<String>,
    pub heads: Vec<String>,
    pub positions: Vec<String>,
}

impl Default for Sizes {
    fn default() -> Self {
        let names = |name: &str| vec![name.to_owned()];
        Self {
            hidden: names("hidden_size"),
            layers: names("num_hidden_layers"),
            heads: names("num_attention_heads"),
            positions: names("max_position_embeddings"),
        }
    }
}

/// Names in any class, for exports.
pub static ANY_SIZES: LazyLock<Sizes> = LazyLock::new(|| Sizes {
    hidden: ["hidden_size", "dim", "n_embd", "d_model"]
        .map(str::to_owned)
        .into(),
    positions: ["max_position_embeddings", "n_positions"]
        .map(str::to_owned)
        .into(),
    ..Sizes::default()
});

/// The row of a position table for a text's first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FirstPosition {
    Zero,
    /// The row after the padding id.
    AfterPadding,
    /// The row after this padding id, whatever the config says.
    AfterFixedPadding(i64),
}

/// The files with a tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenizerFiles {
    /// `tokenizer.json`, or the vocabulary of its class.
    Any,
    /// Or else byte pairs with RoBERTa's special tokens.
    BytePairs,
    /// Or else byte pairs with BERT's special tokens.
    BertBytePairs,
    /// BERT's, in the form of the authors' code or of `transformers`.
    Nomic,
    /// That of any class, in the form of the authors' code or of `transformers`.
    Gte,
    /// Those that version 5 of `transformers` makes, of XLM-RoBERTa's pieces by default.
    Pieces,
    T5,
    /// Byte pairs, whose texts end with the end token.
    Bart,
}

/// Custom model code: the files, and the prefixes of the class names.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Code {
    pub files: Vec<String>,
    pub classes: Vec<String>,
    /// SHA-256 of the known files; empty if their names are enough.
    #[serde(default)]
    pub known: Vec<String>,
}

/// The module that rounds vectors to 8 bits (pplx-embed-v1), with its file.
pub const QUANTIZER: &str = "st_quantize.FlexibleQuantizer";
pub const QUANTIZER_FILE: &str = "st_quantize.py";
/// SHA-256 of that file: in pplx-embed-v1, and in `tests/fixtures/models`.
pub const QUANTIZERS: [&str; 2] = [
    "320c54decc6a150bbfbef5eff4765291e66fb7506503ee65776809d99938faad",
    "b132c54f5bedc836649c07ca8eb6232c9a65604c86687783588d215d1704c7a1",
];

/// All families, by `model_type`.
static FAMILIES: LazyLock<BTreeMap<String, Family>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct Row {
        family: Option<Family>,
    }
    #[derive(Deserialize)]
    struct Keys {
        encoder: BTreeMap<String, Row>,
    }
    // `keys` reports errors in the file.
    let keys: Option<Keys> = toml::from_str(include_str!("keys/keys.toml")).ok();
    let rows = keys.into_iter().flat_map(|keys| keys.encoder);
    rows.filter_map(|(model_type, row)| Some((model_type, row.family?)))
        .collect()
});

impl Family {
    /// The family of a `model_type`, if it is supported.
    pub fn named(model_type: &str) -> Option<&'static Self> {
        FAMILIES.get(model_type)
    }

    /// Whether a file is code that is compared with a known file.
    pub fn compares_code(file: &str) -> bool {
        let codes = FAMILIES.values().filter_map(|family| family.code.as_ref());
        let mut known = codes.filter(|code| !code.known.is_empty());
        let is_of_family = |name: &str| known.any(|code| code.has(name));
        file == QUANTIZER_FILE || file.strip_suffix(".py").is_some_and(is_of_family)
    }

    /// Supported `model_type`s.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FAMILIES.keys().map(String::as_str)
    }
    /// Classes with a masked language model's head, for sparse vectors.
    pub fn masked_classes() -> impl Iterator<Item = &'static str> {
        FAMILIES
            .values()
            .filter_map(|family| family.masked_class.as_deref())
    }
}

impl Code {
    /// Whether a file without its ending is among the code.
    pub fn has(&self, file: &str) -> bool {
        self.files.iter().any(|own| own == file)
    }
}
