//! A model file: settings, dictionary, and two matrices.

use serde::Serialize;

use super::{dictionary::Dictionary, file::MAGIC, matrix::Matrix, reader::Reader};
use crate::tokenizers::parts::to_bytes;
use kivu::{Error, Result};

/// The output layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    HierarchicalSoftmax,
    Softmax,
}

pub struct FastText<'a> {
    pub loss: Loss,
    pub dictionary: Dictionary<'a>,
    /// A vector per word and n-gram.
    pub input: Matrix,
    /// A vector per label, or per inner node of the tree above them.
    pub output: Matrix,
    ngrams: Ngrams,
}

/// Which n-grams a model reads.
struct Ngrams {
    /// Hashes are below this number.
    buckets: usize,
    min_length: usize,
    max_length: usize,
    max_words: usize,
}

#[derive(Serialize)]
struct TokenizerFile<'a> {
    version: &'static str,
    model: Features<'a>,
}

/// The model in a `tokenizer.json`, which has the type first: see `text/src/models/fast_text.rs`.
#[derive(Serialize)]
struct Features<'a> {
    r#type: &'static str,
    words: Vec<Option<&'a str>>,
    rows: usize,
    buckets: usize,
    kept: Option<&'a [(u32, u32)]>,
    min_length: usize,
    max_length: usize,
    max_words: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    labels: Vec<&'a str>,
}

impl<'a> FastText<'a> {
    pub fn read(bytes: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(Error::model("the file is not a fastText model"));
        }
        let version = reader.int()?;
        if !(11..=12).contains(&version) {
            return Err(Error::model(format!(
                "expected a fastText model of version 11 or 12, but found version {version}"
            )));
        }
        let (loss, ngrams) = settings(&mut reader, version)?;
        let dictionary = Dictionary::read(&mut reader)?;
        let is_quantized = reader.flag()?;
        let input = match is_quantized {
            true => Matrix::read_quantized(&mut reader)?,
            false => Matrix::read(&mut reader)?,
        };
        let output = match reader.flag()? && is_quantized {
            true => Matrix::read_quantized(&mut reader)?,
            false => Matrix::read(&mut reader)?,
        };
        reader.finish()?;
        let model = Self {
            loss,
            dictionary,
            input,
            output,
            ngrams,
        };
        model.check()?;
        Ok(model)
    }

    fn check(&self) -> Result<()> {
        let labels = self.dictionary.label_count();
        if labels < 2 {
            return Err(Error::model(format!(
                "expected at least 2 labels, but found {labels}"
            )));
        }
        // fastText has a row for each label also if only the inner nodes of the tree, one less, are used.
        let Matrix { rows, columns, .. } = self.output;
        if rows != labels || columns != self.input.columns || columns == 0 {
            return Err(Error::model(format!(
                "expected an output matrix of {labels} × {}, but found {rows} × {columns}",
                self.input.columns
            ))
            .with_hint("the file is damaged"));
        }
        Ok(())
    }

    /// A `tokenizer.json` that finds the features.
    pub fn tokenizer(&self) -> Result<Vec<u8>> {
        let words = self
            .dictionary
            .words
            .iter()
            .map(|word| std::str::from_utf8(word).ok());
        let Ngrams {
            buckets,
            min_length,
            max_length,
            max_words,
        } = self.ngrams;
        let file = TokenizerFile {
            version: "1.0",
            model: Features {
                r#type: "FastText",
                words: words.collect(),
                rows: self.input.rows,
                buckets,
                kept: self.dictionary.kept.as_deref(),
                min_length,
                max_length,
                max_words,
                labels: self.dictionary.other_labels().collect(),
            },
        };
        to_bytes(&file)
    }
}

/// Reads the settings.
fn settings(reader: &mut Reader<'_>, version: i32) -> Result<(Loss, Ngrams)> {
    // Dimensions, which the matrices have too; context window, epochs, minimum count and negative samples.
    for _ in 0..5 {
        reader.int()?;
    }
    let max_words = reader.int()?;
    let (loss, kind) = (reader.int()?, reader.int()?);
    let buckets = reader.count("buckets")?;
    let (min_length, max_length) = (reader.int()?, reader.int()?);
    // Update rate and sampling threshold.
    reader.int()?;
    reader.long()?;
    match kind {
        3 => {}
        1 | 2 => {
            let name = if kind == 1 { "cbow" } else { "skipgram" };
            return Err(Error::model(format!(
                "expected a classifier (`fasttext supervised`), but found word vectors (`{name}`)"
            )));
        }
        other => {
            return Err(Error::model(format!(
                "expected a classifier, but found model type {other}"
            )));
        }
    }
    let loss = match loss {
        1 => Loss::HierarchicalSoftmax,
        3 => Loss::Softmax,
        other => {
            let name = match other {
                2 => "`ns`".to_owned(),
                4 => "`ova`".to_owned(),
                other => other.to_string(),
            };
            return Err(Error::model(format!(
                "expected a model that was trained with `-loss softmax` or `-loss hs`, but found {name}"
            )));
        }
    };
    let length = |length: i32| usize::try_from(length).unwrap_or(0);
    // Classifiers had no character n-grams in version 11, whatever their settings say.
    let max_length = if version == 11 { 0 } else { length(max_length) };
    let ngrams = Ngrams {
        buckets,
        min_length: length(min_length),
        max_length,
        max_words: length(max_words),
    };
    Ok((loss, ngrams))
}
