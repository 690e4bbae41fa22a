//! The words and labels that a model knows, and the n-grams that have vectors.

use super::reader::Reader;
use kivu::{Error, Result};

/// The prefix of labels.
const LABEL: &str = "__label__";
/// The word at the end of texts.
const END: &[u8] = b"</s>";

pub struct Dictionary<'a> {
    /// By row.
    pub words: Vec<&'a [u8]>,
    /// In the order of scores, with their counts in the training data.
    labels: Vec<(&'a [u8], i64)>,
    /// Hash and row of each n-gram with a vector; `None` if all have one.
    pub kept: Option<Vec<(u32, u32)>>,
}

impl<'a> Dictionary<'a> {
    pub fn read(reader: &mut Reader<'a>) -> Result<Self> {
        let [size, words, labels] = ["entries", "words", "labels"].map(|what| reader.count(what));
        let (size, word_count, label_count) = (size?, words?, labels?);
        if word_count.checked_add(label_count) != Some(size) {
            return Err(Error::model(format!(
                "expected {size} entries in the dictionary, but found {word_count} words and \
                 {label_count} labels"
            ))
            .with_hint("the file is damaged"));
        }
        // The number of tokens in the training data.
        reader.long()?;
        let kept = reader.long()?;
        let (mut words, mut labels) = (Vec::new(), Vec::new());
        for entry in 0..size {
            let (text, count, kind) = (reader.text()?, reader.long()?, reader.byte()?);
            match (entry < word_count, kind) {
                (true, 0) => words.push(text),
                (false, 1) => labels.push((text, count)),
                (is_word, kind) => {
                    let expected = if is_word { "a word (0)" } else { "a label (1)" };
                    return Err(Error::model(format!(
                        "expected {expected} as entry {entry} of the dictionary, but found {kind}"
                    ))
                    .with_hint("the file is damaged"));
                }
            }
        }
        if !words.contains(&END) {
            return Err(Error::model(
                "expected the word `</s>`, which ends all texts, in the dictionary, but found none",
            ));
        }
        Ok(Self {
            words,
            labels,
            kept: Self::read_kept(reader, kept)?,
        })
    }

    /// Reads the n-grams of a pruned dictionary; -1 means that it is not pruned.
    fn read_kept(reader: &mut Reader<'a>, count: i64) -> Result<Option<Vec<(u32, u32)>>> {
        if count < 0 {
            return Ok(None);
        }
        let mut kept = Vec::new();
        for _ in 0..count {
            let [hash, row] = ["a hash", "a row"].map(|what| reader.count(what));
            let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
            kept.push((number(hash?), number(row?)));
        }
        Ok(Some(kept))
    }

    /// How often each label occurs in the training data.
    pub fn label_counts(&self) -> Vec<i64> {
        self.labels.iter().map(|(_, count)| *count).collect()
    }

    /// The labels, without prefix.
    pub fn label_names(&self) -> Result<Vec<String>> {
        let name = |label: &[u8]| {
            let label = std::str::from_utf8(label).map_err(|_| {
                Error::model(format!(
                    "expected labels in UTF-8, but found `{}`",
                    label.escape_ascii()
                ))
            })?;
            Ok(label.strip_prefix(LABEL).unwrap_or(label).to_owned())
        };
        self.labels.iter().map(|(label, _)| name(label)).collect()
    }

    /// The labels with another prefix than fastText's default, which no file states.
    pub fn other_labels(&self) -> impl Iterator<Item = &'a str> {
        let labels = self.labels.iter();
        let labels = labels.filter_map(|(label, _)| std::str::from_utf8(label).ok());
        labels.filter(|label| !label.starts_with(LABEL))
    }

    pub fn label_count(&self) -> usize {
        self.labels.len()
    }
}
