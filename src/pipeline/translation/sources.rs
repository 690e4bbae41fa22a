//! From a text to what the encoder reads: its sentences, and around each what the model's family wants.

use super::{
    languages::{Directions, Pair, Wanted},
    sentences::{Part, halves, split, whole},
    settings::{Languages, TokenSide, TranslationSettings},
};
use crate::{
    error::{Error, Result},
    tokenizer::{Tokenizer, reach},
};

/// When a text is taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// Into its sentences.
    Sentences,
    /// Into its sentences where the model cannot read it as a whole.
    WhenLong,
    /// Never: it is shortened, or refused.
    Never,
}

/// A text as the model reads it.
#[derive(Debug)]
pub(super) struct Prepared<'a> {
    pub(super) pair: Pair,
    pub(super) parts: Vec<Part<'a>>,
    /// What the encoder reads of each sentence.
    pub(super) sentences: Vec<Vec<i64>>,
    /// Whether something of the text is not read.
    pub(super) is_cut: bool,
}

/// What makes sources of texts.
#[derive(Debug)]
pub(super) struct Sources {
    pub(super) tokenizer: std::sync::Arc<Tokenizer>,
    pub(super) directions: Directions,
    pub(super) settings: TranslationSettings,
}

/// How texts are made sources.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner<'a> {
    pub(super) wanted: Wanted<'a>,
    pub(super) split: Split,
    /// Whether what is too long is cut; otherwise it is refused where it cannot be split.
    pub(super) truncate: bool,
    /// More sentences than this are refused by whoever asks.
    pub(super) most_sentences: usize,
}

impl Sources {
    /// Makes sources of a text.
    pub(super) fn prepare<'a>(&self, text: &'a str, manner: Manner<'_>) -> Result<Prepared<'a>> {
        let (wanted, text) = self.written_target(text, manner.wanted);
        let pair = self.directions.find(wanted)?;
        let around = self.around(&pair)?;
        let limit = self.settings.max_tokens.saturating_sub(around.len());
        let mut prepared = Prepared { pair, parts: Vec::new(), sentences: Vec::new(), is_cut: false };
        // Text beyond this is no whole of any use, and is not tokenised to find out.
        let can_be_whole = text.len() <= reach(limit);
        let parts = match manner.split {
            Split::WhenLong if can_be_whole && self.ids(text.trim())?.len() <= limit => whole(text),
            Split::Never => whole(text),
            Split::Sentences | Split::WhenLong => split(text),
        };
        for part in parts {
            // Enough for being refused: megabytes more need not be tokenised for that.
            if prepared.sentences.len() > manner.most_sentences {
                break;
            }
            match part {
                Part::Space(_) => prepared.parts.push(part),
                Part::Sentence(sentence) => self.add(sentence, limit, manner, &around, &mut prepared)?,
            }
        }
        Ok(prepared)
    }

    /// Adds a sentence, in pieces between words where it is too long.
    fn add<'a>(
        &self,
        sentence: &'a str,
        limit: usize,
        manner: Manner<'_>,
        around: &Around,
        prepared: &mut Prepared<'a>,
    ) -> Result<()> {
        let mut pending = vec![sentence];
        while let Some(piece) = pending.pop() {
            let is_within_reach = piece.len() <= reach(limit);
            let mut ids = if is_within_reach { self.ids(piece)? } else { Vec::new() };
            if !is_within_reach || ids.len() > limit {
                if manner.split != Split::Never
                    && let Some((before, after)) = halves(piece)
                {
                    pending.extend([after, before]);
                    continue;
                }
                if !manner.truncate {
                    return Err(self.too_long(piece, ids.len(), around));
                }
                if !is_within_reach {
                    ids = self.ids(&piece[..piece.floor_char_boundary(reach(limit))])?;
                }
                ids.truncate(limit);
                prepared.is_cut = true;
            }
            if matches!(prepared.parts.last(), Some(Part::Sentence(_))) {
                prepared.parts.push(Part::Space(" "));
            }
            prepared.parts.push(Part::Sentence(piece));
            prepared.sentences.push(around.put(ids));
        }
        Ok(())
    }

    fn too_long(&self, piece: &str, found: usize, around: &Around) -> Error {
        let found = match found {
            0 => format!("{} bytes", piece.len()),
            found => format!("{} tokens", found + around.len()),
        };
        Error::too_large(format!(
            "the text has {found}, but the model takes at most {} tokens; let it be split or shortened",
            self.settings.max_tokens
        ))
    }

    /// The target that a text itself names as `>>code<<`, where the model's own tokenizer reads it so.
    fn written_target<'a: 'b, 'b>(&self, text: &'a str, wanted: Wanted<'b>) -> (Wanted<'b>, &'a str) {
        let written = text.strip_prefix(">>").and_then(|rest| rest.split_once("<<"));
        match (&self.settings.languages, wanted.target, written) {
            (Languages::Prefix { .. }, None, Some((code, rest))) => {
                (Wanted { target: Some(code), ..wanted }, rest)
            }
            _ => (wanted, text),
        }
    }

    fn ids(&self, text: &str) -> Result<Vec<i64>> {
        let read = |id| self.settings.unknown_tokens.map_or(id, |unknown| unknown.read(id));
        let ids = self.tokenizer.encode_bare(text)?.into_iter().map(read).map(i64::from);
        // A student of Bergamot's knows its special tokens by their numbers only; in a text they are a slip.
        let ends =
            self.settings.shortlist.as_ref().map_or(&[][..], |_| &self.settings.generation.eos_token_ids);
        Ok(ids.filter(|id| !ends.contains(id)).collect())
    }

    /// What the model's family wants around a text.
    fn around(&self, pair: &Pair) -> Result<Around> {
        let token = |codes: &std::collections::BTreeMap<String, i64>, code: &str| {
            let unknown =
                || Error::model(format!("expected a token of the language `{code}`, but found none"));
            codes.get(code).copied().ok_or_else(unknown)
        };
        let end = self.settings.generation.eos_token_ids.first().copied();
        let mut around = Around { before: None, after: end.into_iter().collect() };
        match &self.settings.languages {
            Languages::Pair { .. } => {}
            Languages::Prefix { targets, .. } => around.before = Some(token(targets, &pair.target)?),
            Languages::Tokens { codes, side } => {
                let source = token(codes, &pair.source)?;
                match side {
                    TokenSide::Before => around.before = Some(source),
                    TokenSide::After => around.after.push(source),
                }
            }
        }
        Ok(around)
    }

    /// The token that a target begins with, where the model is told its language so.
    pub(super) fn first_token(&self, target: &str) -> Option<i64> {
        match &self.settings.languages {
            Languages::Tokens { codes, .. } => codes.get(target).copied(),
            Languages::Pair { .. } | Languages::Prefix { .. } => None,
        }
    }
}

/// The tokens around a text.
#[derive(Debug)]
struct Around {
    before: Option<i64>,
    after: Vec<i64>,
}

impl Around {
    fn len(&self) -> usize {
        usize::from(self.before.is_some()) + self.after.len()
    }

    fn put(&self, ids: Vec<i64>) -> Vec<i64> {
        self.before.iter().copied().chain(ids).chain(self.after.iter().copied()).collect()
    }
}
