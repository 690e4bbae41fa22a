//! Texts to encoder inputs: sentences, with the special tokens of the model's family around them.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use super::{
    execute::UNKNOWN_ID,
    languages::{Directions, LanguagePair, RequestedLanguages},
    segmentation::{Segment, halves, split, whole},
    settings::{LanguageToken, Languages, Seq2SeqSettings, TokenSide, split_tag, tag},
    unknown_text::{Masked, Readable, readable},
};
use crate::pipeline::generation::GenerationOptions;
use kivu_base::{Error, Result};
use kivu_text::{SpecialTokens, Token, Tokenizer};

/// When a text is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// Into its sentences.
    Sentences,
    /// Into its sentences if the model cannot read it as a whole.
    WhenLong,
    /// Never: it is truncated or refused.
    Never,
}

/// Request options.
#[derive(Clone, Debug, PartialEq)]
pub struct Seq2SeqOptions {
    /// Source language, by any name.
    pub source: Option<String>,
    /// Target language, by any name.
    pub target: Option<String>,
    /// When texts are split; the default depends on the model kind.
    pub split: Option<Split>,
    /// Whether too long sentences are truncated instead of refused.
    pub truncate: bool,
    /// Whether spaces before punctuation are removed.
    pub clean_up_spaces: bool,
    /// Overrides for the model's generation settings.
    pub generation: GenerationOptions,
    /// Maximum sentences in all texts.
    pub max_sentences: usize,
}

/// A text as encoder inputs.
#[derive(Debug)]
pub struct PreparedText<'a> {
    pub pair: LanguagePair,
    pub layout: Vec<Segment<&'a str>>,
    /// Token ids per sentence.
    pub sentences: Vec<Vec<i64>>,
    /// Stand-ins in each sentence for text that the model cannot read.
    pub masked: Vec<Masked>,
    /// Sentences that are copied, since the model can read nothing of them.
    pub copied: usize,
    keeps_unknown: bool,
    pub is_truncated: bool,
}

impl PreparedText<'_> {
    pub fn count(&self) -> usize {
        self.sentences.len() + self.copied
    }
}

/// The treatment of text that a Bergamot model cannot read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownText {
    /// It is kept for the translation.
    Kept,
    /// The model reads unknown tokens.
    Read,
}

/// A model's source tokenizer with its languages.
#[derive(Debug)]
pub struct SourceEncoder {
    pub tokenizer: Arc<Tokenizer>,
    pub directions: Directions,
    pub settings: Seq2SeqSettings,
}

impl SourceEncoder {
    /// Prepares a text. Tokenization stops beyond the sentence limit; the caller refuses the text.
    pub fn prepare<'a>(
        &self,
        text: &'a str,
        options: &Seq2SeqOptions,
        unknown: UnknownText,
    ) -> Result<PreparedText<'a>> {
        if !self.translates() {
            return self.prepare_whole(text, options);
        }
        let (source, target) = (options.source.as_deref(), options.target.as_deref());
        let (languages, text) = self.written_target(text, RequestedLanguages { source, target });
        let pair = self.directions.find(languages)?;
        let frame = self.frame(&pair)?;
        let mut prepared = PreparedText {
            pair,
            layout: Vec::new(),
            sentences: Vec::new(),
            masked: Vec::new(),
            copied: 0,
            keeps_unknown: unknown == UnknownText::Kept,
            is_truncated: false,
        };
        let segments = match options.split.unwrap_or_else(|| self.default_split()) {
            Split::WhenLong if self.fits(text.trim(), &frame)? => whole(text),
            Split::Never => whole(text),
            Split::Sentences | Split::WhenLong => split(text, options.max_sentences),
        };
        for segment in segments {
            if prepared.count() > options.max_sentences {
                break;
            }
            match segment {
                Segment::Space(_) => prepared.layout.push(segment),
                Segment::Sentence(sentence) => {
                    self.add(sentence, options, &frame, &mut prepared)?
                }
            }
        }
        Ok(prepared)
    }

    /// Whether the model translates between languages.
    pub fn translates(&self) -> bool {
        self.settings.languages != Languages::None
    }

    /// Prepares a text for a model that does not translate: as a whole, with the model's prefix.
    fn prepare_whole<'a>(
        &self,
        text: &'a str,
        options: &Seq2SeqOptions,
    ) -> Result<PreparedText<'a>> {
        for (field, language) in [("src_lang", &options.source), ("tgt_lang", &options.target)] {
            if language.is_some() {
                return Err(Error::invalid(format!(
                    "`{field}` is not supported: the model does not translate"
                )));
            }
        }
        if options.split.is_some_and(|split| split != Split::Never) {
            return Err(Error::invalid(
                "`split` is not supported: the model does not translate",
            ));
        }
        let pair = LanguagePair {
            source: String::new(),
            target: String::new(),
        };
        let frame = self.frame(&pair)?;
        let whole = frame.with_prefix(text);
        let (ids, is_truncated) =
            self.limited(&whole, self.ids_within(&whole, &frame)?, options, &frame)?;
        let sentences = vec![frame.special.around(&ids)];
        Ok(PreparedText {
            pair,
            layout: vec![Segment::Sentence(text)],
            sentences,
            masked: vec![Masked::default()],
            copied: 0,
            keeps_unknown: false,
            is_truncated,
        })
    }

    /// Prefix and special tokens for texts in these languages.
    fn frame(&self, pair: &LanguagePair) -> Result<Frame<'_>> {
        let own = &self.settings.prefix;
        let prefix = match &self.settings.languages {
            Languages::Instructions { pairs } => {
                let instruction = pairs
                    .get(&pair.source)
                    .and_then(|targets| targets.get(&pair.target));
                Cow::Borrowed(instruction.map_or("", String::as_str))
            }
            Languages::Tags { .. } => Cow::Owned(format!("{own}{} ", tag(&pair.target))),
            _ => Cow::Borrowed(&**own),
        };
        let special = self.special_ids(pair)?;
        let limit = self.settings.max_tokens.saturating_sub(special.len());
        Ok(Frame {
            prefix,
            special,
            limit,
        })
    }

    /// Ids for a text with its prefix; `None` if they are certainly too many.
    fn ids_within(&self, whole: &str, frame: &Frame<'_>) -> Result<Option<Vec<i64>>> {
        if self.with_more_tokens(whole, frame.limit)?.is_some() {
            return Ok(None);
        }
        self.ids(whole).map(Some)
    }

    /// A short prefix with certainly more than `limit` tokens, if a text has one. A long text is halved until its parts are
    /// short enough, and would otherwise be tokenized at every halving.
    fn with_more_tokens<'a>(&self, text: &'a str, limit: usize) -> Result<Option<&'a str>> {
        const MIN_BYTES: usize = 256;
        const BYTES_PER_TOKEN: usize = 8;
        /// Allowance for tokens that are cut in two.
        const ALLOWANCE: usize = 64;
        let mut size = limit.saturating_mul(BYTES_PER_TOKEN).max(MIN_BYTES);
        while size < text.len() {
            let prefix = &text[..text.floor_char_boundary(size)];
            if self.ids(prefix)?.len() > limit + ALLOWANCE {
                return Ok(Some(prefix));
            }
            size = size.saturating_mul(2);
        }
        Ok(None)
    }

    /// Whether the model reads a text as a whole.
    fn fits(&self, text: &str, frame: &Frame<'_>) -> Result<bool> {
        let ids = self.ids_within(&frame.with_prefix(text), frame)?;
        Ok(ids.is_some_and(|ids| ids.len() <= frame.limit))
    }

    /// Adds a sentence, split between words if it is too long; stops once there are too many sentences.
    fn add<'a>(
        &self,
        sentence: &'a str,
        options: &Seq2SeqOptions,
        frame: &Frame<'_>,
        prepared: &mut PreparedText<'a>,
    ) -> Result<()> {
        let (mut pending, begin) = (vec![sentence], prepared.layout.len());
        while let Some(piece) = pending
            .pop()
            .filter(|_| prepared.count() <= options.max_sentences)
        {
            let ids = self.ids_within(&frame.with_prefix(piece), frame)?;
            let readable = match &ids {
                Some(ids) if prepared.keeps_unknown && ids.len() <= frame.limit => {
                    self.readable(piece, ids)?
                }
                _ => None,
            };
            let (around, read) = match &readable {
                Some(readable) => (readable.around, readable.read.as_ref()),
                None => ([""; 2], None),
            };
            let whole = frame.with_prefix(read.map_or(piece, |read| &read.text));
            let ids = match read {
                Some(_) => self.ids_within(&whole, frame)?,
                None => ids,
            };
            if ids.as_ref().is_none_or(|ids| ids.len() > frame.limit)
                && options.split != Some(Split::Never)
                && let Some((before, after)) = halves(piece)
            {
                pending.extend([after, before]);
                continue;
            }
            if prepared.layout.len() > begin {
                prepared.layout.push(Segment::Space(" "));
            }
            let [before, after] = around;
            let space = |space: &'a str| (!space.is_empty()).then_some(Segment::Space(space));
            prepared.layout.extend(space(before));
            if readable.is_some() && read.is_none() {
                prepared.copied += 1;
                continue;
            }
            let (ids, is_truncated) = self.limited(&whole, ids, options, frame)?;
            prepared.is_truncated |= is_truncated;
            prepared.layout.push(Segment::Sentence(piece));
            prepared.layout.extend(space(after));
            prepared.sentences.push(frame.special.around(&ids));
            prepared.masked.push(read.cloned().unwrap_or_default());
        }
        Ok(())
    }

    /// A sentence of which a Bergamot model would lose a part; `None` if it reads all tokens.
    fn readable<'a>(&self, sentence: &'a str, ids: &[i64]) -> Result<Option<Readable<'a>>> {
        let unknown = i64::from(UNKNOWN_ID);
        // The ids lack the special tokens whose names are in the sentence.
        if self.settings.shortlist.is_none() || !ids.contains(&unknown) && !sentence.contains('<') {
            return Ok(None);
        }
        let eos_ids = &self.settings.generation.eos_token_ids;
        let is_lost = |id: u32| id == UNKNOWN_ID || eos_ids.contains(&i64::from(id));
        let starts: Vec<usize> = sentence.char_indices().map(|(start, _)| start).collect();
        let byte = |place: usize| starts.get(place).copied().unwrap_or(sentence.len());
        let lost: Vec<_> = self
            .tokenizer
            .tokens(sentence, SpecialTokens::LeftOut)?
            .iter()
            .filter(|token| is_lost(token.id))
            .filter_map(|token| token.span)
            .map(|(start, stop)| byte(start)..byte(stop))
            .collect();
        let is_known = |text: &str| {
            let ids = self.tokenizer.ids(text);
            ids.is_ok_and(|ids| !ids.into_iter().any(is_lost))
        };
        Ok((!lost.is_empty()).then(|| readable(sentence, &lost, is_known)))
    }

    /// A part of a sentence as encoder input.
    pub fn fragment(&self, text: &str, pair: &LanguagePair) -> Result<Vec<i64>> {
        Ok(self.special_ids(pair)?.around(&self.ids(text)?))
    }

    /// Ids for a text with its prefix, truncated or refused if there are too many, and whether it was truncated. `ids`
    /// is `None` if the text is certainly too long.
    fn limited(
        &self,
        text: &str,
        ids: Option<Vec<i64>>,
        options: &Seq2SeqOptions,
        frame: &Frame<'_>,
    ) -> Result<(Vec<i64>, bool)> {
        let limit = frame.limit;
        if let Some(ids) = &ids
            && ids.len() <= limit
        {
            return Ok((ids.clone(), false));
        }
        if !options.truncate {
            let found = match &ids {
                None => format!("{} bytes", text.len()),
                Some(ids) => format!("{} tokens", ids.len() + frame.special.len()),
            };
            let hint = if self.translates() {
                "`split` or `truncate`"
            } else {
                "`truncate`"
            };
            return Err(Error::too_large(format!(
                "the text has {found}, but the model takes at most {} tokens",
                self.settings.max_tokens
            ))
            .with_hint(format!("set {hint}")));
        }
        let mut ids = match ids {
            Some(ids) => ids,
            None => self.ids(self.with_more_tokens(text, limit)?.unwrap_or(text))?,
        };
        ids.truncate(limit);
        Ok((ids, true))
    }

    /// Target language in a text like `>>code<< …` or `<2code> …`, for models whose own tokenizer reads it. It overrides the
    /// request's, so that texts in one request may have different targets.
    fn written_target<'a: 'b, 'b>(
        &self,
        text: &'a str,
        requested: RequestedLanguages<'b>,
    ) -> (RequestedLanguages<'b>, &'a str) {
        let written = match &self.settings.languages {
            Languages::Prefix { .. } => text
                .strip_prefix(">>")
                .and_then(|rest| rest.split_once("<<")),
            Languages::Tags { .. } => split_tag(text),
            _ => None,
        };
        let is_read = |code: &str| requested.target.is_none() || self.directions.has_target(code);
        match written {
            Some((code, rest)) if is_read(code) => (
                RequestedLanguages {
                    target: Some(code),
                    ..requested
                },
                rest,
            ),
            _ => (requested, text),
        }
    }

    /// Tokens for a single-sentence text; spans count characters from the start of the text.
    ///
    /// A language is required if its token is among the requested special tokens.
    pub fn tokens(
        &self,
        text: &str,
        special: SpecialTokens,
        requested: RequestedLanguages<'_>,
    ) -> Result<Vec<Token>> {
        if !self.translates() {
            return self.tokenizer.tokens(text, special);
        }
        let (requested, rest) = self.written_target(text, requested);
        let skipped = text.chars().count() - rest.chars().count();
        let languages = match special {
            SpecialTokens::Added => Some(self.special_languages(requested)?),
            SpecialTokens::LeftOut => None,
        };
        // A tag is tokenized with its text.
        let tag = match (&self.settings.languages, &languages) {
            (Languages::Tags { .. }, Some(pair)) => tag(&pair.target),
            _ => String::new(),
        };
        let (whole, before) = match tag.chars().count() {
            0 => (Cow::Borrowed(rest), 0),
            length => (Cow::Owned(format!("{tag} {rest}")), length + 1),
        };
        let own = self
            .tokenizer
            .tokens(&whole, SpecialTokens::LeftOut)?
            .into_iter()
            .filter_map(|token| {
                let id = self.model_id(token.id)?;
                // The space behind a tag belongs to the next token.
                let span = token
                    .span
                    .filter(|(_, stop)| before == 0 || *stop >= before);
                let in_text = |place: usize| place.saturating_sub(before) + skipped;
                Some(Token {
                    id,
                    special: token.special || span != token.span,
                    span: span.map(|(start, stop)| (in_text(start), in_text(stop))),
                    ..token
                })
            });
        let Some(languages) = languages else {
            return Ok(own.collect());
        };
        let added = |id: i64| {
            let id = u32::try_from(id).ok()?;
            Some(Token {
                id,
                text: self.tokenizer.token(id)?,
                special: true,
                span: None,
            })
        };
        let SpecialIds { before, after } = self.special_ids(&languages)?;
        Ok(before
            .into_iter()
            .filter_map(added)
            .chain(own)
            .chain(after.into_iter().filter_map(added))
            .collect())
    }

    /// The languages that have special tokens in a source; others may be empty.
    fn special_languages(&self, requested: RequestedLanguages<'_>) -> Result<LanguagePair> {
        let (source, target) = self.directions.named(requested)?;
        let required = |field: &str, language: Option<&str>, is_required: bool| match language {
            None if is_required => Err(Error::invalid(format!(
                "`{field}` is missing: a special token depends on the language"
            ))
            .with_hint("set it, or set `add_special_tokens` to false")),
            language => Ok(language.unwrap_or_default().to_owned()),
        };
        let languages = &self.settings.languages;
        Ok(LanguagePair {
            source: required(
                "src_lang",
                source,
                matches!(languages, Languages::Tokens { .. }),
            )?,
            target: required(
                "tgt_lang",
                target,
                matches!(languages, Languages::Prefix { .. } | Languages::Tags { .. }),
            )?,
        })
    }

    fn ids(&self, text: &str) -> Result<Vec<i64>> {
        let ids = self.tokenizer.ids(text)?.into_iter();
        Ok(ids
            .filter_map(|id| self.model_id(id))
            .map(i64::from)
            .collect())
    }

    /// The model's id for a tokenizer token; `None` for a token that the model must not read.
    fn model_id(&self, id: u32) -> Option<u32> {
        let id = self
            .settings
            .unknown_tokens
            .map_or(id, |unknown| unknown.read(id));
        // In a text, `</s>` is an ordinary string for Bergamot models, but its tokenizer returns the special token.
        let eos_ids = &self.settings.generation.eos_token_ids;
        let is_stray = self.settings.shortlist.is_some() && eos_ids.contains(&i64::from(id));
        (!is_stray).then_some(id)
    }

    fn special_ids(&self, pair: &LanguagePair) -> Result<SpecialIds> {
        let token = |codes: &BTreeMap<String, i64>, code: &str| {
            let unknown = || {
                Error::model(format!(
                    "expected a token for the language `{code}`, but found none"
                ))
            };
            codes.get(code).copied().ok_or_else(unknown)
        };
        let first = self.settings.generation.eos_token_ids.first().copied();
        let end = self.settings.source_end_token_id.or(first);
        let mut special = SpecialIds {
            before: Vec::new(),
            after: end.into_iter().collect(),
        };
        match &self.settings.languages {
            Languages::None | Languages::Instructions { .. } | Languages::Tags { .. } => {
                let [before, after] = self.tokenizer.special_ids();
                let ids = |ids: &[u32]| ids.iter().copied().map(i64::from).collect();
                special = SpecialIds {
                    before: ids(before),
                    after: ids(after),
                };
            }
            Languages::Pair { .. } => {}
            Languages::Prefix { targets, .. } => special.before.push(token(targets, &pair.target)?),
            Languages::Tokens {
                codes,
                side: TokenSide::Before,
                ..
            } => {
                special.before.push(token(codes, &pair.source)?);
            }
            Languages::Tokens {
                codes,
                side: TokenSide::After,
                ..
            } => special.after.push(token(codes, &pair.source)?),
        }
        Ok(special)
    }

    /// Token that selects the target language, if there is one.
    pub fn target_token(&self, target: &str) -> Option<LanguageToken> {
        match &self.settings.languages {
            Languages::Tokens {
                codes,
                target: position,
                ..
            } => codes.get(target).map(|id| LanguageToken {
                id: *id,
                position: *position,
            }),
            Languages::None
            | Languages::Pair { .. }
            | Languages::Prefix { .. }
            | Languages::Instructions { .. }
            | Languages::Tags { .. } => None,
        }
    }

    /// When texts are split by default: Bergamot models are trained on single sentences only.
    pub fn default_split(&self) -> Split {
        match self.settings.generation.length_factor {
            Some(_) => Split::Sentences,
            None => Split::WhenLong,
        }
    }
}

/// A text's prefix and special tokens.
#[derive(Debug)]
struct Frame<'a> {
    prefix: Cow<'a, str>,
    special: SpecialIds,
    /// Maximum tokens for prefix and text.
    limit: usize,
}

impl Frame<'_> {
    fn with_prefix<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match &*self.prefix {
            "" => Cow::Borrowed(text),
            prefix => Cow::Owned(format!("{prefix}{text}")),
        }
    }
}

/// The special tokens around a text.
#[derive(Debug)]
struct SpecialIds {
    before: Vec<i64>,
    after: Vec<i64>,
}

impl SpecialIds {
    fn len(&self) -> usize {
        self.before.len() + self.after.len()
    }

    /// Adds the surrounding ids to a text's ids.
    fn around(&self, ids: &[i64]) -> Vec<i64> {
        [&self.before[..], ids, &self.after].concat()
    }
}
