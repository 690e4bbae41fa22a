//! From a text to what the encoder reads: its sentences, and around each what the model's family wants.

use super::{
    languages::{Directions, Pair, RequestedLanguages},
    segmentation::{Part, halves, split, whole},
    settings::{Languages, TokenSide, TranslationSettings},
};
use crate::{
    error::{Error, Result},
    tokenizer::{Token, Tokenizer, reach},
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

/// Whether special tokens are among those of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Those that the model wants around a text are added.
    Added,
    /// The text's own tokens only.
    LeftOut,
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
    pub(super) wanted: RequestedLanguages<'a>,
    pub(super) split: Split,
    /// Whether what is too long is cut; otherwise it is refused where it cannot be split.
    pub(super) truncate: bool,
    /// More sentences than this are refused by whoever asks.
    pub(super) max_sentences: usize,
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
            if prepared.sentences.len() > manner.max_sentences {
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
    fn written_target<'a: 'b, 'b>(
        &self,
        text: &'a str,
        wanted: RequestedLanguages<'b>,
    ) -> (RequestedLanguages<'b>, &'a str) {
        let written = text.strip_prefix(">>").and_then(|rest| rest.split_once("<<"));
        match (&self.settings.languages, wanted.target, written) {
            (Languages::Prefix { .. }, None, Some((code, rest))) => {
                (RequestedLanguages { target: Some(code), ..wanted }, rest)
            }
            _ => (wanted, text),
        }
    }

    /// The tokens of a text, read as one sentence. Spans count characters of the whole text.
    ///
    /// A language whose token is one of the special tokens has to be known.
    pub(super) fn tokens(
        &self,
        text: &str,
        special: SpecialTokens,
        wanted: RequestedLanguages<'_>,
    ) -> Result<Vec<Token>> {
        let (wanted, rest) = self.written_target(text, wanted);
        let skipped = text.chars().count() - rest.chars().count();
        let own = self.tokenizer.tokens(rest, false)?.into_iter().filter_map(|token| {
            let span = token.span.map(|(start, stop)| (start + skipped, stop + skipped));
            Some(Token { id: self.read(token.id)?, span, ..token })
        });
        if special == SpecialTokens::LeftOut {
            return Ok(own.collect());
        }
        let added = |id: &i64| {
            let id = u32::try_from(*id).ok()?;
            Some(Token { id, text: self.tokenizer.spelling(id)?, special: true, span: None })
        };
        let Around { before, after } = self.around(&self.special_languages(wanted)?)?;
        Ok(before.iter().filter_map(added).chain(own).chain(after.iter().filter_map(added)).collect())
    }

    /// The languages whose tokens are among the special tokens of a source; another one may be empty.
    fn special_languages(&self, wanted: RequestedLanguages<'_>) -> Result<Pair> {
        let (source, target) = self.directions.named(wanted)?;
        let required = |field: &str, language: Option<&str>, is_needed: bool| match language {
            None if is_needed => Err(Error::invalid(format!(
                "expected `{field}`, since a special token of the model names the language, but found none; name it, or \
                 set `add_special_tokens` to false"
            ))),
            language => Ok(language.unwrap_or_default().to_owned()),
        };
        let languages = &self.settings.languages;
        Ok(Pair {
            source: required("src_lang", source, matches!(languages, Languages::Tokens { .. }))?,
            target: required("tgt_lang", target, matches!(languages, Languages::Prefix { .. }))?,
        })
    }

    fn ids(&self, text: &str) -> Result<Vec<i64>> {
        let ids = self.tokenizer.encode_without_special_tokens(text)?.into_iter();
        Ok(ids.filter_map(|id| self.read(id)).map(i64::from).collect())
    }

    /// What the model reads in place of a token of the tokenizer's, if anything.
    fn read(&self, id: u32) -> Option<u32> {
        let id = self.settings.unknown_tokens.map_or(id, |unknown| unknown.read(id));
        // A student of Bergamot's knows its special tokens by their numbers only; in a text they are a slip.
        let is_end = |ends: &[i64]| ends.contains(&i64::from(id));
        let is_slip = self.settings.shortlist.is_some() && is_end(&self.settings.generation.eos_token_ids);
        (!is_slip).then_some(id)
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
